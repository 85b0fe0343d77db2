"""Raises in the hook it is told to, for the requests or at the step it is told to."""

from pydantic import BaseModel, ConfigDict

from byref import Plugin, PluginInfo, hookimpl


class ThrowerOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    hook: str
    step: int = 2


class ThrowerRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Thrower(Plugin[ThrowerOptions]):
    info = PluginInfo(api_version=1)
    Options = ThrowerOptions
    RequestOptions = ThrowerRequest
    closed = 0

    def throw(self, hook):
        if hook == self.options.hook:
            raise ValueError(f"thrown in {hook}")

    @hookimpl
    def request_added(self, request):
        if self.name in request.options:
            self.throw("request_added")

    @hookimpl
    def request_released(self, request):
        if self.name in request.options:
            self.throw("request_released")

    @hookimpl
    def prepare_step(self, step):
        if step.plan.number >= self.options.step:
            self.throw("prepare_step")

    @hookimpl
    def shutdown(self):
        self.closed += 1

    @hookimpl
    def prepare_forward(self):
        self.throw("prepare_forward")

    @hookimpl
    def step_done(self):
        self.throw("step_done")
