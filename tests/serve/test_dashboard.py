"""The Grafana dashboard asks for figures that there are, and for every one of them."""

import json
import re
from pathlib import Path

from byref.serve.metrics import Metrics

BOARD = Path(__file__).parents[2] / "dashboards" / "grafana.json"


def test_the_dashboard_and_the_metrics_know_each_other():
    board = json.loads(BOARD.read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"byref_\w+", target["expr"])
    }
    families = {family.name: family.type for family in Metrics().registry.collect()}
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    there = {f"{name}{suffix}" for name, kind in families.items() for suffix in suffixes[kind]}
    assert asked <= there
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked} == set(families)
