"""A plugin that implements every hook a step calls, and the same work written into the forward by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract import ForwardContext, Key, State
from byref.contract.plugin import NoOptions
from byref.contract.requests import Reason, Request
from byref.contract.roles import BATCH, Site, Sizing
from byref.contract.specs import (
    AttentionSpec,
    EmbedSpec,
    LinearSpec,
    NormSpec,
    RotaryAttentionSpec,
    RotarySpec,
    RowSpec,
    Spec,
    TapSpec,
)
from byref.contract.step import LogitRows, Step, StepReport
from byref.engine import Engine


class Lengths(State):
    """A state as plugins have them: one buffer, refilled in place for each forward."""

    key: ClassVar[Key[Lengths]]
    roles = ("target",)

    def __init__(self, sizing: Sizing) -> None:
        self._longest = torch.zeros(1, dtype=torch.int64, device=sizing.device)

    def buffers(self) -> Mapping[str, Tensor]:
        return {"longest": self._longest}

    def refill(self, ctx: ForwardContext) -> None:
        """The longest context of the forward."""
        torch.amax(ctx.state(BATCH).lengths(ctx), 0, keepdim=True, out=self._longest)


Lengths.key = LENGTHS = Key("benchmark_lengths", Lengths)


class Everything(Plugin[NoOptions]):
    """Counts in every hook of a step, takes a tap, wraps every layer's attention and answers a spec."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name: str, options: NoOptions) -> None:
        super().__init__(name, options)
        self.steps = self.rows = self.taken = self.wrapped = self.live = 0
        self.reports: list[StepReport] = []

    @hookimpl
    def create_states(self, sizing: Sizing) -> Sequence[State]:
        return [Lengths(sizing)]

    @hookimpl
    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        if isinstance(spec, TapSpec):
            return self.take if spec.point == "layer" and spec.layer == 0 else None
        return self.narrow if isinstance(spec, RowSpec) else None

    @hookimpl
    def decorate(self, spec: Spec[Any], call: Callable[..., Any]) -> Callable[..., Any] | None:
        if not isinstance(spec, RotaryAttentionSpec):
            return None

        def wrapper(qkv: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
            self.wrapped += 1
            return call(qkv, positions, ctx)  # type: ignore[no-any-return]

        return wrapper

    @hookimpl
    def request_added(self, request: Request) -> None:
        self.live += 1

    @hookimpl
    def request_released(self, request: Request, reason: Reason) -> None:
        self.live -= 1

    @hookimpl
    def prepare_step(self, step: Step) -> None:
        self.steps += 1

    @hookimpl
    def prepare_forward(self, ctx: ForwardContext) -> None:
        ctx.state(LENGTHS).refill(ctx)

    @hookimpl
    def adjust_logits(self, rows: LogitRows) -> None:
        self.rows += len(rows)

    @hookimpl
    def commit(self, step: Step) -> None:
        self.steps += 1

    @hookimpl
    def step_done(self, report: StepReport) -> None:
        self.reports.append(report)

    def narrow(self, hidden: Tensor, ctx: ForwardContext) -> Tensor:
        """As core's own."""
        if ctx.logit_rows == ctx.rows:
            return hidden
        return hidden.index_select(0, ctx.state(BATCH).wanted(ctx))

    def take(self, hidden: Tensor, ctx: ForwardContext) -> None:
        """The tap."""
        self.taken += 1


class ByHand:
    """The step's hooks, each the plugin's own function: no host, no tuple, no `try`."""

    def __init__(self, plugin: Everything) -> None:
        self.prepare_step, self.commit, self.step_done = plugin.prepare_step, plugin.commit, plugin.step_done
        self.adjust_logits, self.prepare_forward = plugin.adjust_logits, plugin.prepare_forward

    def has(self, hook: str) -> bool:
        """All of them."""
        return True


class ModelByHand:
    """The model's forward in one function: no layer object, no coarse answer, no decorator, no tap.

    It calls the finest answers only (norms, projections, rotation, attention), the very ones the engine calls.
    """

    def __init__(self, engine: Engine, plugin: Everything) -> None:
        self.input_width, self.vocabulary = 0, engine.parts.units[0].model.vocabulary
        self._plugin = plugin
        found = {(type(b.spec), b.spec.name): b for b in engine.parts.binder.bound}
        self._embed = found[EmbedSpec, "model.embed_tokens"].call
        self._norm, self._head = found[NormSpec, "model.norm"].call, found[LinearSpec, "lm_head"].call
        specs = [b.spec for b in engine.parts.binder.bound if isinstance(b.spec, AttentionSpec)]
        self._layers = [self._layer(found, spec, i) for i, spec in enumerate(specs)]
        self._spec = specs[0]

    @staticmethod
    def _layer(found: Mapping[tuple[type, str], Any], spec: AttentionSpec, i: int) -> tuple[Callable[..., Any], ...]:
        def call(kind: type, name: str) -> Callable[..., Any]:
            return found[kind, f"model.layers.{i}.{name}"].call  # type: ignore[no-any-return]

        return (
            call(NormSpec, "input_layernorm"),
            call(LinearSpec, "self_attn.qkv"),
            found[RotarySpec, "rotary"].call,
            found[AttentionSpec, spec.name].call,
            call(LinearSpec, "self_attn.o_proj"),
            call(NormSpec, "post_attention_layernorm"),
            call(LinearSpec, "mlp.gate_up"),
            call(LinearSpec, "mlp.down_proj"),
        )

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        spec, plugin = self._spec, self._plugin
        heads, turned, dim, entry = spec.heads, spec.heads + spec.kv_heads, spec.key_dim, spec.heads * spec.key_dim
        silu = functional.silu
        x = self._embed(ids)
        tapped = False
        for norm, qkv, rotate, attend, out, mlp_norm, gate_up, down in self._layers:
            y = qkv(norm(x))
            plugin.wrapped += 1
            split = y.unflatten(-1, (-1, dim))
            rotate(split[:, :turned], positions, ctx)
            x = out(attend(split[:, :heads], y[:, entry:], ctx), x)
            both = gate_up(mlp_norm(x))
            inner = both.shape[-1] // 2
            x = down(silu(both[..., :inner]).mul_(both[..., inner:]), x)
            if not tapped:
                plugin.taken += 1
                tapped = True
        if ctx.logit_rows != ctx.rows:
            x = x.index_select(0, ctx.state(BATCH).wanted(ctx))
        return self._head(self._norm(x))  # type: ignore[no-any-return]
