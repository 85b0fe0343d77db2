"""Answers that follow a grammar, as a plugin: one hook masks what may not come next, llguidance knows what may.

Each row of logits is masked after its own prefix: the request's tokens and the drafts before the row. So the answer is
the same with speculation and without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract import RequestError
from byref.contract.roles import TARGET
from byref_structured_output.form import Form

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from byref.contract import LogitRows, Request, Step
    from byref.contract.requests import Reason
    from byref.contract.roles import Sizing

__all__ = ["Form", "StructuredOutput"]


class StructuredOutput(Plugin):
    """Holds answers to the form that their request asks for: `plugins: {structured_output: {json_schema: ...}}`."""

    info = PluginInfo(api_version=API_VERSION, provides=("structured_output",), lossless=True)
    RequestOptions = Form

    def __init__(self, name: str, options: Any) -> None:
        super().__init__(name, options)
        self._matchers: dict[str, LLMatcher] = {}
        self._tokenizer: LLTokenizer | None = None

    @hookimpl
    def create_states(self, sizing: Sizing) -> None:
        self._sizing = sizing

    @hookimpl
    def request_added(self, request: Request) -> None:
        """Also after a preemption: then some of its answer is there already."""
        form = request.options.get(self.name)
        if isinstance(form, Form):
            matcher = self._matcher(form)
            matcher.consume_tokens(request.tokens[len(request.prompt) :])
            self._matchers[request.id] = _checked(matcher)

    @hookimpl
    def request_forked(self, parent: Request, child: Request) -> None:
        self.request_added(child)

    @hookimpl
    def request_released(self, request: Request, reason: Reason) -> None:
        self._matchers.pop(request.id, None)

    @hookimpl
    def adjust_logits(self, rows: LogitRows) -> None:
        for info, logits in rows:
            matcher = self._matchers.get(info.request.id)
            if matcher is None or info.position < len(info.request.tokens):
                continue  # free, or a row of the prompt
            if info.drafts:
                matcher = matcher.deep_copy()
                if not matcher.consume_tokens(list(info.drafts)):
                    continue  # the mask of a row before has refused one of these drafts: nobody gets here
            mask(logits, matcher, self._sizing.vocabulary.end_ids)

    @hookimpl
    def commit(self, step: Step) -> None:
        for id, verdict in step.outcome.items():
            if id in self._matchers and verdict.tokens:
                self._matchers[id].consume_tokens(list(verdict.tokens))

    def _matcher(self, form: Form) -> LLMatcher:
        from llguidance import LLMatcher

        return _checked(LLMatcher(self._vocabulary(), form.grammar(), log_level=0))

    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as llguidance reads it, made for the first request that needs it."""
        if self._tokenizer is None:
            from llguidance import LLTokenizer

            vocabulary = self._sizing.vocabulary
            rows = self._sizing.role(TARGET).vocabulary
            ends = sorted(vocabulary.end_ids) or None
            self._tokenizer = LLTokenizer(vocabulary.definition(), n_vocab=rows, eos_token=ends)
        return self._tokenizer


def mask(logits: Any, matcher: LLMatcher, end_ids: frozenset[int]) -> None:
    """Leave only what may come next; where the form is complete, only what ends the turn."""
    import torch

    if matcher.is_stopped():
        allowed = torch.zeros(logits.numel(), dtype=torch.bool)
        allowed[sorted(end_ids)] = True
    else:
        allowed = torch.frombuffer(bytearray(matcher.compute_logit_bias()), dtype=torch.uint8) > 0
    logits[: allowed.numel()].masked_fill_(~allowed[: logits.numel()].to(logits.device), float("-inf"))


def _checked(matcher: LLMatcher) -> LLMatcher:
    if matcher.is_error():
        raise RequestError(f"the form of the answer cannot be followed: {matcher.get_error()}", hint="a simpler form")
    return matcher
