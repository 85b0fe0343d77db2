"""Rotary embedding turns pairs by the angle of their position, in both layouts, and leaves the rest alone."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from windows import Rows, request, sizing_of

from byref.answers.rotary import _tables, answer_rotary
from byref.contract import Window
from byref.contract.specs import RotarySpec

FREQUENCIES = (1.0, 0.3, 0.05, 0.001)


def turned(x, positions, layout, amplitude):
    """Each pair as a complex number, times e^(i * angle)."""
    pairs = (
        x.double().unflatten(-1, (2, -1)).transpose(-1, -2) if layout == "half" else x.double().unflatten(-1, (-1, 2))
    )
    angles = positions.double()[:, None, None] * torch.tensor(FREQUENCIES).double()
    pairs = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.full_like(angles, amplitude), angles)
    )
    return (pairs.transpose(-1, -2) if layout == "half" else pairs).flatten(-2)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("amplitude", [1.0, 1.3])
@pytest.mark.parametrize("width", [8, 12])
def test_it_turns_pairs(layout, amplitude, width):
    torch.manual_seed(1)
    spec = RotarySpec(name="rotary", dim=8, inverse_frequencies=FREQUENCIES, amplitude=amplitude, layout=layout)
    rows = Rows(sizing_of(max_context=40))
    rotate = answer_rotary(spec, SimpleNamespace(sizing=rows.sizing))
    for start in (0, 30, 3):
        window = Window("a", 1, "target", start, (1,) * 6)
        whole = torch.randn(6, 5, width)
        x = whole.clone()

        def body(ctx, x=x, start=start):
            rotate(x[:, :3], torch.arange(start, start + 6), ctx)
            rotate(x[:, 3:4], torch.arange(start, start + 6), ctx)

        rows.run([window], body)
        right = turned(whole[:, :4, :8], torch.arange(start, start + 6), layout, amplitude)
        torch.testing.assert_close(x[:, :4, :8].double(), right, atol=1e-5, rtol=1e-5)
        assert torch.equal(x[:, 4], whole[:, 4])
        assert torch.equal(x[..., 8:], whole[..., 8:])


def test_the_last_positions_of_an_engine_have_angles():
    """Drafts stand beyond the context."""
    spec = RotarySpec(name="rotary", dim=8, inverse_frequencies=FREQUENCIES, layout="half")
    rows = Rows(sizing_of(max_context=40, max_drafts=6))
    rotate = answer_rotary(spec, SimpleNamespace(sizing=rows.sizing))
    x = torch.ones(1, 1, 8)
    rows.run([Window("a", request("a", 1).row, "target", 45, (1,))], lambda ctx: rotate(x, torch.tensor([45]), ctx))
    torch.testing.assert_close(
        x.double(), turned(torch.ones(1, 1, 8), torch.tensor([45]), "half", 1.0), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_inverse_turns_back(layout):
    spec = RotarySpec(name="rotary", dim=8, inverse_frequencies=FREQUENCIES, layout=layout)
    rows = Rows(sizing_of(max_context=40))
    there, back = (
        answer_rotary(one, SimpleNamespace(sizing=rows.sizing))
        for one in (spec, replace(spec, name="back", inverse=True))
    )
    whole = torch.randn(3, 2, 8)
    x, at = whole.clone(), torch.arange(5, 8)

    def body(ctx):
        there(x, at, ctx)
        assert not torch.allclose(x, whole, atol=0.1)
        back(x, at, ctx)

    rows.run([Window("a", 1, "target", 5, (1,) * 3)], body)
    torch.testing.assert_close(x, whole)


def test_layers_that_turn_alike_share_their_tables():
    spec = RotarySpec(name="rotary", dim=8, inverse_frequencies=FREQUENCIES, layout="half")
    site = SimpleNamespace(sizing=sizing_of(max_context=41))
    tables = _tables(spec, site)
    assert _tables(replace(spec, name="another", layer=3), site) is tables
    others = (replace(spec, inverse=True), replace(spec, amplitude=2.0), replace(spec, layout="interleaved"))
    assert all(_tables(one, site) is not tables for one in others)
    gone = weakref.ref(tables)
    del tables
    assert gone() is None
