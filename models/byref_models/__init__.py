"""Architectures, as a plugin like any other. Knows names of modules; imports none of them before they are asked for."""

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.plugin import NoOptions, Registry


class Models(Plugin[NoOptions]):
    """Registers the architectures of this distribution."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.model("LlamaForCausalLM", "byref_models.llama:Llama")
