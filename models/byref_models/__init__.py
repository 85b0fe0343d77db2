"""Architectures, as a plugin like any other. Knows names of modules; imports none of them before they are asked for."""

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.plugin import NoOptions, Registry

ARCHITECTURES = {
    "Gemma3ForCausalLM": "gemma3:Gemma3",
    "LlamaForCausalLM": "llama:Llama",
    "MistralForCausalLM": "mistral:Mistral",
    "MixtralForCausalLM": "mixtral:Mixtral",
    "Phi3ForCausalLM": "phi3:Phi3",
    "Qwen2ForCausalLM": "qwen2:Qwen2",
    "Qwen3ForCausalLM": "qwen3:Qwen3",
    "Qwen3MoeForCausalLM": "qwen3:Qwen3Moe",
}
"""By the class name of transformers, which checkpoints carry."""


class Models(Plugin[NoOptions]):
    """Registers the architectures of this distribution."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry: Registry) -> None:
        for name, architecture in ARCHITECTURES.items():
            registry.model(name, f"byref_models.{architecture}")
