"""A plugin whose drafts are told: random chains and trees around the tokens that are known to come."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from checkpoints import VOCABULARY
from pydantic import BaseModel, ConfigDict

from byref.contract import API_VERSION, Key, Plugin, PluginInfo, Request, State, hookimpl
from byref.engine.speculator import PlainSpeculator


class ToldSpeculator(State, PlainSpeculator):
    """Its drafts follow from the request's tokens alone, so that every run drafts the same."""

    key: ClassVar[Key]

    def __init__(self, plugin: Told) -> None:
        self._plugin = plugin

    def _draw(self, request: Request) -> tuple[list[int], list[int]]:
        options, done = self._plugin.options, request.generated
        coming = [*self._plugin.reference[request.prompt][done:], *[0] * options.most]
        draw = random.Random(f"{request.prompt} {done}")
        return grow(draw, coming, options.most, tree=options.tree, chance=options.right)

    def width(self, request: Request) -> Sequence[int]:
        return self._draw(request)[0]

    def parents(self, request: Request) -> Sequence[int]:
        return self._draw(request)[1] if self._plugin.options.tree else ()


ToldSpeculator.key = Key("told", ToldSpeculator)


def grow(
    draw: random.Random, coming: Sequence[int], most: int, *, tree: bool, chance: float
) -> tuple[list[int], list[int]]:
    """Up to `most` drafts and what each continues (-1: the newest token); one that may be right is, by chance. Where
    all are right there are as many as there may be."""
    tokens: list[int] = []
    parents: list[int] = []
    depth = {-1: 0}  # of the drafts that are right, and so are those they continue
    for i in range(most if chance == 1 else draw.randint(0, most)):
        parent = draw.randint(-1, i - 1) if tree else i - 1
        taken = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        right = parent in depth and coming[depth[parent]] not in taken and draw.random() < chance
        wrong = [token for token in range(VOCABULARY) if token not in taken and token != coming[depth.get(parent, 0)]]
        tokens.append(coming[depth[parent]] if right else draw.choice(wrong))
        if right:
            depth[i] = depth[parent] + 1
        parents.append(parent)
    return tokens, parents


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    most: int = 5
    tree: bool = False
    right: float = 0.7


class Told(Plugin[Options]):
    """A test fills `reference`: by prompt, the tokens that will come."""

    info = PluginInfo(api_version=API_VERSION, requires=("kv.rewind",))
    Options = Options

    def __init__(self, name, options):
        super().__init__(name, options)
        self.reference: Mapping[tuple[int, ...], Sequence[int]] = {}
        self.accepted: list[int] = []
        """Per window that drafted: how many drafts were kept."""

    @hookimpl
    def register(self, registry):
        registry.drafts(self.options.most)

    @hookimpl
    def create_states(self, sizing):
        return [ToldSpeculator(self)]

    @hookimpl
    def commit(self, step):
        windows = [window for window in step.plan.windows if window.drafts]
        self.accepted += [len(step.outcome[window.request].path) - window.known for window in windows]
