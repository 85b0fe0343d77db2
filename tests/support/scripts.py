"""Plugins that act out a test: one that fixes the tokens a model yields, one that notes and raises in any hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byref.contract import API_VERSION, Plugin, PluginInfo, hookimpl


class Forced(Plugin):
    """Every row yields the token that `script` has for its prompt and position."""

    info = PluginInfo(api_version=API_VERSION, lossless=False)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.script: Mapping[tuple[int, ...], Sequence[int]] = {}

    @hookimpl
    def adjust_logits(self, rows):
        for info, logits in rows:
            prompt = info.request.prompt
            if not info.is_prompt and prompt in self.script:
                script, at = self.script[prompt], info.position - len(prompt)
                logits.fill_(float("-inf"))
                logits[script[min(at, len(script) - 1)]] = 0.0


class Noted(Plugin):
    """Notes the events of requests, and raises where and when a test says: `raises` maps a hook to a condition."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.raises = {}
        self.events: list[tuple] = []
        self.most_running = 0

    def _pass(self, hook, subject):
        if hook in self.raises and self.raises[hook](subject):
            raise ValueError(f"thrown in {hook}")

    @hookimpl
    def request_added(self, request):
        assert request.row > 0
        self._pass("request_added", request)
        self.events.append(("added", request.id))

    @hookimpl
    def request_released(self, request, reason):
        assert request.row > 0
        self.events.append((reason.value, request.id))
        self._pass("request_released", request)

    @hookimpl
    def prepare_step(self, step):
        self._pass("prepare_step", step)

    @hookimpl
    def prepare_forward(self, ctx):
        self._pass("prepare_forward", ctx)

    @hookimpl
    def adjust_logits(self, rows):
        self._pass("adjust_logits", rows)

    @hookimpl
    def commit(self, step):
        self._pass("commit", step)

    @hookimpl
    def step_done(self, report):
        self.most_running = max(self.most_running, report.running)
        self._pass("step_done", report)

    def assert_balanced(self):
        """Every request that was added was released, once for each time."""
        held = {}
        for event, request in self.events:
            assert held.get(request, False) == (event != "added"), f"{request}: {event} out of turn in {self.events}"
            held[request] = event == "added"
        assert not any(held.values())


def noted(engine) -> Noted:
    """The instance in an engine started with {"noted": Noted}."""
    return engine.parts.host.plugin("noted").instance
