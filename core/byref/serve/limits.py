"""How much the server takes on: requests at once, and bytes of a body. Knows counts; no engine."""

from __future__ import annotations

import math
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from byref.serve.errors import LIMITED, ApiError

FORGET = 0.9
"""Weight of what was known, when another request has ended."""


class Admission:
    """Counts requests from their arrival to their end, and refuses what is too many.

    Args:
        running: requests that the engine runs at once.
        queue: requests that may wait besides.
    """

    def __init__(self, running: int, queue: int) -> None:
        self._running, self.capacity = running, running + queue
        self.taken = 0
        """Requests that run or wait."""
        self._seconds = 1.0

    def take(self, weight: int, param: str) -> Place:
        """A place for a request that counts for `weight` (its prompts times its choices).

        Raises:
            ApiError: 400 if it can never have one, 429 if there is none now.
        """
        if weight > self.capacity:
            what = f"the request asks for {weight} completions, and the server takes at most {self.capacity} at once"
            raise ApiError(what, param=param, code="too_many_completions")
        if self.taken + weight > self.capacity:
            ahead = (self.taken + weight - self.capacity) / self._running
            wait = max(1, math.ceil(ahead * self._seconds))
            raise ApiError(
                f"the server has {self.taken} requests and takes {self.capacity}; try again in {wait} s",
                status=429,
                type=LIMITED,
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )
        self.taken += weight
        return Place(self, weight)

    def give(self, weight: int, seconds: float) -> None:
        """A request has ended, after so long."""
        self.taken -= weight
        self._seconds = FORGET * self._seconds + (1 - FORGET) * seconds


class Place:
    """One request's place; given back once."""

    def __init__(self, admission: Admission, weight: int) -> None:
        self._admission, self._weight, self._since = admission, weight, time.perf_counter()

    def give_back(self) -> None:
        """Let others have it."""
        weight, self._weight = self._weight, 0
        if weight:
            self._admission.give(weight, time.perf_counter() - self._since)


class BodyLimit:
    """Refuses bodies of more than `most` bytes, declared or sent, before anybody reads them."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most:
            return await self._refusal().response()(scope, receive, send)
        reading = _Reading(self._most, receive, send, self._refusal())
        return await self._app(scope, reading.receive, reading.send)

    def _refusal(self) -> ApiError:
        return ApiError(f"the body has more than {self._most} bytes", status=413, code="body_too_large")


class _Reading:
    """One request's body on its way in. Whatever is made of a body that was cut off, the refusal is the answer."""

    def __init__(self, most: int, receive: Receive, send: Send, refusal: ApiError) -> None:
        self._left, self._receive, self._send, self._refusal = most, receive, send, refusal
        self._refused = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise self._refusal
        return message

    async def send(self, message: Message) -> None:
        if self._left >= 0:
            return await self._send(message)
        if not self._refused:
            self._refused = True
            await self._refusal.response()({"type": "http"}, self._receive, self._send)
        return None
