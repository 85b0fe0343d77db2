"""A plugin that requires a capability, and the one that provides it."""

from byref import Plugin, PluginInfo, hookimpl


class Needy(Plugin):
    info = PluginInfo(api_version=1, requires=("test.gift", "kv.rewind"))

    @hookimpl
    def prepare_step(self, step):
        step.append(self.name)


class Giver(Plugin):
    info = PluginInfo(api_version=1, provides=("test.gift",))

    @hookimpl
    def prepare_step(self, step):
        step.append(self.name)
