"""Every hook of byref, one manual page each. Bodies are empty; the types bind.

Families: *setup* runs once before the first request; *host* at a request event or once per step, and
never reads a device value of a forward in flight; *device* once per forward, on persistent buffers,
capturable; *bound* is what `bind` returned, called by layers inside a forward.

Errors: one raised in a `request_*` hook ends that request, one raised anywhere else stops the start or the engine, and
every request with it. Each names plugin, hook and line. Whatever a request's options may get wrong is refused in
`RequestOptions` or `request_added`, by a `RequestError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from byref.contract.plugin import PROJECT

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.plugin import Registry
    from byref.contract.requests import Reason, Request
    from byref.contract.roles import Site, Sizing
    from byref.contract.specs import Spec
    from byref.contract.state import State
    from byref.contract.step import LogitRows, Step, StepReport

hookspec = pluggy.HookspecMarker(PROJECT)

SETUP = ("register", "refine", "create_states", "bind", "decorate", "shutdown")
REQUEST = ("request_added", "request_forked", "request_released")
STEP = ("prepare_step", "commit", "step_done", "adjust_logits")
DEVICE = ("prepare_forward",)


@hookspec
def register(registry: Registry) -> None:
    """Announce models, further roles, draft widths, policies and commands.

    When: first, once. Result: none; every plugin is called, in config order.
    Errors: a name taken twice stops the start and names both plugins.
    Example: `registry.model("LlamaForCausalLM", "byref_models.llama:Llama")`. Since 1.
    """


@hookspec
def refine(specs: Sequence[Spec[Any]]) -> Sequence[Spec[Any]] | None:
    """Change what layers asked for, before anything is sized.

    When: once, after every role's model is built and core has derived the K/V pools. Result: the new
    sequence, passed on to the next plugin (config order); None changes nothing. A spec may be replaced by
    one of equal identity; only `PoolSpec`s may be added; none may be dropped.
    Example: `return rewrite(specs, PoolSpec, lambda pool: replace(pool, codec=Int8()))`. Since 1.
    """


@hookspec
def create_states(sizing: Sizing) -> Sequence[State] | None:
    """Allocate every buffer, once.

    When: after sizing is frozen. Result: states; each is attached under its key to the roles it names.
    Called in the order of `requires`. A state that is a `KV`, `Speculator` or `Policy` takes that role; two
    claimants are an error that names both. Since 1.
    """


@hookspec
def bind(spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
    """Answer a spec with its callable, or None.

    When: once per spec, after weights can be read. Result: exactly one plugin may answer (`[bind]` in
    the configuration picks between two), core answers last; of a `TapSpec` every answer is called.
    A callable that reads host rows sets `capturable = False`. No wrappers. Since 1.
    """


@hookspec
def decorate(spec: Spec[Any], call: Callable[..., Any]) -> Callable[..., Any] | None:
    """Wrap a bound call.

    When: once per spec, after `bind`. Result: the callable that takes its place, taking and returning what the
    spec's protocol does; None keeps the call. Later in `enable` is outer. Where forwards are captured
    (`sizing.captured`) Python in it runs when one is recorded, and not when it is replayed. Since 1.
    """


@hookspec
def shutdown() -> None:
    """Close what you opened. When: once, at the end, in reverse order. Since 1."""


@hookspec
def request_added(request: Request) -> None:
    """A request got its row, or got it back after preemption.

    When: before its first window. May add parts to `request.cache_key`. Raising refuses this request only,
    with the plugin's name. Since 1.
    """


@hookspec
def request_forked(parent: Request, child: Request) -> None:
    """`child` starts with the parent's computed tokens. When: after `KV.fork`. Raising ends the child. Since 1."""


@hookspec
def request_released(request: Request, reason: Reason) -> None:
    """Give everything back.

    When: once for every `request_added` or `request_forked`, whatever the reason: preempted, finished, aborted, failed.
    Runs while `request.row` is still its own. Since 1.
    """


@hookspec
def prepare_step(step: Step) -> None:
    """Prepare the host side of the coming target rows: tables, masks. Drafts are known here.

    When: once per step, after the plan. Since 1.
    """


@hookspec
def prepare_forward(ctx: ForwardContext) -> None:
    """Refill own state from `ctx.state(BATCH)`: tensor operations on persistent buffers only.

    When: first in every forward of every role, warm-up, capture and idle included, in the order of
    `requires`; it is captured and replayed with the forward. No wrappers. Since 1.
    """


@hookspec
def adjust_logits(rows: LogitRows) -> None:
    """Edit `rows.logits` in place.

    When: after a target forward, before temperature. Each row knows its request, position and the
    drafts before it, and nothing else may steer the edit. Chain, config order. Since 1.
    """


@hookspec
def commit(step: Step) -> None:
    """`step.outcome`'s tokens are now the requests'. When: once per step, after `KV.commit`. Since 1."""


@hookspec
def step_done(report: StepReport) -> None:
    """Figures of a finished step. When: last in every step. Since 1."""
