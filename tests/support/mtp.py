"""Checkpoints with draft modules behind their layers, named as published ones name them, and transformers' module."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoints import byte_level
from families import EVERY, random_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

JOINED = {"enorm", "hnorm", "eh_proj"}


def save_with_module(folder: Path, name: str, seed: int = 0, **changes) -> tuple[PreTrainedModel, MtpModel]:
    """A random model of the family `name` with one module, in `folder`; both as transformers has them."""
    model = random_model(EVERY[name], seed, **changes)
    kinds = {"mtp_layer_types": ["indexed_attention"], "mtp_mlp_layer_types": ["sparse"], "num_mtp_layers": 1}
    for field, value in kinds.items():
        if hasattr(model.config, field.removeprefix("mtp_")) or field == "num_mtp_layers":
            setattr(model.config, field, value)
    torch.manual_seed(seed + 100)
    module = MtpModel(model, 1).eval()
    with torch.no_grad():
        for key, tensor in module.layers.state_dict().items():
            wide = 0.2 if tensor.dim() > 1 else 0.1
            tensor.copy_(torch.randn_like(tensor) * wide + (1.0 if "norm" in key and key.endswith("weight") else 0.0))
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    for key, tensor in module.layers[0].state_dict().items():
        tensors |= published(f"model.layers.{model.config.num_hidden_layers}", key, tensor)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model, module


def published(layer: str, key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """One tensor of transformers' module under the names of a checkpoint."""
    if key.startswith("post_norm."):
        return {f"{layer}.shared_head.norm.weight": tensor}
    key = key.removeprefix("mtp_block.")
    if key.endswith("experts.gate_up_proj"):
        found = {}
        for e, both in enumerate(tensor):
            gate, up = both.chunk(2)
            for part, weight in (("gate_proj", gate), ("up_proj", up)):
                found[f"{layer}.mlp.experts.{e}.{part}.weight"] = weight.contiguous()
        return found
    if key.endswith("experts.down_proj"):
        return {f"{layer}.mlp.experts.{e}.down_proj.weight": w.contiguous() for e, w in enumerate(tensor)}
    return {f"{layer}.{key}": tensor.contiguous()}


@torch.inference_mode()
def module_logits(model: PreTrainedModel, module: MtpModel, ids: list[int], steps: int = 1) -> list[torch.Tensor]:
    """Logits [rows, vocabulary] of the module over all of `ids` for step 0, then of one more row for each later step."""
    hidden = model.model(torch.tensor([ids[:-1]])).last_hidden_state
    tokens, found = list(ids[1:]), []
    for step in range(steps):
        positions = torch.arange(len(tokens))[None]
        out = module.forward_layer(0, hidden, positions, None, input_ids=torch.tensor([tokens]))
        logits = module._project_to_logits(out)[0]
        found.append(logits if step == 0 else logits[-1:])
        hidden = torch.cat((hidden, out[:, -1:]), 1)
        tokens.append(int(logits[-1].argmax()))
    return found
