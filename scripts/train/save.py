"""Checkpoint folders as they are published: names, dtypes, configuration, tokenizer. Knows no training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, pre_tokenizers
from torch import Tensor

from train.data import BOS, EOS, VOCABULARY
from train.deepseek import DeepSeek
from train.eagle import Eagle3
from train.mtp import Mtp

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

WIDE = ("e_score_correction_bias", "indexer.k_norm.weight", "indexer.k_norm.bias", "indexer.weights_proj.weight")
"""Ends of the names that stay in fp32, as published."""
SPECIAL = {BOS: "<s>", EOS: "</s>"}


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: itself if printable, else one from 256 up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]


def tokenizer() -> tokenizers.Tokenizer:
    """Every byte its own token, its value its id; two special tokens, never added by themselves."""
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(SPECIAL[i], special=True) for i in (BOS, EOS)])
    assert made.get_vocab_size() == VOCABULARY
    return made


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and what stands beside it."""
    tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS], "model_max_length": 4096}
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", names | more)
    write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False})


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """model.safetensors: bf16, but for WIDE and what is no floating number."""
    kept = {
        name: tensor if name.endswith(WIDE) or not tensor.is_floating_point() else tensor.bfloat16()
        for name, tensor in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in kept.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def save_llama(folder: Path, model: LlamaForCausalLM) -> None:
    """A Llama that transformers loads."""
    write_weights(folder, model.state_dict())
    write_config(folder, model.config, "LlamaForCausalLM")
    write_tokenizer(folder)


def write_config(folder: Path, config: Any, architecture: str) -> None:
    """config.json of a transformers configuration."""
    said = config.to_diff_dict() | {"architectures": [architecture], "dtype": "bfloat16"}
    write_json(folder / "config.json", said)


def save_eagle(folder: Path, head: Eagle3, config: Mapping[str, Any]) -> None:
    """An EAGLE-3 head: no embedding and no tokenizer, which are its target's."""
    write_weights(folder, head.state_dict())
    write_json(folder / "config.json", config)


def target_name(name: str) -> str:
    """The published name of a target's tensor."""
    return "lm_head.weight" if name == "head.weight" else f"model.{name}"


def module_name(name: str, layer: int) -> str:
    """The published name of a next-token module's tensor."""
    short = "shared_head.norm.weight" if name == "norm.weight" else name.removeprefix("block.")
    return f"model.layers.{layer}.{short}"


def published(target: DeepSeek, module: Mtp) -> dict[str, Tensor]:
    """Every tensor of a target and its module under its published name, shared ones twice."""
    at = target.config.num_hidden_layers
    names = {target_name(name): tensor for name, tensor in target.state_dict().items()}
    names |= {module_name(name, at): tensor for name, tensor in module.state_dict().items()}
    names[f"model.layers.{at}.embed_tokens.weight"] = target.embed_tokens.weight.detach()
    names[f"model.layers.{at}.shared_head.head.weight"] = target.head.weight.detach()
    return names


def save_deepseek(folder: Path, target: DeepSeek, module: Mtp) -> None:
    """A DeepSeek and its next-token module in one folder."""
    write_weights(folder, published(target, module))
    sparse = hasattr(target.config, "index_topk")
    write_config(folder, target.config, "DeepseekV32ForCausalLM" if sparse else "DeepseekV3ForCausalLM")
    write_tokenizer(folder)


def load_deepseek(folder: Path) -> tuple[DeepSeek, Mtp]:
    """The plain-torch forms, in fp32, of what `save_deepseek` wrote."""
    from transformers import AutoConfig

    target = DeepSeek(AutoConfig.from_pretrained(folder))
    module, tensors = Mtp(target), load_file(folder / "model.safetensors")
    target.load_state_dict({name: tensors[target_name(name)] for name in target.state_dict()})
    at = target.config.num_hidden_layers
    module.load_state_dict({name: tensors[module_name(name, at)] for name in module.state_dict()})
    return target.eval(), module.eval()


def load_eagle(folder: Path, target: LlamaForCausalLM) -> Eagle3:
    """The plain-torch form, in fp32, of what `save_eagle` wrote."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    head = Eagle3(config, target.model.embed_tokens)
    head.load_state_dict(load_file(folder / "model.safetensors"))
    return head.eval()


def load_llama(folder: Path) -> LlamaForCausalLM:
    """The Llama of `save_llama`, in fp32."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
