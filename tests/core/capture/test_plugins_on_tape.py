"""A plugin whose forward could not be captured is told so: at start where its answer says it, else at the first forward."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from engines import assert_idle, greedy, start, together

from byref.capture.guard import PointerGuard
from byref.contract import API_VERSION, CaptureError, EngineStopped, Key, Plugin, PluginInfo, State, StateMap, hookimpl
from byref.contract.roles import BATCH
from byref.contract.specs import EmbedSpec, LinearSpec, TapSpec


class Counts(State):
    key: ClassVar[Key]

    def __init__(self):
        self._counts = torch.ones(4)
        self.built = None
        self.moves = False

    def buffers(self):
        return {"counts": self._counts}

    def move(self):
        self._counts = self._counts.clone()

    def item(self, ctx):
        self._counts[0].item()

    def tolist(self, ctx):
        self._counts.tolist()

    def numpy(self, ctx):
        self._counts.numpy()

    def truth(self, ctx):
        if self._counts[0] > 0:
            self._counts.add_(1)

    def nonzero(self, ctx):
        self._counts.nonzero()

    def mask(self, ctx):
        self._counts[self._counts > 0].sum()

    def host_windows(self, ctx):
        if ctx.rows > 1:
            ctx.state(BATCH).host()

    def host_values(self, ctx):
        self._counts.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def lazy(self, ctx):
        if ctx.rows > 1 and self.built is None:
            self.built = [torch.zeros(4)]
            self._hidden = self.built.pop()

    def fine(self, ctx):
        self._counts.add_(1).mul_(0.5)


Counts.key = Key("counts", Counts)
READS = ("item", "tolist", "numpy", "truth", "nonzero", "mask")
REFUSED = dict.fromkeys(READS, "reads a device value on the host") | {
    "host_windows": "host rows are read inside a forward that is captured",
    "host_values": "a tensor is built from host values",
    "lazy": r"a tensor made inside the forward, by aten\.zeros",
}


class Refills(Plugin):
    """Does what a test says in `prepare_forward`."""

    info = PluginInfo(api_version=API_VERSION)
    way = "fine"

    @hookimpl
    def create_states(self, sizing):
        self.counts = Counts()
        return [self.counts]

    @hookimpl
    def prepare_forward(self, ctx):
        getattr(ctx.state(Counts.key), self.way)(ctx)


class Taps(Refills):
    """Does it in a bound call."""

    @hookimpl
    def prepare_forward(self, ctx):
        return None

    @hookimpl
    def bind(self, spec, site):
        if isinstance(spec, TapSpec) and spec.layer == 1:
            return lambda _, ctx: getattr(ctx.state(Counts.key), self.way)(ctx)
        return None


def with_way(plugin, way):
    return {"strange": type(plugin.__name__, (plugin,), {"way": way, "info": plugin.info})}


@pytest.mark.parametrize("plugin", [Refills, Taps])
@pytest.mark.parametrize(("way", "message"), REFUSED.items(), ids=REFUSED)
def test_it_stops_at_the_first_forward_that_is_captured(short_llama, plugin, way, message):
    with start(short_llama, with_way(plugin, way), capture="tape") as engine:
        (completion,) = together(engine, [[1, 2, 3]], greedy(3))
        assert isinstance(completion.error, EngineStopped)
        assert isinstance(completion.error.__cause__, CaptureError)
        with pytest.raises(CaptureError, match=message):
            raise completion.error.__cause__
        if plugin is Refills and way != "lazy":  # found after the forward: nobody is in it any more
            assert "plugin strange" in completion.error.__cause__.where
        assert_idle(engine)


@pytest.mark.parametrize("plugin", [Refills, Taps])
@pytest.mark.parametrize("way", ["fine", *sorted(REFUSED)])
def test_eagerly_each_of_these_runs(short_llama, plugin, way):
    with start(short_llama, with_way(plugin, way)) as engine:
        (completion,) = together(engine, [[1, 2, 3]], greedy(3))
        assert completion.error is None


def test_a_buffer_that_moves_is_named(short_llama):
    with start(short_llama, with_way(Refills, "fine"), capture="tape") as engine:
        engine.add([1, 2, 3], greedy(5))
        engine.step()
        engine.parts.host.plugin("strange").instance.counts.move()
        (chunk,) = engine.step()
        assert "a persistent buffer moved after capture: target/counts/counts" in chunk.completion.error.what


def test_buffers_that_appear_go_or_change_their_shape_are_noticed():
    buffers = {"one": torch.ones(4), "two": torch.ones(2)}

    class Listed(State):
        key: ClassVar[Key]

        def buffers(self):
            return buffers

    Listed.key = Key("listed", Listed)
    states = StateMap("target")
    states.attach(Listed(), "test")
    guard = PointerGuard([states])
    guard.check()
    whole = buffers["one"]
    for changed in ({"two": buffers["two"]}, {**buffers, "more": whole}, {**buffers, "one": whole[:2]}):
        kept = dict(buffers)
        buffers.clear()
        buffers.update(changed)
        with pytest.raises(CaptureError, match="moved after capture"):
            guard.check()
        buffers.clear()
        buffers.update(kept)
    guard.check()


class Uncapturable(Plugin):
    """Answers one spec by a callable that says it cannot be captured."""

    info = PluginInfo(api_version=API_VERSION)
    capturable = False

    @hookimpl
    def bind(self, spec, site):
        if not (isinstance(spec, EmbedSpec) and spec.role == "target"):
            return None
        table = site.parameters.load([f"{spec.name}.weight"], (spec.rows, spec.width))

        def embed(ids):
            return table[ids]

        embed.capturable = self.capturable
        return embed


class Wrapper(Plugin):
    """Decorates a call by one that says so."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def decorate(self, spec, call):
        if not (isinstance(spec, LinearSpec) and spec.name == "lm_head"):
            return None

        def project(x, residual=None):
            return call(x, residual)

        project.capturable = False
        return project


def test_an_answer_that_cannot_be_captured_is_refused_at_start_by_name(short_llama):
    with pytest.raises(
        CaptureError, match=r"the answer of eager_one to EmbedSpec 'model\.embed_tokens' cannot be captured in"
    ):
        start(short_llama, {"eager_one": Uncapturable}, capture="tape")
    with start(short_llama, {"eager_one": Uncapturable}) as engine:
        assert together(engine, [[1, 2, 3]], greedy(3))[0].error is None


def test_a_wrapper_that_cannot_be_captured_is_refused_as_well(short_llama):
    with pytest.raises(CaptureError, match=r"LinearSpec 'lm_head' cannot be captured"):
        start(short_llama, {"wrapper": Wrapper}, capture="tape")
