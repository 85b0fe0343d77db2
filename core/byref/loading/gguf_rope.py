"""Rotary scaling of a GGUF file in transformers' words. Knows keys and one tensor's values, no file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from byref.contract.errors import ModelError

FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies: how a file says what transformers calls `llama3`."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""The two sets of divisors of what transformers calls `longrope`."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_PREFIX = "rope.scaling."
_YARN = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_SILENT = frozenset({"type", "finetuned"})


def rope_scaling(
    settings: Mapping[str, Any], factors: Mapping[str, Sequence[float]], path: str
) -> dict[str, Any] | None:
    """`rope_parameters` without the base; None where positions are plain.

    Args:
        settings: the file's metadata without the architecture's prefix.
        factors: the values of `FACTORS`, or of `LONG_FACTORS` and `SHORT_FACTORS`, by name, if the file has them.
        path: the file, for errors.

    Raises:
        ModelError: a scaling that these words cannot say exactly.
    """
    kind = settings.get(f"{_PREFIX}type", "none")
    keys = {key.removeprefix(_PREFIX): value for key, value in settings.items() if key.startswith(_PREFIX)}
    keys = {key: value for key, value in keys.items() if key not in _SILENT}
    if FACTORS in factors:
        return _llama3(settings, factors[FACTORS], path)
    if factors:
        return _longrope(keys, factors, path)
    if kind == "none":
        return None
    if kind == "linear" and set(keys) == {"factor"}:
        return {"rope_type": "linear", **keys}
    if kind == "yarn" and "factor" in keys and set(keys) <= set(_YARN):
        return {"rope_type": "yarn", **{_YARN[key]: value for key, value in keys.items()}}
    raise _unknown(
        f"the rotary scaling {kind!r} with {', '.join(sorted(keys)) or 'no setting'} is not understood", path
    )


def _longrope(keys: Mapping[str, Any], factors: Mapping[str, Sequence[float]], path: str) -> dict[str, Any]:
    if set(factors) != {LONG_FACTORS, SHORT_FACTORS} or not set(keys) <= {"attn_factor", "original_context_length"}:
        raise _unknown(f"the rotary factors {', '.join(sorted(factors))} with {', '.join(sorted(keys))}", path)
    both = {"long_factor": list(factors[LONG_FACTORS]), "short_factor": list(factors[SHORT_FACTORS])}
    return {"rope_type": "longrope", "attention_factor": float(keys.get("attn_factor", 1.0)), **both}


def _llama3(settings: Mapping[str, Any], factors: Sequence[float], path: str) -> dict[str, Any]:
    """The file keeps the resulting divisors, not what they were made of; find that, and check that it agrees."""
    factor, base = float(max(factors)), settings.get("rope.freq_base", 10000.0)
    wanted = [_divisor(base ** (i / len(factors)), factor) for i in range(len(factors))]
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(wanted, factors, strict=True)):
        raise _unknown(f"the rotary factors in {FACTORS} are not those of Llama 3", path)
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _divisor(scale: float, factor: float) -> float:
    """By how much `llama3` divides the frequency 1 / scale: not at all for short waves, by `factor` for long ones."""
    waves = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * scale)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = min(1.0, max(0.0, (waves - low) / (high - low)))
    return 1 / ((1 - smooth) / factor + smooth)


def _unknown(what: str, path: str) -> ModelError:
    return ModelError(what, where=path, hint="the same model as a Hugging Face folder")
