"""Checkpoints with draft modules behind their layers, named as published ones name them, and transformers' module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from checkpoints import byte_level
from families import EVERY, random_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel


def save_with_module(folder: Path, name: str, seed: int = 0, **changes) -> tuple[PreTrainedModel, MtpModel]:
    """A random model of the family `name` with one module, in `folder`; both as transformers has them."""
    model = random_model(EVERY[name], seed, **changes)
    model.config.num_mtp_layers = 1
    if getattr(model.config, "layer_types", None):
        model.config.mtp_layer_types = ["full_attention"]
        model.config.mtp_mlp_layer_types = ["sparse"]
        model.set_attn_implementation("eager")  # an indexer wants its mask as a tensor
    torch.manual_seed(seed + 100)
    module = MtpModel(model, 1).eval()
    randomise(module.layers)
    # Layers that hand their selection on return it beside their output.
    module.layers[0].mtp_block.register_forward_hook(lambda _, args, out: out[0] if isinstance(out, tuple) else out)
    layer = f"model.layers.{model.config.num_hidden_layers}"
    save_beside(folder, model, layer, module.layers[0])
    return model, module


def randomise(module: nn.Module) -> None:
    """Random weights, wide enough that likeliest tokens stand apart."""
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            wide = 0.2 if tensor.dim() > 1 else 0.1
            tensor.copy_(torch.randn_like(tensor) * wide + (1.0 if "norm" in key and key.endswith("weight") else 0.0))


def save_beside(folder: Path, model: PreTrainedModel, prefix: str, module: nn.Module) -> None:
    """The model, and the module's tensors under `prefix`."""
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    for key, tensor in module.state_dict().items():
        tensors |= published(prefix, key.removeprefix("mtp_block."), tensor)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def published(layer: str, key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """One tensor of transformers' module under the names of a checkpoint."""
    if key.startswith("post_norm."):
        return {f"{layer}.shared_head.norm.weight": tensor}
    if key.endswith("experts.gate_up_proj"):
        found = {}
        for e, both in enumerate(tensor):
            for part, weight in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                found[f"{layer}.mlp.experts.{e}.{part}.weight"] = weight.contiguous()
        return found
    if key.endswith("experts.down_proj"):
        return {f"{layer}.mlp.experts.{e}.down_proj.weight": w.contiguous() for e, w in enumerate(tensor)}
    return {f"{layer}.{key}": tensor.contiguous()}


@torch.inference_mode()
def module_logits(
    model: PreTrainedModel, module: MtpModel, ids: list[int], steps: int = 1, *, carried: bool = False
) -> list[torch.Tensor]:
    """Logits [rows, vocabulary] of the module over all of `ids` for step 0, then of one more row for each later step.

    `carried`: a later step sees what the last row of step 0 selected, the newest rows in place of the worst.
    """
    hidden = model.model(torch.tensor([ids[:-1]])).last_hidden_state
    tokens, found, first = list(ids[1:]), [], len(ids) - 2
    block = module.layers[0].mtp_block.self_attn
    for step in range(steps):

        def going_on(_, args, chosen, step=step):
            width = chosen.shape[-1]
            for later in range(1, step + 1):
                row = chosen[0, first + later - 1].clone()
                row[width - later] = first + later
                chosen[0, first + later] = row
            return chosen

        hook = block.indexer.register_forward_hook(going_on) if carried else None
        positions = torch.arange(len(tokens))[None]
        out = module.forward_layer(0, hidden, positions, None, input_ids=torch.tensor([tokens]))
        if hook:
            hook.remove()
        logits = module._project_to_logits(out)[0]
        found.append(logits if step == 0 else logits[-1:])
        hidden = torch.cat((hidden, out[:, -1:]), 1)
        tokens.append(int(logits[-1].argmax()))
    return found


Said = Callable[[list[int], int], list[torch.Tensor]]


def save_streams_module(folder: Path, seed: int = 0) -> Said:
    """A random DeepSeek-V4 with one module in `folder`; its logits as `module_logits`, from transformers' own layers."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

    model = random_model(EVERY["DeepSeek-V4"], seed)
    config, width = model.config, model.config.hidden_size
    own = EVERY["DeepSeek-V4"].config(num_hidden_layers=1, layer_types=["sliding_attention"], mlp_layer_types=["moe"])
    own._attn_implementation = "eager"
    module = nn.ModuleDict(
        {name: v4.DeepseekV4RMSNorm(width, eps=config.rms_norm_eps) for name in ("enorm", "hnorm", "norm")}
    )
    module.update({name: nn.Linear(width, width, bias=False) for name in ("e_proj", "h_proj")})
    layer, head = v4.DeepseekV4DecoderLayer(own, 0), v4.DeepseekV4HyperHead(config)
    torch.manual_seed(seed + 100)
    for part in (module, layer, head):
        randomise(part.eval())
    parts = {**module.state_dict(), **layer.state_dict(), **{f"hc_head.{k}": t for k, t in head.state_dict().items()}}
    save_beside(folder, model, "mtp.0", SimpleNamespace(state_dict=lambda: parts))
    streams: list[torch.Tensor] = []
    model.model.hc_head.register_forward_pre_hook(lambda _, args: streams.append(args[0]))

    @torch.inference_mode()
    def said(ids: list[int], steps: int) -> list[torch.Tensor]:
        model(torch.tensor([ids[:-1]]))
        hidden, tokens, found = streams[-1], list(ids[1:]), []
        for step in range(steps):
            ahead = torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))
            mask = torch.zeros(ahead.shape).masked_fill((ahead < 0) | (ahead >= config.sliding_window), -1e30)
            positions, token = torch.arange(len(tokens))[None], torch.tensor([tokens])
            embedded = model.model.embed_tokens(token)
            x = module["e_proj"](module["enorm"](embedded)).unsqueeze(2) + module["h_proj"](module["hnorm"](hidden))
            turned = {"main": model.model.rotary_emb(embedded, position_ids=positions, layer_type="main")}
            x = layer(
                x, input_ids=token, position_embeddings=turned, position_ids=positions, attention_mask=mask[None, None]
            )
            logits = model.lm_head(module["norm"](head(x)))[0]
            found.append(logits if step == 0 else logits[-1:])
            hidden = torch.cat((hidden, x[:, -1:]), 1)
            tokens.append(int(logits[-1].argmax()))
        return found

    return said
