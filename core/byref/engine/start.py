"""The order of a start: models, specs, sizing, states, weights, bind. Knows every room, computes nothing."""

from __future__ import annotations

import copy
import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, TypeVar

import torch

from byref.answers import ANSWERS
from byref.capture import make_capture
from byref.config import Config
from byref.contract.context import StateMap
from byref.contract.errors import ConfigError, ModelError, PluginError
from byref.contract.model import Model
from byref.contract.plugin import RoleSource
from byref.contract.roles import (
    KV,
    KV_POOLS,
    KV_REWIND,
    TARGET,
    Policy,
    RoleSizing,
    Scratch,
    Site,
    Sizing,
    Speculator,
    Vocabulary,
)
from byref.contract.specs import PoolSpec
from byref.contract.state import State
from byref.contract.step import MAX_TREE
from byref.engine.batch import RowBatch
from byref.engine.device import available_bytes, captured_kinds, pick_device, pick_dtype
from byref.engine.forwards import Forwards, Prepare, Unit
from byref.engine.policy import POLICIES
from byref.engine.speculator import PlainSpeculator
from byref.kv import ContiguousKV
from byref.loading import Checkpoint, ParameterReader, check_same_vocabulary, open_checkpoint
from byref.plugins.binder import Binder
from byref.plugins.host import PluginHost
from byref.plugins.registry import ROLE

R = TypeVar("R")


@dataclass(slots=True)
class Parts:
    """What a start makes."""

    host: PluginHost
    binder: Binder
    sizing: Sizing
    checkpoint: Checkpoint
    forwards: Forwards
    kv: KV
    speculator: Speculator
    policy: Policy
    units: tuple[Unit, ...]


class _Role:
    """One role on its way to a unit."""

    def __init__(self, name: str, id: int, checkpoint: Checkpoint, source: RoleSource, host: PluginHost) -> None:
        self.name, self.id, self.checkpoint = name, id, checkpoint
        self.architecture = (source.architecture or "{}").replace("{}", checkpoint.architecture)
        self.config = copy.deepcopy(checkpoint.config)
        self.optional: tuple[str, ...] = ()
        self.renames: tuple[tuple[str, str], ...] = ()
        for key, value in source.overrides.items():
            setattr(self.config, key, value)
        self._models = host.registry.models
        self._suffix = (source.architecture or "").removeprefix("{}")
        self._owner = None if name == TARGET else host.registry.owner(ROLE, name)

    @cached_property
    def factory(self) -> Any:
        """The class registered for the architecture."""
        if self.architecture not in self._models:
            raise self._unknown()
        return resolve_name(self._models[self.architecture])

    def _unknown(self) -> ModelError:
        what = f"no enabled plugin knows the architecture {self.architecture!r}"
        where, known = str(self.checkpoint.path), sorted(self._models)
        if self._owner is None:
            hint = f"known are: {', '.join(known) or 'none'}; enable the plugin that has it"
            return ModelError(what, where=where, hint=hint)
        fitting = [name.removesuffix(self._suffix) for name in known if name.endswith(self._suffix)]
        where = f"{where}, for the role {self.name!r} of the plugin {self._owner}"
        hint = f"a checkpoint of {', '.join(fitting) or 'another architecture'}, or other options of the plugin"
        return ModelError(what, where=where, hint=hint)

    def build(self, binder: Binder) -> Model:
        """The model, asking for its callables; on the meta device, so that nothing is allocated."""
        with torch.device("meta"):
            model: Model = self.factory(self.config, binder.ask(self.name))
        self.optional, self.renames = model.optional, model.renames
        return model


def assemble(config: Config, host: PluginHost) -> Parts:
    """Everything from loaded plugins to bound models."""
    device = pick_device(config.model.device)
    dtype = pick_dtype(config.model.dtype, device)
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    roles = _open_roles(config, host)
    binder = Binder(host.hooks, ANSWERS, config.bind)
    models = {role.name: role.build(binder) for role in roles}
    pools = binder.refine(dtype)
    sizing = _size(config, host, roles, models, pools, device, dtype)
    states = host.hooks.create_states(sizing)
    kv = _exclusive(KV, states, lambda: ContiguousKV(sizing))
    _check_kv(host, states)
    speculator = _exclusive(Speculator, states, PlainSpeculator)
    policy = _exclusive(Policy, states, lambda: _policy(config, host))
    _bind(binder, roles, sizing, kv)
    units = tuple(_unit(role, models[role.name], sizing, states, kv) for role in roles)
    capture = make_capture(sizing, [u.states for u in units], [u.batch for u in units], binder.bound)
    forwards = Forwards(units, _prepare(host, kv), capture, sizing)
    return Parts(host, binder, sizing, roles[0].checkpoint, forwards, kv, speculator, policy, units)


def _open_roles(config: Config, host: PluginHost) -> list[_Role]:
    sources: Mapping[str, RoleSource] = {TARGET: RoleSource(path=config.model.path), **host.registry.roles}
    opened: dict[str, Checkpoint] = {}
    roles = []
    for id, (name, source) in enumerate(sources.items()):
        path = source.path or config.model.path
        opened[path] = opened.get(path) or open_checkpoint(path)
        if source.same_vocabulary and path != config.model.path:
            check_same_vocabulary(opened[config.model.path], opened[path], name)
        roles.append(_Role(name, id, opened[path], source, host))
    return roles


def _size(
    config: Config,
    host: PluginHost,
    roles: Sequence[_Role],
    models: Mapping[str, Model],
    pools: tuple[PoolSpec, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Sizing:
    engine = config.engine
    own = int(roles[0].config.max_position_embeddings)
    if engine.max_context > own:
        raise ConfigError(
            f"max_context is {engine.max_context}, and the model has positions for {own}",
            where="[engine] max_context",
            hint=f"at most {own}",
        )
    context = engine.max_context or own
    drafts = host.registry.max_drafts
    if drafts > MAX_TREE:
        raise PluginError(f"windows of {drafts} drafts are announced, and {MAX_TREE} is the most", hint="draft less")
    return Sizing(
        device=device,
        dtype=dtype,
        max_requests=engine.max_requests,
        max_rows=max(engine.max_rows, drafts + 1),
        max_context=context,
        max_drafts=drafts,
        kv_tokens=engine.kv_tokens or _room(pools, device, engine.max_requests, context + drafts),
        captured=captured_kinds(engine.capture, device),
        roles=tuple(RoleSizing(r.name, r.id, models[r.name].vocabulary, models[r.name].input_width) for r in roles),
        pools=pools,
        vocabulary=_vocabulary(roles[0].checkpoint),
    )


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """Its tokenizer is built when a plugin asks: that takes a while."""

    def definition() -> str:
        return str(checkpoint.tokenizer().backend.to_str())

    return Vocabulary(checkpoint.end_ids, definition)


def _room(pools: Sequence[PoolSpec], device: torch.device, requests: int, context: int) -> int:
    """Tokens that a quarter of the free memory holds; at least one whole context, at most all requests' contexts."""
    token = sum(
        (p.codec.width(p.width) if p.codec else p.width) * (p.codec.dtype if p.codec else p.dtype).itemsize / p.stride
        for p in pools
        if p.per == "token"
    )
    fits = int(available_bytes(device) / 4 / token) if token else requests * context
    return max(context, min(fits, requests * context))


def _exclusive(kind: type[R], states: Sequence[tuple[str, State]], default: Any) -> R:
    """The one state that is of `kind`, or core's default."""
    claims = [(plugin, state) for plugin, state in states if isinstance(state, kind)]
    if len(claims) > 1:
        names = " and ".join(plugin for plugin, _ in claims)
        raise PluginError(f"{names} both take the role {kind.__name__}", hint="enable one of them")
    found: R = claims[0][1] if claims else default()
    return found


def _check_kv(host: PluginHost, states: Sequence[tuple[str, State]]) -> None:
    """What core's KV can do counts as provided; a plugin that takes its place must provide what is required."""
    provided = {name for loaded in host.plugins for name in loaded.info.provides}
    for owner in (plugin for plugin, state in states if isinstance(state, KV)):
        for loaded in host.plugins:
            missing = {KV_REWIND, KV_POOLS} & set(loaded.info.requires) - provided
            if missing:
                raise PluginError(
                    f"{loaded.name} requires {min(missing)}, which the KV of {owner} does not provide",
                    hint="enable another KV, or none: core's own provides it",
                )


def _policy(config: Config, host: PluginHost) -> Policy:
    known = {**POLICIES, **host.registry.policies}
    name = config.engine.policy
    if name not in known:
        raise ConfigError(
            f"no scheduling policy {name!r}", where="[engine] policy", hint=f"one of: {', '.join(sorted(known))}"
        )
    policy: Policy = known[name]()
    return policy


def _bind(binder: Binder, roles: Sequence[_Role], sizing: Sizing, kv: KV) -> None:
    readers = {role.name: ParameterReader(role.checkpoint, sizing.dtype, sizing.device, role.renames) for role in roles}
    binder.bind(lambda role, resolve: Site(sizing, kv, readers[role], resolve))
    unread: dict[str, set[str]] = {}
    for role in roles:
        left = {
            name
            for name in readers[role.name].unclaimed()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in role.optional)
        }
        path = str(role.checkpoint.path)
        unread[path] = unread.get(path, left) & left
    for path, names in unread.items():
        if names:
            raise ModelError(
                f"the checkpoint has {len(names)} tensors that nothing reads, first {min(names)!r}",
                where=path,
                hint="the configuration and the weights do not belong together, or a role's plugin is not enabled",
            )


def _unit(role: _Role, model: Model, sizing: Sizing, states: Sequence[tuple[str, State]], kv: KV) -> Unit:
    attached = StateMap(role.name)
    batch = RowBatch(sizing)
    attached.attach(batch, "core")
    attached.attach(Scratch(), "core")
    if isinstance(kv, ContiguousKV):
        attached.attach(kv, "core")
    for plugin, state in states:
        if state.roles is None or role.name in state.roles:
            attached.attach(state, plugin)
    attached.seal()
    width = model.input_width
    rows = batch.buffers()["rows"].shape[1]
    blank = torch.zeros(rows, width, dtype=sizing.dtype, device=sizing.device) if width else None
    return Unit(role.name, role.id, model, batch, attached, blank)


def _prepare(host: PluginHost, kv: KV) -> Prepare:
    """Core's own refill first, then the plugins'."""
    if not isinstance(kv, ContiguousKV):
        return host.hooks.prepare_forward
    if not host.hooks.has("prepare_forward"):
        return kv.refill

    def prepare(ctx: Any) -> None:
        kv.refill(ctx)
        host.hooks.prepare_forward(ctx)

    return prepare


def default_seed(seed: int | None) -> int:
    """`seed`, or 64 bits of the system's entropy."""
    return int.from_bytes(os.urandom(8), "little", signed=True) if seed is None else seed
