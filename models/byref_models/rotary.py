"""From a configuration's rotary parameters to frequencies. Knows transformers' kinds of scaling; no layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from byref.contract.errors import ModelError
from byref.contract.specs import LongRotarySpec, RotarySpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONSTANT = frozenset({"linear", "llama3", "yarn"})
"""Kinds whose frequencies are the same at every length."""


def rotary(
    config: PretrainedConfig,
    role: str,
    dim: int,
    layer_type: str | None = None,
    layout: Literal["half", "interleaved"] = "half",
) -> RotarySpec:
    """The rotary embedding of a configuration, in the words of transformers' `rope_type`.

    - default, linear, llama3, yarn: one set of frequencies.
    - dynamic: the plain frequencies. They change only beyond `max_position_embeddings`, where no engine goes.
    - longrope: the short factors where the engine's `max_context` is at most `original_max_position_embeddings`,
      the long ones for every position otherwise.

    Args:
        config: with `rope_parameters`.
        role: of the model.
        dim: elements of a head that are rotated.
        layer_type: whose parameters, where kinds of layers differ.
        layout: which elements of a head are turned together.

    Raises:
        ModelError: a kind that is not listed above.
    """
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    kind = parameters["rope_type"]
    name = f"rotary.{layer_type}" if layer_type else "rotary"
    amplitude, long = 1.0, None
    if kind in {"default", "dynamic"}:
        frequencies = _plain(float(parameters["rope_theta"]), dim)
    elif kind in CONSTANT:
        frequencies, amplitude = _scaled(config, kind, layer_type)
    elif kind == "longrope":
        beyond = int(parameters["original_max_position_embeddings"])
        frequencies, amplitude = _scaled(config, kind, layer_type)
        long = LongRotarySpec(
            beyond=beyond, inverse_frequencies=_scaled(config, kind, layer_type, seq_len=beyond + 1)[0]
        )
    else:
        known = ", ".join(sorted(CONSTANT | {"default", "dynamic", "longrope"}))
        raise ModelError(f"the rotary scaling {kind!r} is unknown", where="rope_parameters", hint=f"one of {known}")
    return RotarySpec(
        role=role,
        name=name,
        dim=2 * len(frequencies),
        inverse_frequencies=frequencies,
        amplitude=amplitude,
        layout=layout,
        long=long,
    )


def _plain(theta: float, dim: int) -> tuple[float, ...]:
    """In fp32, as models are trained and as transformers does: a last digit more or less is 1e-4 of an angle at
    position 1,000, and shows in log-probabilities."""
    import torch

    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
    return tuple((1.0 / theta**exponents).tolist())


def _scaled(
    config: PretrainedConfig, kind: str, layer_type: str | None, **length: Any
) -> tuple[tuple[float, ...], float]:
    """Frequencies and amplitude by transformers' own rule."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    with torch.device("cpu"):  # a model is built on the meta device, and these are values
        inverse, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", layer_type=layer_type, **length)
    return tuple(inverse.tolist()), float(amplitude)
