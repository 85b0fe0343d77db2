"""Many clients at once, some of which leave or ask nonsense: what each was told, and whether it equals a solo run."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

TIE = 1e-3
LEAVE, NONSENSE = 0.2, 0.05
WRONG = (
    {"temperature": float("nan")},
    {"max_tokens": -1},
    {"no_such_field": 1},
    {"prompt": []},
    {"logit_bias": {"999999999": 1}},
    {"stop": 3},
)


@dataclass
class Soaked:
    """What came of it."""

    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    """Streams whose client went away."""
    answers: list[tuple[dict[str, Any], list[str]]] = field(default_factory=list)
    """Requests that were answered in whole, and the tokens of the answer."""
    wrong: list[str] = field(default_factory=list)
    """What should not have happened."""


class Soak:
    """Clients of one server.

    Args:
        url: of the server.
        prompts: a prompt of about so many words.
        most: new tokens of the longest answers.
        seed: fixes who asks what.
    """

    def __init__(self, url: str, prompts: Callable[[random.Random], Any], most: int, seed: int = 0) -> None:
        self._url, self._prompts, self._most, self._seed = url, prompts, most, seed
        self.soaked = Soaked()

    async def run(self, clients: int, going: Callable[[int], bool]) -> Soaked:
        """Let every client ask as long as `going` says of the number of requests it has made."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=300, limits=limits) as http:
            await asyncio.gather(*(self._client(http, number, going) for number in range(clients)))
        return self.soaked

    async def _client(self, http: httpx.AsyncClient, number: int, going: Callable[[int], bool]) -> None:
        draw, made = random.Random(f"{self._seed} {number}"), 0
        while going(made):
            body = self._body(draw)
            chance = draw.random()
            if chance < NONSENSE:
                await self._nonsense(http, {**body, **draw.choice(WRONG)})
            elif chance < NONSENSE + LEAVE:
                await self._leave(http, {**body, "stream": True}, draw.randint(1, 4))
            elif draw.random() < 0.5:
                await self._whole(http, body)
            else:
                await self._stream(http, {**body, "stream": True})
            made += 1

    def _body(self, draw: random.Random) -> dict[str, Any]:
        most = draw.choice((2, self._most // 4, self._most))
        return {"prompt": self._prompts(draw), "max_tokens": most, "temperature": 0, "logprobs": 2, "ignore_eos": True}

    async def _whole(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        answer = await http.post("/v1/completions", json=body)
        self._count(answer.status_code, 200)
        if answer.status_code == 200:
            self.soaked.answers.append((body, answer.json()["choices"][0]["logprobs"]["tokens"]))

    async def _stream(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        tokens, done = [], False
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            self._count(answer.status_code, 200)
            async for line in answer.aiter_lines():
                done = done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        self.soaked.wrong.append(str(event))
                        return
                    tokens += event["choices"][0]["logprobs"]["tokens"]
        if not done:
            self.soaked.wrong.append("a stream ended without [DONE]")
        self.soaked.answers.append((body, tokens))

    async def _leave(self, http: httpx.AsyncClient, body: dict[str, Any], after: int) -> None:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            self._count(answer.status_code, 200)
            async for line in answer.aiter_lines():
                after -= line.startswith("data: {")
                if after <= 0:
                    break
        self.soaked.left += 1

    async def _nonsense(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        answer = await http.post(
            "/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        self._count(answer.status_code, 400)
        if set(answer.json()) != {"error"}:
            self.soaked.wrong.append(answer.text)

    def _count(self, status: int, expected: int) -> None:
        self.soaked.statuses[status] += 1
        if status != expected:
            self.soaked.wrong.append(f"status {status} instead of {expected}")


async def unlike_solo(url: str, soaked: Soaked, most: int, seed: int = 0) -> list[str]:
    """Answers that differ from those of an idle server, but for near ties; `most` of them are asked again."""
    answers = random.Random(seed).sample(soaked.answers, min(most, len(soaked.answers)))
    unlike = []
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        for body, tokens in answers:
            alone = (await http.post("/v1/completions", json={**body, "stream": False})).json()
            scores = alone["choices"][0]["logprobs"]
            pairs = enumerate(zip(tokens, scores["tokens"], strict=True))
            at = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
            if at is not None:
                first, second = sorted(scores["top_logprobs"][at].values(), reverse=True)[:2]
                if first - second > TIE:
                    unlike.append(f"{body['prompt']!r:.60}, token {at}: {tokens[at]!r} and {scores['tokens'][at]!r}")
    return unlike
