"""Where rows are short, drafts wait, and no decode does."""

from __future__ import annotations

from drafts import Told
from engines import greedy, start

PROMPTS = [[5 + i, 9, 77] for i in range(8)]


def test_every_decode_gets_its_row_before_any_gets_drafts(one_layer):
    """Eight decodes with six drafts each want 56 rows of eleven: each gets its token at every step all the same."""
    options = {"told": {"most": 6, "right": 0.0}}
    with start(one_layer, {"told": Told}, options, max_rows=11) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = {tuple(prompt): [0] * 64 for prompt in PROMPTS}
        for prompt in PROMPTS:
            engine.add(prompt, greedy(40))
        while engine.usage()["running"] < len(PROMPTS) or any(
            live.request.generated == 0 for live in engine._live.values()
        ):
            engine.step()
        for _ in range(8):
            assert len({chunk.request_id for chunk in engine.step()}) == len(PROMPTS)
        assert told.accepted  # some drafts were tried with what rows were left
