"""Architectures, as a plugin like any other. Knows names of modules; imports none of them before they are asked for."""

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.plugin import NoOptions, Registry

ARCHITECTURES = {
    "DeepseekV32ForCausalLM": "deepseek_v32:DeepseekV32",
    "DeepseekV3ForCausalLM": "deepseek_v3:DeepseekV3",
    "DeepseekV4ForCausalLM": "deepseek_v4:DeepseekV4",
    "Gemma3ForCausalLM": "gemma3:Gemma3",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa:GlmMoeDsa",
    "LlamaForCausalLM": "llama:Llama",
    "MistralForCausalLM": "mistral:Mistral",
    "MixtralForCausalLM": "mixtral:Mixtral",
    "Phi3ForCausalLM": "phi3:Phi3",
    "Qwen2ForCausalLM": "qwen2:Qwen2",
    "Qwen3ForCausalLM": "qwen3:Qwen3",
    "Qwen3MoeForCausalLM": "qwen3:Qwen3Moe",
}
"""By the class name of transformers, which checkpoints carry."""
MODULES = {
    "DeepseekV3ForCausalLM.mtp": "deepseek_mtp:DeepseekMTP",
    "DeepseekV32ForCausalLM.mtp": "deepseek_mtp:DeepseekV32MTP",
    "DeepseekV4ForCausalLM.mtp": "deepseek_v4:DeepseekV4MTP",
    "GlmMoeDsaForCausalLM.mtp": "deepseek_mtp:GlmMoeDsaMTP",
}
"""Draft modules inside the checkpoints of those: a drafter's role has `{}.mtp` as its architecture."""


class Models(Plugin[NoOptions]):
    """Registers the architectures of this distribution."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry: Registry) -> None:
        for name, architecture in {**ARCHITECTURES, **MODULES}.items():
            registry.model(name, f"byref_models.{architecture}")
