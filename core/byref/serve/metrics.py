"""Figures for Prometheus, in a registry of the server's own. Knows what is counted, not where it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from byref.contract.step import StepReport
from byref.engine import Completion

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Every figure; prometheus-client's own locks make them safe in any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.requests = counter("byref_requests", "Requests by outcome.", "endpoint", "outcome")
        self.prompt_tokens = counter("byref_prompt_tokens", "Prompt tokens of requests that ended.")
        self.cached_tokens = counter("byref_cached_tokens", "Prompt tokens found in the prefix cache.")
        self.tokens = counter("byref_generation_tokens", "New tokens.")
        self.first = histogram("byref_time_to_first_token_seconds", "From arrival.", SLOW)
        self.each = histogram("byref_time_per_output_token_seconds", "After the first.", FAST)
        self.queued = histogram("byref_queue_seconds", "From arrival to the first row.", SLOW)
        self.total = histogram("byref_request_seconds", "From arrival to the end.", SLOW)
        self.steps = histogram("byref_step_seconds", "Of one engine step.", FAST)
        self.forward = counter("byref_forward_seconds", "Time inside forwards.")
        self.drafting = counter("byref_draft_seconds", "Time in which drafts were proposed.")
        self.rows = counter("byref_rows", "Rows of target forwards.")
        self.drafted = counter("byref_drafts_verified", "Drafts verified.")
        self.kept = counter("byref_drafts_accepted", "Drafts accepted.")
        self.preemptions = counter("byref_preemptions", "Requests that gave up their memory for others.")
        self.waiting = gauge("byref_requests_waiting", "Requests that wait for a row.")
        self.running = gauge("byref_requests_running", "Requests that run.")
        self.kv_used = gauge("byref_kv_used_tokens", "Tokens that the KV cache holds.")
        self.kv_capacity = gauge("byref_kv_capacity_tokens", "Tokens that the KV cache has room for.")
        self.hooks = gauge("byref_plugin_seconds", "Time inside a plugin's hooks since the start.", "plugin")
        self.plugin = gauge("byref_plugin_figure", "What a plugin has counted.", "plugin", "figure")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, about, registry=self.registry, buckets=buckets)

    def step(self, report: StepReport) -> None:
        """A step has ended."""
        self.steps.observe(report.seconds)
        self.forward.inc(report.forward_seconds)
        self.drafting.inc(report.draft_seconds)
        self.rows.inc(report.rows)
        self.tokens.inc(report.accepted)
        self.drafted.inc(report.drafted)
        self.kept.inc(report.drafts_kept)

    def completed(self, done: Completion) -> None:
        """A prompt has ended, with all its choices."""
        self.prompt_tokens.inc(len(done.prompt_ids))
        self.cached_tokens.inc(done.cached_tokens)
        times = done.timings
        self.queued.observe(times.queued)
        self.total.observe(times.total)
        if done.token_ids:
            self.first.observe(times.first_token)
        if len(done.token_ids) > 1:
            self.each.observe((times.total - times.first_token) / (len(done.token_ids) - 1))

    def page(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self.registry)

    def now(
        self, usage: Mapping[str, int], figures: Mapping[str, Mapping[str, float]], hooks: Mapping[str, float]
    ) -> None:
        """How things stand.

        Args:
            usage: of the engine, now.
            figures: by plugin, what it counted.
            hooks: by plugin, seconds inside its hooks.
        """
        self.waiting.set(usage["waiting"])
        self.running.set(usage["running"])
        self.kv_used.set(usage.get("used_tokens", 0))
        self.kv_capacity.set(usage.get("capacity_tokens", 0))
        for plugin, counted in figures.items():
            for name, value in counted.items():
                self.plugin.labels(plugin, name).set(value)
        for plugin, seconds in hooks.items():
            self.hooks.labels(plugin).set(seconds)
