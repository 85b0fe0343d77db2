"""A tiny Llama with gated delta layers between its own: what has a recurrent state per request, for tests of states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from checkpoints import save_llama
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn import functional

from byref.contract import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.roles import BATCH, Pool
from byref.contract.specs import PoolSpec, Spec
from byref_models.llama import Llama

KEY, VALUE = 8, 16
"""A state is [KEY, VALUE]."""
ARCHITECTURE = "DeltaLlamaForCausalLM"


class Mix(Protocol):
    """x [rows, width] -> [rows, width]."""

    def __call__(self, x: Tensor, ctx) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class DeltaSpec(Spec[Mix]):
    """The gated delta rule (Yang et al. 2024) over the request's tokens."""

    width: int

    @property
    def pool(self) -> str:
        return f"{self.name}.state"


class DeltaBlock:
    """A gated delta layer, then one of Llama's."""

    def __init__(self, ask, i, width, block):
        self.block = block
        self.mix = ask(self, "mix", DeltaSpec(role=ask.role, layer=i, name=f"model.layers.{i}.delta", width=width))

    def __call__(self, x, positions, ctx):
        return self.block(x + self.mix(x, ctx), positions, ctx)


class DeltaLlama(Llama):
    """Every second layer has a state."""

    def layer(self, config, ask, i):
        block = super().layer(config, ask, i)
        return DeltaBlock(ask, i, config.hidden_size, block) if i % 2 else block


class GatedDelta:
    """S <- a S - b k (k S) + b k v, out = q S: row after row, along the parents of a tree. Its weights follow from the
    layer's number."""

    capturable = False  # it looks at the windows

    def __init__(self, spec: DeltaSpec, pool: Pool) -> None:
        draw = torch.Generator().manual_seed(spec.layer)
        self.pool = pool
        self.into = torch.randn(spec.width, 2 * KEY + VALUE + 2, generator=draw) / spec.width**0.5
        self.out = torch.randn(VALUE, spec.width, generator=draw) * 0.5

    def __call__(self, x: Tensor, ctx) -> Tensor:
        batch = ctx.state(BATCH)
        q, k, v, a, b = (x @ self.into).split((KEY, KEY, VALUE, 1, 1), -1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        a, b = (a + 2).sigmoid(), b.sigmoid()
        offsets = batch.offsets(ctx)
        before = self.pool.read(self.pool.slots(batch.request_rows(ctx), offsets - 1)) * (offsets > 0)[:, None]
        states, seen = torch.zeros(ctx.rows, KEY * VALUE), torch.zeros(ctx.rows, VALUE)
        for request, (first, window) in enumerate(zip(batch.starts(ctx).tolist(), batch.host(), strict=False)):
            for row in range(len(window.tokens)):
                i, parent = first + row, window.parent(row)
                state = (states[first + parent] if parent >= 0 else before[request]).view(KEY, VALUE)
                state = a[i] * state + b[i] * torch.outer(k[i], v[i] - k[i] @ state)
                states[i], seen[i] = state.flatten(), q[i] @ state
        self.pool.write(ctx, states)
        return seen @ self.out


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    drafts: int = 0
    """Windows hold up to so many drafts, of whomever."""


class Delta(Plugin[Options]):
    """Brings the architecture, its states and its layer."""

    info = PluginInfo(api_version=API_VERSION, requires=("kv.pools",))
    Options = Options

    @hookimpl
    def register(self, registry):
        registry.model(ARCHITECTURE, "gated_delta:DeltaLlama")

    @hookimpl
    def refine(self, specs):
        kept = {"width": KEY * VALUE, "dtype": torch.float32, "per": "request", "versions": self.options.drafts + 1}
        own = [spec for spec in specs if isinstance(spec, DeltaSpec)]
        return [*specs, *(PoolSpec(name=one.pool, role=one.role, layer=one.layer, **kept) for one in own)]

    @hookimpl
    def bind(self, spec, site):
        return GatedDelta(spec, site.kv.pool(spec.role, spec.pool)) if isinstance(spec, DeltaSpec) else None


def save_delta(folder: Path, seed: int = 4) -> Path:
    """A random one of two layers, the second of them with a state."""
    save_llama(folder, seed, num_hidden_layers=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [ARCHITECTURE]}))
    return folder
