"""Every forward is described by one function, and what it builds leads to no tensor, whatever the kind of forward."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drafts import Told
from engines import greedy, one_per_step, start, together

from byref.contract import API_VERSION, ForwardContext, Kind, Plugin, PluginInfo, RoleSource, Window, hookimpl
from byref.contract.walk import find_tensors

ROOT = Path(__file__).parents[3]
FOLDERS = ("core", "models", "plugins", "examples")
NAME = ForwardContext.__name__
COPIERS = {"replace", "__replace__", "copy", "deepcopy"}
"""Functions that make another context from one."""
RAW = {"__new__", "__setattr__", "__setstate__"}
"""Functions that could make or change one behind its back."""


def sites(source: str) -> Iterator[tuple[str, int]]:
    """Where `source` may make a context: (what, line)."""
    tree = ast.parse(source)
    makers = {NAME}
    for _ in range(5):  # aliases of aliases
        makers |= set(aliases(tree, makers))
    held = makers | set(variables(tree, makers))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = last(node.func)
            if name in makers:
                yield "call", node.lineno
            elif (name in RAW | COPIERS and (mentions(node, held) or is_method(node, held))) or (
                name in {"partial", "getattr", "map", "starmap"} and mentions(node, makers)
            ):
                yield name, node.lineno


def aliases(tree: ast.AST, makers: set[str]) -> Iterator[str]:
    """Further names of the class: imports, assignments, subclasses."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (one.asname for one in node.names if one.asname and one.name.split(".")[-1] in makers)
        elif (
            isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            and node.value is not None
            and last(node.value) in makers
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name for target in targets if (name := last(target)))
        elif isinstance(node, ast.ClassDef) and any(last(base) in makers for base in node.bases):
            yield node.name


def variables(tree: ast.AST, makers: set[str]) -> Iterator[str]:
    """Names that hold a context: arguments and variables annotated with the class, and those called so."""
    yield from ("ctx", "context")
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None and text_of(node.annotation) in makers:
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and text_of(node.annotation) in makers and (name := last(node.target)):
            yield name


def last(node: ast.AST) -> str:
    """The last name of `a.b.c`; of a subscript, that of what it is of."""
    if isinstance(node, ast.Subscript):
        return last(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else last(node)


def mentions(call: ast.Call, names: set[str]) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(last(value) in names or text_of(value) in names for value in values)


def is_method(call: ast.Call, names: set[str]) -> bool:
    return isinstance(call.func, ast.Attribute) and last(call.func.value) in names


def test_one_function_builds_every_context():
    found = [
        (str(path.relative_to(ROOT)), what)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "tests" not in path.relative_to(ROOT).parts
        for what, _ in sites(path.read_text())
    ]
    assert found == [("core/byref/engine/forwards.py", "call")]


SNEAKY = {
    "a call": "ForwardContext(role=0)",
    "by module": "import byref.contract as c\nc.ForwardContext(role=0)",
    "another name": "from byref.contract import ForwardContext as FC\nFC(role=0)",
    "an alias": "Made = ForwardContext\nMade(role=0)",
    "an alias of an alias": "A = ForwardContext\nB = A\nB(role=0)",
    "a typed alias": "A: type = ForwardContext\nA(role=0)",
    "in passing": "(A := ForwardContext)(role=0)\nA()",
    "dataclasses.replace": "import dataclasses\ndataclasses.replace(ctx, rows=1)",
    "replace": "from dataclasses import replace\ndef f(c: ForwardContext):\n    return replace(c, rows=1)",
    "replace, in quotes": "from dataclasses import replace\ndef f(c: 'ForwardContext'):\n    return replace(c, rows=1)",
    "copy.replace": "import copy\ncopy.replace(ctx, rows=1)",
    "copy.copy": "import copy\ncopy.copy(self.ctx)",
    "its own method": "ctx.__replace__(rows=1)",
    "object.__new__": "object.__new__(ForwardContext)",
    "its own __new__": "ForwardContext.__new__(ForwardContext)",
    "object.__setattr__": "object.__setattr__(ctx, 'rows', 1)",
    "partial": "from functools import partial\npartial(ForwardContext, role=0)",
    "by name": "getattr(contract, 'ForwardContext')(role=0)",
}


@pytest.mark.parametrize("source", SNEAKY.values(), ids=SNEAKY)
def test_a_second_builder_would_be_found(source):
    assert list(sites(source))


@pytest.mark.parametrize(
    "source", ["def f(ctx: ForwardContext) -> None: ...", "from dataclasses import replace\nreplace(window, start=1)"]
)
def test_what_builds_none_is_left_alone(source):
    assert not list(sites(source))


class Draft(Plugin):
    """A second, shallower model, run after each step."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry):
        registry.role("draft", RoleSource(overrides={"num_hidden_layers": 1}))


class Spy:
    """Sees the context of every forward, where it is captured or run."""

    def __init__(self, engine):
        self.contexts: list[ForwardContext] = []
        self._inner = engine.parts.forwards._capture
        engine.parts.forwards._capture = self

    def wants(self, ctx):
        return self._inner.wants(ctx)

    def record(self, ctx, body):
        self.contexts.append(ctx)
        self._inner.record(ctx, body)

    def run(self, ctx, body):
        self.contexts.append(ctx)
        return self._inner.run(ctx, body)


@pytest.mark.parametrize("capture", ["off", "tape"])
def test_no_forward_of_any_kind_carries_a_tensor(short_llama, capture):
    prompts = [(5, 6, 7, 8, 9, 10, 11), (3,), (4, 4, 2)]
    plugins = {"told": Told, "draft": Draft}
    with start(short_llama, plugins, {"told": {"tree": True}}, capture=capture, chunk=4) as engine:
        spy = Spy(engine)
        told = engine.parts.host.plugin("told").instance
        told.reference = {prompt: [0] * 20 for prompt in prompts}
        one_per_step(engine, prompts, greedy(6))
        together(engine, prompts, greedy(6))
        for role in ("target", "draft"):
            engine.parts.forwards(role, ())
        for draft_step in (0, 1):
            engine.parts.forwards("draft", [Window("x", 1, "draft", draft_step, (3,))], None, draft_step)
        expected = {("target", kind) for kind in Kind} | {("draft", Kind.IDLE), ("draft", Kind.DECODE)}
        assert {(ctx.states.role, ctx.kind) for ctx in spy.contexts} == expected
        assert any(ctx.rows_per_request != 1 and ctx.kind is Kind.DECODE for ctx in spy.contexts)
        for ctx in spy.contexts:
            assert list(find_tensors(ctx, "ctx")) == []


def test_the_walk_would_find_one(short_llama):
    with start(short_llama) as engine:
        spy = Spy(engine)
        together(engine, [[1, 2]], greedy(1))
        spy.contexts[0].state(next(iter(spy.contexts[0].states._states))).public = [torch.ones(1)]
        assert list(find_tensors(spy.contexts[0], "ctx"))
