"""The real client, as programs use it: both endpoints, whole and streamed, sync and async."""

import asyncio
import json

import openai
import pytest
from serving import PATIENCE

QUESTION = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is a bird?"}]


@pytest.fixture(scope="module")
def client(served):
    with served.client() as one:
        yield one


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == 256
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_a_stream_says_what_the_whole_answer_says(client, served):
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 24, "temperature": 0.0}
    whole = client.completions.create(**asked)
    events = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(event.choices[0].text for event in events[:-1]) == whole.choices[0].text
    assert [event.choices[0].finish_reason for event in events[:-1] if event.choices[0].finish_reason] == ["length"]
    assert events[-1].choices == []
    assert events[-1].usage == whole.usage
    assert whole.usage.prompt_tokens == len(served.engine.tokenizer.encode("abc"))
    assert whole.usage.completion_tokens == 24
    assert len({event.id for event in events}) == 1


def test_the_engine_says_the_same(client, served):
    from engines import greedy, start

    with start(served.desk.config.model.path) as engine:
        expected = engine.generate(["abc"], greedy(12))[0].text
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == expected


def test_chats_whole_and_streamed(client, served):
    asked = {"model": "tiny", "messages": QUESTION, "max_tokens": 16, "temperature": 0.0}
    whole = client.chat.completions.create(**asked)
    events = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events[:-1]) == whole.choices[0].message.content
    assert events[-1].usage == whole.usage
    text = "<turn>system: be brief<turn>user: what is a bird?<turn>"
    assert whole.usage.prompt_tokens == len(served.engine.tokenizer.encode(text, special=False))


def test_async_clients_together(served):
    prompts = [f"prompt {i}" for i in range(12)]

    async def one(client, prompt):
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": 10, "temperature": 0.0}
        stream = await client.completions.create(**asked, stream=True)
        streamed = "".join([event.choices[0].text async for event in stream])
        return streamed, (await client.completions.create(**asked)).choices[0].text

    async def all_of_them():
        settings = {"base_url": f"{served.url}/v1", "api_key": "none", "timeout": PATIENCE}
        async with openai.AsyncOpenAI(**settings) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    pairs = asyncio.run(all_of_them())
    assert all(streamed == whole for streamed, whole in pairs)
    assert len({whole for _, whole in pairs}) == len(prompts), "answers are mixed up"
    served.assert_idle()


def test_several_prompts_and_choices(client):
    asked = {"model": "tiny", "prompt": ["abc", [5, 6, 7]], "n": 2, "seed": 3, "max_tokens": 6}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = {}
    for event in client.completions.create(**asked, stream=True):
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert whole.choices[0].text != whole.choices[1].text


def test_echo_and_logprobs(client, served):
    ids = served.engine.tokenizer.encode("abcdef")
    asked = {"model": "tiny", "prompt": "abcdef", "temperature": 0, "logprobs": 3, "max_tokens": 4}
    plain = client.completions.create(**asked).choices[0]
    echoed = client.completions.create(**asked, echo=True).choices[0]
    assert echoed.text == "abcdef" + plain.text
    assert echoed.logprobs.token_logprobs[0] is None
    assert echoed.logprobs.top_logprobs[0] is None
    assert echoed.logprobs.token_logprobs[len(ids) :] == plain.logprobs.token_logprobs
    assert "".join(echoed.logprobs.tokens[: len(ids)]) == "abcdef"
    assert echoed.logprobs.text_offset[: len(ids) + 1][-1] == len("abcdef")
    assert all(3 <= len(top) <= 4 for top in echoed.logprobs.top_logprobs[1:])
    silent = client.completions.create(**(asked | {"max_tokens": 0}), echo=True)
    assert silent.choices[0].logprobs.tokens == echoed.logprobs.tokens[: len(ids)]
    assert silent.usage.completion_tokens == 0


def test_streamed_logprobs(client):
    asked = {"model": "tiny", "prompt": "abcdef", "temperature": 0, "logprobs": 2, "max_tokens": 8}
    whole = client.completions.create(**asked).choices[0].logprobs
    events = [event.choices[0] for event in client.completions.create(**asked, stream=True)]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for event in events for item in getattr(event.logprobs, field)] == getattr(whole, field), field


def gathered(events):
    """Per choice what a stream's events come to, as the whole answer has it."""
    choices = {}
    for event in events:
        for piece in event.choices:
            choice = choices.setdefault(piece.index, {"text": "", "finish_reason": None, "logprobs": {}})
            choice["text"] += piece.text
            choice["finish_reason"] = piece.finish_reason or choice["finish_reason"]
            for name, entries in piece.logprobs.model_dump().items() if piece.logprobs else ():
                choice["logprobs"].setdefault(name, []).extend(entries)
    return choices


ECHOED = {
    "greedy": {"temperature": 0},
    "several choices": {"n": 3, "seed": 4},
    "several prompts": {"prompt": ["abc", [5, 6, 7, 8], "b"], "n": 2, "seed": 5},
    "one token of prompt": {"prompt": [9], "temperature": 0},
    "no top": {"logprobs": 0, "seed": 6},
    "nothing new": {"max_tokens": 0},
    "nothing new, several": {"prompt": ["abc", [5, 6]], "max_tokens": 0, "n": 2, "seed": 5},
    "a long prompt": {"prompt": "abcdefgh" * 16, "temperature": 0},
    "characters of several tokens": {"prompt": "1 € and 🙂", "temperature": 0},
    "a stop string": {"stop": ["a", "e", "o"], "seed": 8, "max_tokens": 40},
}


@pytest.mark.parametrize("case", ECHOED)
def test_a_stream_that_echoes_with_logprobs(client, case):
    asked = {"model": "tiny", "prompt": "abcdef", "logprobs": 2, "max_tokens": 6, "echo": True} | ECHOED[case]
    whole = client.completions.create(**asked)
    events = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    streamed = gathered(events)
    assert sorted(streamed) == [choice.index for choice in whole.choices]
    begun = set()
    for choice in whole.choices:
        told = choice.logprobs.model_dump()
        assert streamed[choice.index] == {"text": choice.text, "finish_reason": choice.finish_reason, "logprobs": told}
        assert told["token_logprobs"][0] is None
        assert None not in told["token_logprobs"][1:]
        for token, at in zip(told["tokens"], told["text_offset"], strict=True):
            there = choice.text[at : at + len(token)]
            assert token.startswith((there, "<")) or not token.isascii() or "\ufffd" in there
        assert told["text_offset"] == sorted(told["text_offset"])
    for event in events[:-1]:
        (piece,) = event.choices
        if piece.index not in begun:
            assert piece.logprobs.token_logprobs[0] is None, "an answer before its prompt"
            assert piece.finish_reason is None
        begun.add(piece.index)
    assert events[-1].usage == whole.usage


def test_prompt_logprobs_are_streamed_too(client, served):
    asked = {"max_tokens": 5, "seed": 3, "n": 2, "prompt_logprobs": 2}
    for path, body in (
        ("/v1/completions", {"prompt": "abcd", "logprobs": 5}),
        ("/v1/completions", {"prompt": "abcd", "echo": True}),
        ("/v1/chat/completions", {"messages": QUESTION}),
    ):
        whole = served.ask(path, {**asked, **body}).body
        events = served.ask(path, {**asked, **body, "stream": True}).body
        pieces = [choice for event in parsed(events) for choice in event["choices"]]
        for choice in whole["choices"]:
            mine = [piece for piece in pieces if piece["index"] == choice["index"] and "prompt_logprobs" in piece]
            assert [piece["prompt_logprobs"] for piece in mine] == [choice["prompt_logprobs"]]
            assert all(2 <= len(scores) <= 3 for scores in choice["prompt_logprobs"][1:]), "more than was asked for"


def parsed(stream):
    """The events of a stream, as they came."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_chat_logprobs(client):
    asked = {
        "model": "tiny",
        "messages": QUESTION,
        "max_tokens": 5,
        "temperature": 1.5,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(whole) == 5
    assert any(token.logprob < token.top_logprobs[0].logprob for token in whole), "nothing unlikely was chosen"
    for token in whole:
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert not token.bytes or bytes(token.bytes).decode() == token.token
    events = client.chat.completions.create(**asked, stream=True)
    streamed = [one for event in events if event.choices[0].logprobs for one in event.choices[0].logprobs.content]
    assert streamed == whole


def test_a_stream_that_is_closed_early_is_aborted(client, served):
    stream = client.completions.create(
        model="tiny", prompt="abc", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    served.assert_idle()


def test_tokens_and_texts(served):
    found = served.ask("/tokenize", {"prompt": "hello"}).body
    assert found["tokens"] == served.engine.tokenizer.encode("hello")
    assert found["count"] == len(found["tokens"])
    assert served.ask("/detokenize", {"tokens": found["tokens"]}).body == {"prompt": "hello"}
