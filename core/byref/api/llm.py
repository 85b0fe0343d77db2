"""`LLM` answers prompts and conversations. Knows what a program asks for; the engine shares its steps among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

from byref.api.progress import Batch
from byref.api.settings import Options, PluginLike, classes_of, configure
from byref.config import Config
from byref.contract.errors import RequestError
from byref.contract.requests import Reason, SamplingParams
from byref.engine import Chunk, Completion, Engine, Timings
from byref.engine.engine import Prompt
from byref.engine.intake import parse_params
from byref.text import Message

Conversation = Sequence[Message]
One = SamplingParams | Mapping[str, Any]
Params = One | Sequence[One] | None
Errors = Literal["raise", "return"]


class LLM:
    """One model with its plugins, ready for prompts.

    Example:
        ```python
        with LLM("smollm2", max_requests=8) as llm:
            for done in llm.generate(["The sky is", "Grass is"], SamplingParams(max_tokens=16)):
                print(done.text)
        ```

    What no argument sets comes from `byref.toml` in the current folder and from `BYREF_*` variables, as on the
    command line. Not safe to call from several threads; several iterators may be open at once.

    Args:
        model: an alias of `byref pull`, a GGUF file, a folder in the layout of transformers, or a hub id.
        plugins: changes to the enabled plugins, in order: a name or a file (`"./mine.py"`) adds one, `"no:name"`
            leaves one out, a class is added under its name in snake_case.
        options: options of plugins, by their names.
        config: the whole configuration, which then stands alone; or a file of one, instead of the current folder's.
        settings: values of [model] and [engine] by their names: `dtype="float32"`, `max_requests=8`.

    Raises:
        ConfigError, PluginError, ModelError: what is wrong, where, and what to do next.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        plugins: Sequence[PluginLike] = (),
        options: Options | None = None,
        config: Config | Path | str | None = None,
        **settings: Any,
    ) -> None:
        chosen = configure(model, plugins, options or {}, config, settings)
        self.engine = Engine.start(chosen, classes_of(plugins))
        """What runs the requests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs and shut the plugins down."""
        self.engine.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        progress: bool | None = None,
        errors: Errors = "raise",
        **request: Any,
    ) -> list[Completion]:
        """Complete one prompt, or several at once: their completions, in the prompts' order.

        Args:
            prompts: texts, or lists of token ids.
            params: for all of them, or one for each; a table by name is as good as `SamplingParams`.
            progress: show a progress bar; unless told, for several prompts on a terminal.
            errors: raise the first request's error and end the others, or return completions that carry errors.
            request: `options` (of the requests, by plugin name) and `priority`.

        Raises:
            RequestError: a prompt that cannot be served, or a wrong parameter.
            EngineStopped: the engine has stopped; it answers no more.
        """
        _check(request)
        several = _several(prompts)
        pairs = list(zip(several, _per_prompt(params, len(several)), strict=True))
        with Batch(len(pairs), progress) as batch:
            return self._complete(pairs, batch, errors, request)

    def chat(
        self, messages: Conversation | Sequence[Conversation], params: Params = None, **how: Any
    ) -> list[Completion]:
        """Answer one conversation, or several at once, with the model's chat template.

        Args:
            messages: `{"role": ..., "content": ...}`, oldest first; or a list of such conversations.
            params: for all of them, or one for each.
            how: as for `generate`.

        Raises:
            ModelError: the model has no chat template.
            RequestError: the template refuses the messages, or as for `generate`.
        """
        one = not messages or isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Conversation], [messages] if one else messages)
        return self.generate([self.render(conversation) for conversation in conversations], params, **how)

    def stream(self, prompt: Prompt, params: One | None = None, **request: Any) -> Iterator[Chunk]:
        """The completion of one prompt as it comes; the last chunk carries the whole. Leaving early aborts it.

        Args:
            prompt: a text, or token ids (those of a conversation are `render`'s).
            params: how its tokens are chosen.
            request: `options`, `priority` and `id` of the request.

        Raises:
            RequestError, EngineStopped: at the first chunk, or when it happens.
        """
        for _, chunk in self.stream_batch([prompt], params, **request):
            yield chunk

    def stream_batch(
        self, prompts: Sequence[Prompt], params: Params = None, **request: Any
    ) -> Iterator[tuple[int, Chunk]]:
        """The completions of several prompts as they come, interleaved: (which prompt, chunk).

        The first error ends them all. Arguments and errors as for `stream`.
        """
        _check(request)
        numbers: dict[str, int] = {}
        try:
            for number, (prompt, one) in enumerate(zip(prompts, _per_prompt(params, len(prompts)), strict=True)):
                numbers[self.engine.add(prompt, one, **request)] = number
            for chunk in self.engine.follow(*numbers):
                _raise_error(chunk)
                yield numbers[chunk.request_id], chunk
        finally:
            self._abort(numbers)

    def _abort(self, ids: Iterable[str]) -> None:
        """End those of these requests that have not ended."""
        for id in ids:
            self.engine.abort(id)

    def render(self, messages: Conversation) -> list[int]:
        """The token ids of a conversation, up to where the answer begins.

        Raises:
            ModelError: the model has no chat template.
            RequestError: the template refuses the messages.
        """
        tokenizer = self.engine.tokenizer
        return tokenizer.encode(tokenizer.chat(messages), special=False)

    def _complete(
        self, pairs: Sequence[tuple[Prompt, SamplingParams]], batch: Batch, errors: Errors, request: Mapping[str, Any]
    ) -> list[Completion]:
        done: dict[int, Completion] = {}
        numbers: dict[str, int] = {}
        try:
            for number, (prompt, params) in enumerate(pairs):
                try:
                    numbers[self.engine.add(prompt, params, **request)] = number
                except RequestError as error:
                    if errors == "raise":
                        raise
                    done[number] = _refused(prompt, error)
                    batch.count(finished=True)
            for chunk in self.engine.follow(*numbers):
                if errors == "raise":
                    _raise_error(chunk)
                batch.count(len(chunk.token_ids), finished=chunk.completion is not None)
                if chunk.completion is not None:
                    done[numbers[chunk.request_id]] = chunk.completion
        finally:
            self._abort(numbers)
        return [done[number] for number in range(len(pairs))]


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of one or several. A list of integers is one."""
    one = isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(token, int) for token in prompts))
    return cast(list[Prompt], [prompts] if one else list(prompts))


def _per_prompt(params: Params, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams | Mapping):
        return [parse_params(params)] * count
    if len(params) != count:
        raise RequestError(
            f"{len(params)} sampling parameters for {count} prompts", hint="one for all, or one for each"
        )
    return [parse_params(one) for one in params]


def _check(request: Mapping[str, Any]) -> None:
    """Refuse sampling parameters where those of requests stand; Python refuses what is neither."""
    for name in request:
        if name in SamplingParams.model_fields:
            hint = f"SamplingParams({name}=...)"
            raise RequestError(f"{name} is a sampling parameter, and no argument of its own", hint=hint)


def _raise_error(chunk: Chunk) -> None:
    if chunk.completion is not None and chunk.completion.error is not None:
        raise chunk.completion.error


def _refused(prompt: Prompt, error: RequestError) -> Completion:
    ids = () if isinstance(prompt, str) else tuple(prompt)
    return Completion("", ids, (), "", Reason.FAILED, 0, Timings(0.0, 0.0, 0.0), error=error)
