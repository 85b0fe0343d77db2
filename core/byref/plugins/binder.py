"""From specs to callables: collects what layers ask for, lets plugins refine and answer it, writes the answers.

Knows specs and answers; must not know what any of them computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from byref.contract.calls import Take
from byref.contract.context import Kind
from byref.contract.errors import ConfigError, PluginError
from byref.contract.roles import Site
from byref.contract.specs import AttentionSpec, PoolSpec, Spec, TapSpec, of_kind
from byref.plugins.discovery import providers

C = TypeVar("C")
Answer = Callable[[Any, Site], Callable[..., Any]]
Answers = list[tuple[str, Callable[..., Any]]]
CORE = "core"
"""Who answers where no plugin does."""


class BindHooks(Protocol):
    """The hooks the binder calls."""

    def refine(self, specs: Sequence[Spec[Any]]) -> list[Spec[Any]]: ...

    def bind(self, spec: Spec[Any], site: Site) -> list[tuple[str, Callable[..., Any]]]: ...

    def decorate(self, spec: Spec[Any], call: Callable[..., Any]) -> Callable[..., Any]: ...


@dataclass(slots=True)
class _Wish:
    spec: Spec[Any]
    install: Callable[[Callable[..., Any]], None]


@dataclass(frozen=True, slots=True)
class Bound:
    """One answered spec, as `byref plugins info` shows it."""

    spec: Spec[Any]
    by: str
    """Plugin name, or `core`."""
    call: Callable[..., Any]
    capturable: bool | frozenset[Kind]
    """Kinds of forward it can be captured in; a bool is all or none. The answer's own word, `capturable`."""
    about: str
    """What the answer says of itself in a line: its `about`, or else its docstring's first."""


class RoleAsk:
    """The `Ask` of one role's model."""

    def __init__(self, role: str, wishes: list[_Wish]) -> None:
        self.role = role
        self._wishes = wishes

    def __call__(self, owner: object, attribute: str, spec: Spec[C]) -> C:
        self._wishes.append(_Wish(spec, lambda call: setattr(owner, attribute, call)))
        unbound: Any = _Unbound(spec)
        return unbound  # type: ignore[no-any-return]

    def tap(self, spec: TapSpec, install: Callable[[Take], None]) -> None:
        self._wishes.append(_Wish(spec, install))


class _Unbound:
    """Stands in an attribute until bind."""

    def __init__(self, spec: Spec[Any]) -> None:
        self._spec = spec

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise PluginError(
            f"{self._spec.identity} is called before it is bound", hint="call layers inside a forward only"
        )


class Binder:
    """Holds every spec of every role from build to bind."""

    def __init__(self, hooks: BindHooks, answers: Mapping[type, Answer], picks: Mapping[str, str]) -> None:
        self._hooks, self._answers, self._picks = hooks, answers, picks
        self._wishes: list[_Wish] = []
        self.bound: list[Bound] = []

    def ask(self, role: str) -> RoleAsk:
        """What the model of `role` is built with."""
        return RoleAsk(role, self._wishes)

    def refine(self, dtype: Any) -> tuple[PoolSpec, ...]:
        """Derive the K/V pools, let plugins edit every spec, and return the pools there will be."""
        asked = [wish.spec for wish in self._wishes]
        pools = [_pool_of(spec, dtype) for spec in of_kind(asked, AttentionSpec)]
        refined = self._hooks.refine([*asked, *pools])
        by_identity = {spec.identity: spec for spec in refined}
        for wish in self._wishes:
            wish.spec = by_identity[wish.spec.identity]
        return tuple(spec for spec in by_identity.values() if isinstance(spec, PoolSpec))

    def bind(self, site: Callable[[str, Callable[[Any], Any]], Site]) -> None:
        """Answer every spec and write the answers where they were asked for. `site` makes a role's site."""
        for wish in self._wishes:
            resolve = self._resolver(wish.spec.role, site)
            if isinstance(wish.spec, TapSpec):
                self._bind_tap(wish, site(wish.spec.role, resolve))
            else:
                wish.install(resolve(wish.spec))

    def _resolver(self, role: str, site: Callable[[str, Callable[[Any], Any]], Site]) -> Callable[[Any], Any]:
        def resolve(spec: Spec[Any]) -> Any:
            return self._answer(spec, site(role, resolve))

        return resolve

    def _answer(self, spec: Spec[Any], site: Site) -> Callable[..., Any]:
        answers = self._hooks.bind(spec, site)
        if len(answers) > 1 or self._picked(spec) == CORE:
            answers = self._pick(spec, answers)
        if answers:
            by, call = answers[0]
        elif type(spec) in self._answers:
            by, call = CORE, self._answers[type(spec)](spec, site)
        else:
            raise PluginError(
                f"nobody answers {type(spec).__name__} {spec.name!r}",
                where=f"role {spec.role}, layer {spec.layer}",
                hint=_who_would(type(spec).__name__),
            )
        outer = self._hooks.decorate(spec, call)
        able = getattr(call, "capturable", True)
        able = able if able is not True else getattr(outer, "capturable", True)
        self.bound.append(Bound(spec, by, outer, able, _about(call)))
        return outer

    def _picked(self, spec: Spec[Any]) -> str | None:
        """Whom `[bind]` gives the spec to: by class and name, else by class."""
        kind = type(spec).__name__
        return self._picks.get(f"{kind}.{spec.name}", self._picks.get(kind))

    def _pick(self, spec: Spec[Any], answers: Answers) -> Answers:
        names, kind, pick = [name for name, _ in answers], type(spec).__name__, self._picked(spec)
        if pick == CORE:
            return []
        if pick is None:
            raise PluginError(
                f"{' and '.join(names)} both answer {kind} {spec.name!r}",
                where=f"role {spec.role}, layer {spec.layer}",
                hint=f'settle it in byref.toml: [bind] {kind} = "{names[0]}"',
            )
        picked = [(name, call) for name, call in answers if name == pick]
        if not picked:
            raise ConfigError(
                f"[bind] gives {kind} to {pick!r}, which does not answer it", hint=f"one of: {', '.join(names)}"
            )
        return picked

    def _bind_tap(self, wish: _Wish, site: Site) -> None:
        takers = self._hooks.bind(wish.spec, site)
        if not takers:
            return
        calls = [self._hooks.decorate(wish.spec, call) for _, call in takers]
        self.bound += [
            Bound(wish.spec, by, call, getattr(call, "capturable", True), _about(taker))
            for (by, taker), call in zip(takers, calls, strict=True)
        ]
        wish.install(calls[0] if len(calls) == 1 else _all(tuple(calls)))


def _who_would(kind: str) -> str:
    """What to enable for specs of this class: installed plugins say so under the capability `bind.<class>`."""
    owners = providers().get(f"bind.{kind}", ())
    if owners:
        return f"enable {' or '.join(owners)}: [plugins] enable"
    return f"install a plugin that provides bind.{kind}, and enable it (`byref plugins list` shows what is installed)"


def _about(call: Callable[..., Any]) -> str:
    said: str = getattr(call, "about", None) or (call.__doc__ or "").strip().partition("\n")[0]
    name: str = getattr(call, "__qualname__", type(call).__name__)
    return said or name.partition(".<locals>")[0]


def _all(calls: tuple[Callable[..., Any], ...]) -> Callable[..., None]:
    def take(hidden: Any, ctx: Any) -> None:
        for call in calls:
            call(hidden, ctx)

    return take


def _pool_of(spec: AttentionSpec, dtype: Any) -> PoolSpec:
    return PoolSpec(
        role=spec.role,
        layer=spec.layer,
        name=spec.pool_name,
        width=spec.entry_width,
        dtype=dtype,
        window=spec.window,
    )
