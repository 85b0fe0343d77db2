"""Scores, choices, codecs, compressed entries and states, each against the rule it follows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from families import save_family
from windows import Rows, request, sizing_of

from byref.answers.fine import answer_layer_norm
from byref.contract import ConfigError, PluginError, Window
from byref.contract.roles import TARGET
from byref.contract.sparse import CompressSpec, IndexSpec
from byref.contract.specs import AttentionSpec, LayerNormSpec, NormSpec, PoolSpec, RotarySpec, SelectionSpec
from byref_dsa import scoring
from byref_dsa.codecs import Fp8Keys, hadamard, round_fp8
from byref_dsa.layout import Layout
from byref_dsa.scoring import best, index_scores
from byref_dsa.states import NOTHING, SlotMappings, TopKShare


def plain_scores(q, keys, weights):
    """Head by head, key by key."""
    requests, width, heads, dim = q.shape
    out = torch.zeros(requests, width, keys.shape[1], dtype=torch.float64)
    for h in range(heads):
        product = torch.einsum("rwd,rkd->rwk", q[:, :, h].double(), keys.double())
        out += weights[:, :, h, None].double() * product.clamp(min=0)
    return out * heads**-0.5 * dim**-0.5


@pytest.mark.parametrize("block", [1, 200, 1 << 22])
def test_scores_are_sums_of_weighted_positive_products(monkeypatch, block):
    monkeypatch.setattr(scoring, "BLOCK", block)
    draw = torch.Generator().manual_seed(0)
    q, keys = torch.randn(3, 5, 6, 8, generator=draw), torch.randn(3, 11, 8, generator=draw)
    weights = torch.randn(3, 5, 6, generator=draw)
    found, expected = index_scores(q, keys, weights), plain_scores(q, keys, weights)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    assert (expected < 0).any(), "weights may be negative"
    without = torch.einsum("rwhd,rkd,rwh->rwk", q, keys, weights)
    assert not torch.allclose(found, without * (6 * 8) ** -0.5, atol=1e-2)


def chosen_by_hand(scores, seen, k):
    visible = [i for i in range(len(scores)) if seen[i]]
    ranked = sorted(visible, key=lambda i: (-scores[i] if scores[i] else 0.0, i))[:k]
    return ranked + [NOTHING] * (k - len(ranked))


def test_the_best_are_chosen_by_score_and_then_by_position():
    draw = random.Random(1)
    values = [-2.0, -1.0, -0.0, 0.0, 0.0, 1e-30, 1.0, 3.0, float("inf")]
    rows = [[draw.choice(values) for _ in range(13)] for _ in range(40)]
    seen = [[draw.random() < 0.6 for _ in range(13)] for _ in range(40)]
    found = best(torch.tensor(rows), torch.tensor(seen), 5).tolist()
    assert found == [chosen_by_hand(row, see, 5) for row, see in zip(rows, seen, strict=True)]
    assert any(NOTHING in row for row in found)


def test_what_a_row_does_not_see_may_be_anything():
    scores = torch.tensor([[float("nan"), 1.0, float("inf"), 0.5]])
    assert best(scores, torch.tensor([[False, True, False, True]]), 3).tolist() == [[1, 3, NOTHING]]


def test_a_rotation_of_both_sides_keeps_products_and_one_of_one_side_does_not():
    draw = torch.Generator().manual_seed(2)
    q, k = torch.randn(7, 128, generator=draw), torch.randn(9, 128, generator=draw)
    torch.testing.assert_close(hadamard(q) @ hadamard(k).T, q @ k.T, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(hadamard(q) @ k.T, q @ k.T, atol=1.0)
    torch.testing.assert_close(hadamard(hadamard(q)), q, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="power of two"):
        hadamard(torch.zeros(3, 24))


@pytest.mark.parametrize("width", [16, 128, 192])
def test_fp8_keys_keep_three_bits_and_their_scales(width):
    keys = (
        torch.randn(5, width, generator=torch.Generator().manual_seed(3))
        * torch.tensor([1e-3, 1, 30, 500, 1e5])[:, None]
    )
    codec = Fp8Keys(torch.float32)
    stored = codec.encode(keys)
    assert stored.shape == (5, codec.width(width))
    found = codec.decode(stored)
    largest = keys.abs().amax(-1, keepdim=True)
    assert ((found - keys).abs() <= keys.abs() / 16 + largest / 448 / 2).all()
    assert torch.equal(round_fp8(keys), found)
    assert torch.equal(codec.decode(codec.encode(found)), found)


def test_the_keys_norm_has_a_bias_and_its_own_eps():
    tensors = {"n.weight": torch.tensor([1.0, 2, 3, 4]), "n.bias": torch.tensor([0.5, 0, -1, 2])}

    class Site:
        class parameters:  # noqa: N801
            load = staticmethod(lambda names, shape, dtype: tensors[names[0]].to(dtype))

    x = torch.tensor([[1e-3, -2e-3, 3e-3, 0.0]])
    found = answer_layer_norm(LayerNormSpec(name="n", width=4, eps=1e-6), Site)(x)
    centred = x - x.mean()
    wanted = centred / (centred.square().mean() + 1e-6).sqrt() * tensors["n.weight"] + tensors["n.bias"]
    torch.testing.assert_close(found, wanted)
    other = answer_layer_norm(LayerNormSpec(name="n", width=4, eps=1e-5), Site)(x)
    assert (found - other).abs().max() > 0.3


def test_the_indexer_of_every_family_has_that_eps(checkpoints):
    from engines import start

    for name in ("DeepSeek-V3.2", "GLM-5"):
        with start(checkpoints(name)[0], None, {"enable": ["models", "dsa"]}) as engine:
            norms = [bound.spec for bound in engine.parts.binder.bound if isinstance(bound.spec, LayerNormSpec)]
            assert norms
            assert {spec.eps for spec in norms} == {1e-6}


POOL = PoolSpec(name="p", width=4, dtype=torch.float32)
INDEX = IndexSpec(name="i", layer=0, heads=2, dim=4, top_k=3)


def attention(layer, source, top_k=3):
    selection = SelectionSpec(source=source, top_k=top_k)
    return AttentionSpec(
        name=f"a{layer}", layer=layer, heads=1, kv_heads=1, key_dim=4, value_dim=4, scale=1.0, selection=selection
    )


def test_a_selection_that_nobody_makes_stops_the_start():
    shared = replace(INDEX, name="j", layer=1, shared=True)
    Layout.of([POOL, INDEX, shared, attention(0, 0), attention(1, 0)], "auto")
    with pytest.raises(PluginError, match="selection of layer 1, and no indexer makes one"):
        Layout.of([POOL, INDEX, shared, attention(1, 1)], "auto")
    with pytest.raises(PluginError, match="selection of layer 2"):
        Layout.of([POOL, replace(INDEX, layer=2), attention(1, 2)], "auto")
    with pytest.raises(PluginError, match="sees 4 entries, and its indexer selects 3"):
        Layout.of([POOL, INDEX, attention(0, 0, 4)], "auto")


def test_fp8_keys_that_cannot_be_rotated_stop_the_start():
    with pytest.raises(ConfigError, match="24 elements"):
        Layout.of([POOL, replace(INDEX, dim=24)], "fp8")


def test_fp8_on_both_sides_chooses_nearly_the_same():
    draw = torch.Generator().manual_seed(8)
    q, keys = torch.randn(1, 6, 64, 128, generator=draw), torch.randn(1, 400, 128, generator=draw)
    weights, seen = torch.randn(1, 6, 64, generator=draw), torch.ones(1, 6, 400, dtype=torch.bool)
    exact = best(index_scores(q, keys, weights), seen, 50)
    rounded = best(index_scores(round_fp8(hadamard(q)), round_fp8(hadamard(keys)), weights), seen, 50)
    one_side = best(index_scores(round_fp8(hadamard(q)), round_fp8(keys), weights), seen, 50)

    def overlap(other):
        return sum(len({*a} & {*b}) for a, b in zip(exact[0].tolist(), other[0].tolist(), strict=True)) / 300

    assert overlap(rounded) > 0.85
    assert overlap(one_side) < 0.4


def test_an_engine_keeps_its_index_keys_in_fp8(checkpoints):
    from engines import greedy, start

    options = {"enable": ["models", "paged_kv", "dsa"], "dsa": {"index_keys": "fp8"}}
    with start(checkpoints("DeepSeek-V3.2")[0], None, options) as engine:
        pools = [pool for pool in engine.parts.sizing.pools if pool.name.endswith(".keys")]
        assert [engine.parts.kv.pool(TARGET, pool.name).data.dtype for pool in pools] == [torch.uint8] * 2
        assert len(engine.generate([[1, 2, 3, 4, 5, 6, 7, 8]], greedy(6))[0].token_ids) == 6


def test_index_keys_lie_where_the_entries_lie():
    layout = Layout.of([POOL, INDEX], "fp8")
    (keys,) = layout.pools
    assert (keys.stride, keys.window, keys.per, keys.width) == (POOL.stride, POOL.window, POOL.per, INDEX.dim)
    assert isinstance(keys.codec, Fp8Keys)


class Context:
    """As much of a context as a selection reads."""

    kind = None

    def __init__(self, rows, step, from_row=(), index=()):
        self.rows, self.draft_step = rows, step
        self.states = type("States", (), {"role": "draft"})
        self._batch = type(
            "Batch",
            (),
            {"from_row": lambda _, ctx: torch.tensor(from_row), "index": lambda _, ctx: torch.tensor(index)},
        )()

    def state(self, key):
        return self._batch


def test_a_selection_lives_for_a_round_and_goes_on_row_by_row():
    share = TopKShare("draft", 3, sizing_of())
    with pytest.raises(PluginError, match="none has been made in this round"):
        share.lend(3, Context(2, 0))
    share.hold(torch.tensor([[4, 2, 0], [9, 8, 7], [5, NOTHING, NOTHING]]), Context(3, 0))
    first = Context(2, 1, from_row=[1, 2], index=[10, 6])
    share.carry(3, first)
    assert share.lend(3, first).tolist() == [[9, 8, 10], [5, NOTHING, 6]]
    second = Context(1, 2, from_row=[1], index=[7])
    share.carry(3, second)
    assert share.lend(3, second).tolist() == [[5, 7, 6]]
    share.clear()
    with pytest.raises(PluginError, match="draft step 1"):
        share.carry(3, first)


def test_slots_are_kept_under_one_key_each():
    memo = SlotMappings()
    assert [memo.get(key, lambda key=key: [key]) for key in ("a", "b", "a")] == [["a"], ["b"], ["a"]]
    memo.clear()
    assert memo.get("a", lambda: "another") == "another"


def test_a_checkpoint_without_the_plugin_says_which_to_enable(tmp_path):
    from engines import start

    save_family(tmp_path, "DeepSeek-V3.2")
    with pytest.raises(PluginError, match=r"nobody answers IndexSpec(.|\n)*enable dsa"):
        start(tmp_path)
    save_family(tmp_path, "DeepSeek-V4")
    with pytest.raises(PluginError, match=r"nobody answers CompressSpec(.|\n)*enable dsa"):
        start(tmp_path)


def test_init_enables_what_the_model_needs(checkpoints):
    from byref.cli.init import _needed

    assert _needed(str(checkpoints("GLM-5")[0])) == (["models", "dsa"], False)


def compressor(ratio, overlap):
    norm = NormSpec(name="c.norm", width=4, eps=1e-6)
    turn = RotarySpec(name="r", dim=2, inverse_frequencies=(0.3,), layout="interleaved")
    return CompressSpec(name="c", width=4, ratio=ratio, overlap=overlap, bias="c.bias", norm=norm, rotary=turn)


def folded(kv, gate, bias, spec, turn):
    """Window by window, element by element."""
    entries = []
    for w in range(len(kv) // spec.ratio):
        rows = []
        for j in range(spec.ratio):
            row = w * spec.ratio + j
            if spec.overlap:
                if w:
                    rows.append((kv[row - spec.ratio, :4], gate[row - spec.ratio, :4] + bias[j, :4]))
                rows.append((kv[row, 4:], gate[row, 4:] + bias[j, 4:]))
            else:
                rows.append((kv[row], gate[row] + bias[j]))
        weights = torch.stack([g for _, g in rows]).softmax(0)
        entries.append(turn((torch.stack([k for k, _ in rows]) * weights).sum(0), w * spec.ratio))
    return torch.stack(entries)


def turned(x, position):
    """The last two elements by an angle of 0.3 a position."""
    angle = torch.tensor(0.3 * position)
    a, b = x[2].clone(), x[3].clone()
    return torch.stack((x[0], x[1], a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()))


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (8, False), (3, True)])
@pytest.mark.parametrize("padded", [False, True])
def test_entries_are_their_windows_however_rows_arrive(ratio, overlap, padded):
    from byref.answers.rotary import answer_rotary
    from byref_dsa.compression import Compressor

    spec = compressor(ratio, overlap)
    layout = Layout.of([POOL, spec], "auto")
    rows = Rows(sizing_of(layout.pools, padded=padded))
    draw = torch.Generator().manual_seed(4)
    bias = torch.randn(ratio, spec.raw_width, generator=draw)

    class Site:
        sizing = rows.sizing
        resolve = staticmethod(lambda one: answer_rotary(one, Site) if isinstance(one, RotarySpec) else (lambda x: x))

        class parameters:  # noqa: N801
            load = staticmethod(lambda names, shape, dtype: bias)

    rows.forwards._units[TARGET].states._sealed = False
    rows.forwards._units[TARGET].states.attach(SlotMappings(), "dsa")
    memo = rows.forwards._units[TARGET].states.values()[-1]
    rows.forwards._memos[TARGET] = (*rows.forwards._memos[TARGET], memo)
    raw, entries = (rows.kv.pool(TARGET, pool.name) for pool in (layout.pools[1], layout.pools[0]))
    fold = Compressor(spec, raw, entries, Site)
    lengths = (27, 9, 18)
    kvs = [torch.randn(n, spec.raw_width, generator=draw) for n in lengths]
    gates = [torch.randn(n, spec.raw_width, generator=draw) for n in lengths]
    requests = [request(f"r{i}", i + 1, n, 4) for i, n in enumerate(lengths)]
    for one in requests:
        rows.kv.reserve(one, 0)
    at, chunks = [0, 0, 0], random.Random(5)
    while any(start < n for start, n in zip(at, lengths, strict=True)):
        cuts = [min(chunks.choice((0, 1, 2, 5, 11)), n - start) for start, n in zip(at, lengths, strict=True)]
        windows = [
            Window(one.id, one.row, TARGET, start, (1,) * cut)
            for one, start, cut in zip(requests, at, cuts, strict=True)
            if cut
        ]
        if not windows:
            continue

        def body(ctx, cuts=tuple(cuts), at=tuple(at)):
            parts = [torch.cat([of[i][at[i] : at[i] + cut] for i, cut in enumerate(cuts)]) for of in (kvs, gates)]
            wide = [torch.cat((part, torch.zeros(ctx.rows - len(part), part.shape[1]))) for part in parts]
            if ctx.rows_per_request:
                wide = [spread(part, [cut for cut in cuts if cut], ctx.rows_per_request, ctx.rows) for part in parts]
            fold(*wide, ctx)
            for i, (one, start, cut) in enumerate(zip(requests, at, cuts, strict=True)):
                closed = (start + cut) // ratio
                if cut and closed:
                    slots = entries.slots(torch.tensor([one.row]), torch.arange(closed))
                    wanted = folded(kvs[i][: start + cut], gates[i][: start + cut], bias, spec, turned)
                    torch.testing.assert_close(entries.read(slots), wanted, atol=1e-5, rtol=1e-5)

        rows.run(windows, body)
        for i, cut in enumerate(cuts):
            rows.kv.commit(requests[i], range(cut))
            at[i] += cut
            requests[i].lengths[TARGET] = at[i]


def spread(part, widths, width, rows):
    """Rows of a forward whose requests are padded to one width."""
    out, start = torch.zeros(rows, part.shape[1]), 0
    for i, own in enumerate(widths):
        out[i * width : i * width + own] = part[start : start + own]
        start += own
    return out
