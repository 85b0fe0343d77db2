"""Broken in what they declare or implement."""

from pydantic import BaseModel, ConfigDict, Field

from byref import Plugin, PluginInfo, hookimpl

NOW = PluginInfo(api_version=1)

instance = object()


class NoInfo(Plugin):
    pass


class OldApi(Plugin):
    info = PluginInfo(api_version=0)


class NewApi(Plugin):
    info = PluginInfo(api_version=99)


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid")
    threshold: float = Field(default=0.5, le=1.0)
    needed: str


class Options(Plugin):
    info = NOW
    Options = Fields


class Constructor(Plugin):
    info = NOW

    def __init__(self, name, options):
        raise OSError("no licence file")


class UnknownHook(Plugin):
    info = NOW

    @hookimpl
    def step_dome(self, report):
        pass


class UnknownArgument(Plugin):
    info = NOW

    @hookimpl
    def step_done(self, report, weather):
        pass


class Wrapper(Plugin):
    info = NOW

    @hookimpl(wrapper=True)
    def prepare_forward(self, ctx):
        return (yield)


class Unmarked(Plugin):
    info = NOW

    def step_done(self, report):
        pass


class Coroutine(Plugin):
    info = NOW

    @hookimpl
    async def step_done(self, report):
        pass


class Lonely(Plugin):
    info = PluginInfo(api_version=1, requires=("test.gift",))


class Hostile(Plugin):
    info = PluginInfo(api_version=1, conflicts=("test.count",))


class Chicken(Plugin):
    info = PluginInfo(api_version=1, provides=("test.chicken",), requires=("egg",))


class Egg(Plugin):
    info = PluginInfo(api_version=1, requires=("test.chicken",))


class BadRegister(Plugin):
    info = NOW

    @hookimpl
    def register(self, registry):
        registry.model("X", "no colon")


class Announces(Plugin):
    info = NOW

    @hookimpl
    def register(self, registry):
        registry.model("XForCausalLM", f"{self.name}:X")
