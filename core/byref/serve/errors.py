"""The one shape of every error that a client sees. Knows status codes; shows no path and no traceback."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from byref.contract.errors import ByrefError, EngineStopped, ModelError, RequestError

log = logging.getLogger("byref.serve")

INVALID, UNKNOWN, LIMITED, SERVER = "invalid_request_error", "not_found_error", "rate_limit_error", "server_error"
_OPTIONS = re.compile(r"options of the request, plugin ([^ ,;]+)[^,]*(?:, field (.*))?")
STOPPED = "the engine has stopped, and answers nothing more; the server's log says why"


class ApiError(Exception):
    """What a client is told.

    Args:
        message: what was wrong, and what to do next.
        status: of the answer, unless a stream has begun.
        type: kind of error, as OpenAI names them.
        param: the field of the request that is wrong.
        code: a short name for programs.
        headers: of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message.encode("utf-8", "replace").decode()  # a client's half surrogates are no text
        self.status, self.type, self.param, self.code = status, type, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer, or the last event of a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def unsupported(param: str, message: str) -> ApiError:
    """A field or value that this server does not serve."""
    return ApiError(message, param=param, code="unsupported")


def told(error: BaseException) -> ApiError:
    """What a client is told of an error; what it is not told goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineStopped):
        return ApiError(STOPPED, status=500, type=SERVER, code="engine_stopped")
    if isinstance(error, RequestError | ModelError) and not _is_plugins_fault(error):
        code = "no_chat_template" if isinstance(error, ModelError) else None
        return ApiError(_text(error), param=field_of(error), code=code)
    log.error("a request failed", exc_info=error)
    if isinstance(error, ByrefError):
        what = "a plugin failed while it served this request; the server's log says which, and how"
        return ApiError(what, status=500, type=SERVER, code="plugin_failed")
    return ApiError("the server made a mistake; its log says which", status=500, type=SERVER, code="internal_error")


def field_of(error: ByrefError) -> str | None:
    """The field of the request that an error names."""
    options = _OPTIONS.match(error.where)
    if options:
        return ".".join(filter(None, ("plugins", *options.groups())))
    _, found, field = error.where.rpartition(", field ")
    return field if found and field else None


def _is_plugins_fault(error: ByrefError) -> bool:
    """Whether it was raised by accident in a hook, and not to refuse the request."""
    return ", hook " in f", {error.where}" and not isinstance(error.__cause__, ByrefError)


def _text(error: ByrefError) -> str:
    return f"{error.what} (try: {error.hint})" if error.hint else error.what


def of_validation(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, and the field it is in."""
    first = error.errors()[0]
    loc = [part for part in first["loc"] if part != "body"]
    param = path(loc) or None
    if first["type"] == "extra_forbidden":
        return unsupported(param or "", f"the field {param!r} is not supported")
    if first["type"] == "json_invalid":
        return ApiError(f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}", code="invalid_json")
    if first["type"] == "model_attributes_type" and isinstance(first["input"], str | bytes):  # it was not read as JSON
        message = "the body is taken as JSON only where the header Content-Type: application/json says so"
        return ApiError(message, code="invalid_json")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{param or 'the body'}: {message[:1].lower()}{message[1:]}", param=param, code="invalid_value")


def path(loc: Sequence[Any]) -> str:
    """A place in a body: messages[0].content."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")


def install(app: FastAPI) -> None:
    """Let every error of `app` take this shape."""

    async def api(_: Request, error: Exception) -> JSONResponse:
        return told(error).response()

    async def validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return of_validation(error).response()

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        kind = UNKNOWN if error.status_code == 404 else INVALID
        return ApiError(str(error.detail), status=error.status_code, type=kind, headers=error.headers).response()

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(ByrefError, api)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, api)
