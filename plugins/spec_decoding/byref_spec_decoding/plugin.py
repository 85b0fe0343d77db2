"""The plugin: which drafter runs, and the hooks it answers through. Knows no drafter's ways and no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.errors import ConfigError, PluginError
from byref.contract.explain import problems, raise_problems
from byref.contract.roles import KV_REWIND, SPECULATION
from byref_spec_decoding.options import Options, RequestOptions

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.plugin import Registry
    from byref.contract.requests import Reason, Request
    from byref.contract.roles import Site, Sizing
    from byref.contract.specs import PoolSpec, Spec
    from byref.contract.state import State
    from byref.contract.step import Step
    from byref_spec_decoding.drafter import Drafter

DRAFTERS = {
    "ngram": "byref_spec_decoding.drafters.ngram:Ngram",
    "suffix": "byref_spec_decoding.drafters.suffix:Suffix",
    "draft_model": "byref_spec_decoding.drafters.draft_model:DraftModel",
    "self": "byref_spec_decoding.drafters.itself:Itself",
    "eagle": "byref_spec_decoding.drafters.eagle:Eagle",
    "mtp": "byref_spec_decoding.drafters.mtp:Mtp",
}


class SpecDecoding(Plugin[Options]):
    """Drafts several tokens and verifies them in one forward. The output is that of plain decoding."""

    info = PluginInfo(api_version=API_VERSION, provides=(SPECULATION,), requires=(KV_REWIND,))
    Options = Options
    RequestOptions = RequestOptions

    @hookimpl(trylast=True)
    def register(self, registry: Registry) -> None:
        """Last of all, so that drafters of other plugins are known."""
        from byref_spec_decoding.drafter import KIND

        for name, target in DRAFTERS.items():
            registry.register(KIND, name, target)
        chosen = self._chosen(registry)
        options = self._drafter_options(chosen)
        self._check_rejection(chosen)
        self._drafter = chosen(options, self.options.max_draft_tokens, tree=self._tree(chosen))
        for name, source in chosen.roles(options).items():
            registry.role(name, source)
        for architecture, target in self._drafter.architectures().items():
            registry.model(architecture, target)
        registry.drafts(self.options.max_draft_tokens)
        registry.command("bench spec", "byref_spec_decoding.bench:bench_spec")

    def _chosen(self, registry: Registry) -> type[Drafter]:
        from byref_spec_decoding.drafter import KIND, Drafter

        name, where = self.options.drafter, f"[plugins.{self.name}] drafter"
        try:
            found: Any = registry.lookup(KIND, name)
        except PluginError as unknown:
            hint = f"{unknown.hint} Another plugin's is known once that is enabled."
            raise ConfigError(unknown.what, where=f"{where}; {unknown.where}", hint=hint) from unknown
        chosen = resolve_name(found) if isinstance(found, str) else found
        if not (isinstance(chosen, type) and issubclass(chosen, Drafter)):
            hint = f"registry.register(KIND, {name!r}, ...) takes a subclass of byref_spec_decoding.drafter.Drafter"
            raise PluginError(f"what is announced as the drafter {name!r} is none: {chosen!r}", where=where, hint=hint)
        return chosen

    def _drafter_options(self, chosen: type[Drafter]) -> Any:
        try:
            return chosen.Options.model_validate(dict(self.options.options))
        except ValidationError as error:
            drafter, where = self.options.drafter, f"[plugins.{self.name}.options]"
            hint = f"{drafter} takes: {', '.join(chosen.Options.model_fields) or 'no options'}"
            found = [replace(one, hint=one.hint or hint) for one in problems(error, chosen.Options)]
            raise_problems(ConfigError, found, lambda p: f"{where} {p.field} of drafter {drafter!r}", error)

    def _tree(self, chosen: type[Drafter]) -> bool:
        if self.options.tree and not chosen.trees:
            raise ConfigError(
                f"the drafter {self.options.drafter!r} offers no trees",
                where=f"[plugins.{self.name}] tree",
                hint="set tree to false, or choose suffix or eagle",
            )
        return self.options.tree

    def _check_rejection(self, chosen: type[Drafter]) -> None:
        if self.options.accept == "equal":
            return
        if not chosen.soft or self.options.tree:
            what = "keeps chains only, and tree is on" if chosen.soft else "brings nothing to a drafter without chances"
            raise ConfigError(
                f"rejection sampling {what} (drafter {self.options.drafter!r})",
                where=f"[plugins.{self.name}] accept",
                hint='accept = "equal", by which it accepts as often' if not chosen.soft else "tree = false",
            )
        self.info = replace(self.info, lossless=False)

    @hookimpl
    def refine(self, specs: Sequence[Spec[Any]]) -> None:
        self._drafter.seen(specs)

    @hookimpl
    def create_states(self, sizing: Sizing) -> Sequence[State]:
        from byref_spec_decoding.pace import Pace
        from byref_spec_decoding.speculator import SpecSpeculator

        if self.options.tree:
            _check_trees(sizing.pools, self.name)
        pace = Pace(adaptive=self.options.adaptive, drafting=self._drafter.runs_forwards)
        self._speculator = SpecSpeculator(
            self.name, self._drafter, pace, self.options.max_draft_tokens, rejects=self.options.accept == "rejection"
        )
        return [*self._drafter.states(sizing), self._speculator]

    @hookimpl
    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        return self._drafter.bind(spec, site)

    @hookimpl
    def decorate(self, spec: Spec[Any], call: Callable[..., Any]) -> Callable[..., Any]:
        self._drafter.bound(spec, call)
        return call

    @hookimpl
    def prepare_step(self, step: Step) -> None:
        self._speculator.begin(step)

    @hookimpl
    def prepare_forward(self, ctx: ForwardContext) -> None:
        self._drafter.prepare_forward(ctx)

    @hookimpl
    def commit(self, step: Step) -> None:
        self._speculator.commit(step)

    @hookimpl
    def request_added(self, request: Request) -> None:
        self._speculator.added(request)

    @hookimpl
    def request_forked(self, parent: Request, child: Request) -> None:
        self._speculator.added(child)

    @hookimpl
    def request_released(self, request: Request, reason: Reason) -> None:
        self._speculator.released(request, reason)

    def figures(self) -> Mapping[str, float]:
        return self._speculator.figures.as_mapping()


def _check_trees(pools: Sequence[PoolSpec], name: str) -> None:
    """A tree's path is compacted row by row, which entries that fold several rows together do not allow."""
    for pool in pools:
        if pool.stride > 1 or pool.per == "request":
            kind = f"one entry per {pool.stride} tokens" if pool.stride > 1 else "one entry per request"
            raise ConfigError(
                f"tree drafts are on, and the pool {pool.name!r} of role {pool.role!r} keeps {kind}",
                where=f"[plugins.{name}] tree",
                hint="set tree to false for this model",
            )
