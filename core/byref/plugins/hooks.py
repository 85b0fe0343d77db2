"""Every hook as a typed method over a tuple of functions. Knows order and blame; must not know a plugin's noun.

A method is one loop inside one `try`, which costs nothing until something is raised.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from byref.contract.context import ForwardContext
from byref.contract.errors import ByrefError, RequestError
from byref.contract.hookspecs import DEVICE, STEP
from byref.contract.requests import Reason, Request
from byref.contract.roles import Site, Sizing
from byref.contract.specs import PoolSpec, Spec, flat
from byref.contract.state import State
from byref.contract.step import LogitRows, Step, StepReport
from byref.plugins.blame import blame, broke_contract, impl_of, raise_first, step_error
from byref.plugins.resolve import Impl, Resolved

TIMED = (*STEP, *DEVICE)
"""Hooks that take one argument and run in steps."""
T = TypeVar("T")
Each = tuple[Callable[[T], object], ...]


class Hooks:
    """The hooks of one engine's plugins, resolved once.

    Errors: `request_*` raise RequestError, every other hook PluginError (or one of the contract's errors that
    says more); each names plugin, distribution, version and hook, and chains the cause.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._impls = resolved
        self._resolve_calls()

    def _resolve_calls(self) -> None:
        self._prepare_forward: Each[ForwardContext] = self._calls("prepare_forward")
        self._prepare_step: Each[Step] = self._calls("prepare_step")
        self._commit: Each[Step] = self._calls("commit")
        self._step_done: Each[StepReport] = self._calls("step_done")
        self._adjust_logits: Each[LogitRows] = self._calls("adjust_logits")

    def has(self, hook: str) -> bool:
        """Whether any plugin implements `hook`."""
        return bool(self._impls[hook])

    def timed(self) -> Mapping[str, float]:
        """From now on, the seconds inside each plugin's hooks of steps and forwards; the table grows as they run."""
        seconds = dict.fromkeys((impl.plugin.name for hook in TIMED for impl in self._impls[hook]), 0.0)

        def clocked(impl: Impl) -> Impl:
            def call(subject: object) -> None:
                began = time.perf_counter()
                try:
                    impl.call(subject)
                finally:
                    seconds[impl.plugin.name] += time.perf_counter() - began

            return replace(impl, call=call)

        self._impls = {**self._impls, **{hook: tuple(map(clocked, self._impls[hook])) for hook in TIMED}}
        self._resolve_calls()
        return seconds

    # device, once per forward

    def prepare_forward(self, ctx: ForwardContext) -> None:
        """Let every state be refilled."""
        try:
            for call in self._prepare_forward:
                call(ctx)
        except Exception as cause:
            raise self._step_error("prepare_forward", call, cause) from cause

    # host, once per step

    def prepare_step(self, step: Step) -> None:
        """Tell everybody what is coming."""
        try:
            for call in self._prepare_step:
                call(step)
        except Exception as cause:
            raise self._step_error("prepare_step", call, cause) from cause

    def adjust_logits(self, rows: LogitRows) -> None:
        """Let everybody edit the logits, in place."""
        try:
            for call in self._adjust_logits:
                call(rows)
        except Exception as cause:
            raise self._step_error("adjust_logits", call, cause) from cause

    def commit(self, step: Step) -> None:
        """Tell everybody what was accepted."""
        try:
            for call in self._commit:
                call(step)
        except Exception as cause:
            raise self._step_error("commit", call, cause) from cause

    def step_done(self, report: StepReport) -> None:
        """Hand everybody the figures."""
        try:
            for call in self._step_done:
                call(report)
        except Exception as cause:
            raise self._step_error("step_done", call, cause) from cause

    # host, at a request's events

    def request_added(self, request: Request) -> None:
        """Tell everybody; where one refuses, those told before it get `request_released` here, and nobody else does."""
        self._enter("request_added", request, request)

    def request_forked(self, parent: Request, child: Request) -> None:
        """As `request_added`, for the child."""
        self._enter("request_forked", child, parent, child)

    def request_released(self, request: Request, reason: Reason) -> None:
        """Tell everybody, whoever raises; then raise the first error."""
        raise_first(self._release(self._impls["request_released"], request, reason))

    # setup, once

    def refine(self, specs: Sequence[Spec[Any]]) -> list[Spec[Any]]:
        """The specs as every plugin in turn left them."""
        current = list(specs)
        for impl in self._impls["refine"]:
            refined = self._ask("refine", impl, current)
            if refined is not None:
                changed = self._listed("refine", impl, refined, Spec)
                _check_refined(impl, current, changed)
                current = changed
        return current

    def create_states(self, sizing: Sizing) -> list[tuple[str, State]]:
        """Every state with its plugin's name, in the order of `requires`."""
        states: list[tuple[str, State]] = []
        for impl in self._impls["create_states"]:
            made = self._ask("create_states", impl, sizing)
            states += [(impl.plugin.name, state) for state in self._listed("create_states", impl, made or (), State)]
        return states

    def bind(self, spec: Spec[Any], site: Site) -> list[tuple[str, Callable[..., Any]]]:
        """Every answer to `spec`, with its plugin's name."""
        answers = [(impl, self._ask("bind", impl, spec, site)) for impl in self._impls["bind"]]
        return [(impl.plugin.name, self._callable("bind", impl, call)) for impl, call in answers if call is not None]

    def decorate(self, spec: Spec[Any], call: Callable[..., Any]) -> Callable[..., Any]:
        """`call` as every plugin in turn wrapped it."""
        for impl in self._impls["decorate"]:
            wrapped = self._ask("decorate", impl, spec, call)
            call = call if wrapped is None else self._callable("decorate", impl, wrapped)
        return call

    def shutdown(self) -> None:
        """Close everybody, whoever raises; then raise the first error."""
        errors: list[ByrefError] = []
        for impl in self._impls["shutdown"]:
            try:
                impl.call()
            except Exception as cause:  # the others must be closed too
                errors.append(_chained(step_error("shutdown", impl, cause), cause))
        raise_first(errors)

    def _calls(self, hook: str) -> tuple[Callable[..., object], ...]:
        return tuple(impl.call for impl in self._impls[hook])

    def _step_error(self, hook: str, call: object, cause: Exception) -> ByrefError:
        return step_error(hook, impl_of(self._impls[hook], call), cause)

    def _enter(self, hook: str, request: Request, *arguments: Request) -> None:
        impls = self._impls[hook]
        for done, impl in enumerate(impls):
            try:
                impl.call(*arguments)
            except Exception as cause:
                error = blame(RequestError, hook, impl, cause)
                told = [other.plugin for other in impls[:done]]
                undo = [other for other in self._impls["request_released"] if other.plugin in told]
                for failed in self._release(undo, request, Reason.FAILED):
                    error.add_note(f"and then: {failed}")
                raise error from cause

    def _release(self, impls: Iterable[Impl], request: Request, reason: Reason) -> list[RequestError]:
        errors = []
        for impl in impls:
            try:
                impl.call(request, reason)
            except Exception as cause:  # the others hold memory of this request too
                errors.append(_chained(blame(RequestError, "request_released", impl, cause), cause))
        return errors

    def _ask(self, hook: str, impl: Impl, *arguments: object) -> Any:
        try:
            return impl.call(*arguments)
        except Exception as cause:
            raise step_error(hook, impl, cause) from cause

    def _listed(self, hook: str, impl: Impl, result: object, kind: type[T]) -> list[T]:
        items = result if isinstance(result, Sequence) else [result]
        fitting = [item for item in items if isinstance(item, kind)]
        if items is not result or len(fitting) < len(items):
            wrong = next((item for item in items if not isinstance(item, kind)), result)
            got = type(wrong).__name__
            raise broke_contract(hook, impl, f"must return a sequence of {kind.__name__}, and gave {got}")
        return fitting

    def _callable(self, hook: str, impl: Impl, call: object) -> Callable[..., Any]:
        if not callable(call):
            raise broke_contract(hook, impl, f"must return a callable or None, and gave {type(call).__name__}")
        return call


def _check_refined(impl: Impl, before: Sequence[Spec[Any]], after: Sequence[Spec[Any]]) -> None:
    """Specs may be replaced by ones of equal identity, and pools added; nothing else."""
    had, has = (Counter(spec.identity for spec in flat(specs)) for specs in (before, after))
    for identity in had - has:
        raise broke_contract("refine", impl, f"dropped {identity}", "replace a spec by one of equal identity")
    pools = {spec.identity for spec in flat(after) if isinstance(spec, PoolSpec)}
    for identity in has - had:
        if identity not in pools:
            raise broke_contract("refine", impl, f"added {identity}, which nobody asked for", "add only PoolSpecs")
        if has[identity] > 1:
            raise broke_contract("refine", impl, f"added a second {identity}", "name the pool otherwise")


def _chained(error: ByrefErrorT, cause: Exception) -> ByrefErrorT:
    error.__cause__ = cause
    return error


ByrefErrorT = TypeVar("ByrefErrorT", bound=ByrefError)
