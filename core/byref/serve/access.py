"""Who may call: API keys, and web pages of other origins. Knows headers; no request's content."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from byref.serve.errors import ApiError

OPEN = ("/health", "/", "/page.js", "/page.css")
"""Paths that ask for no key: they show whether the server is there, and the page that asks for one."""


class ApiKeys:
    """Lets only those in who present one of `keys` as a bearer token; how nearly right a wrong one is does not show."""

    def __init__(self, app: ASGIApp, keys: Sequence[SecretStr]) -> None:
        self._app = app
        self._keys = [key.get_secret_value().encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["path"] not in OPEN and scope["method"] != "OPTIONS"
        if asks and not self._known(dict(scope["headers"]).get(b"authorization", b"")):
            refusal = ApiError(
                "a valid API key is needed: Authorization: Bearer KEY",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            return await refusal.response()(scope, receive, send)
        return await self._app(scope, receive, send)

    def _known(self, header: bytes) -> bool:
        scheme, _, given = header.partition(b" ")
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]  # every one, whichever matches
        return scheme.lower() == b"bearer" and any(matches)
