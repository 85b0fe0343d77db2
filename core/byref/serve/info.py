"""The small endpoints: what is served, tokens, health, figures, what runs, aborting. Knows the desk alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from byref.plugins.loader import Loaded
from byref.serve.answers import (
    Aborted,
    DetokenizeAnswer,
    Health,
    ModelCard,
    ModelList,
    PluginAnswer,
    PluginList,
    TokenizeAnswer,
)
from byref.serve.desk import Desk
from byref.serve.errors import UNKNOWN, ApiError
from byref.serve.routes import paths
from byref.serve.schemas import AbortRequest, DetokenizeRequest, TokenizeRequest
from byref.serve.watch import NAME
from byref.serve.worker import State

router = APIRouter()
HIDDEN = "**********"
_SECRET = re.compile(r"key|token$|secret|password|credential", re.IGNORECASE)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """The one model."""
    return ModelList(data=[_card(_desk(request))])


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> ModelCard:
    """The one model, by its name."""
    desk = _desk(request)
    desk.check_model(model)
    return _card(desk)


def _card(desk: Desk) -> ModelCard:
    return ModelCard(id=desk.model, created=desk.started, max_model_len=desk.engine.parts.sizing.max_context)


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> TokenizeAnswer:
    """The ids of a text."""
    desk = _desk(request)
    desk.check_model(body.model)
    engine = desk.engine
    ids = await asyncio.to_thread(engine.tokenizer.encode, body.prompt, special=body.add_special_tokens)
    return TokenizeAnswer(tokens=ids, count=len(ids), max_model_len=engine.parts.sizing.max_context)


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> DetokenizeAnswer:
    """The text of ids."""
    desk = _desk(request)
    desk.check_model(body.model)
    bad = next((id for id in body.tokens if id >= desk.engine.vocabulary), None)
    if bad is not None:
        what = f"token id {bad} is outside the vocabulary of {desk.engine.vocabulary}"
        raise ApiError(what, param="tokens", code="invalid_value")
    return DetokenizeAnswer(prompt=await asyncio.to_thread(desk.engine.tokenizer.decode, body.tokens))


@router.get("/health", responses={503: {"model": Health}})
async def health(request: Request) -> JSONResponse:
    """Whether requests are answered: status 200 if they are."""
    state = _desk(request).worker.state
    return JSONResponse({"status": state.value}, 200 if state is State.READY else 503)


PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=PLAIN)
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    desk = _desk(request)
    if desk.worker.state is State.READY:
        desk.metrics.now(*await _figures(desk), desk.worker.hook_seconds)
    return Response(desk.metrics.page(), media_type=CONTENT_TYPE_LATEST)


async def _figures(desk: Desk) -> tuple[Mapping[str, int], Mapping[str, Mapping[str, float]]]:
    return await desk.worker.ask(lambda engine: (engine.usage(), engine.figures()))


@router.get("/v1/plugins")
async def plugins(request: Request) -> PluginList:
    """What runs, with its options and figures, and in which order hooks are called."""
    desk = _desk(request)
    host = desk.engine.parts.host
    usage, figures = await _figures(desk)
    shown = [_plugin(loaded, figures.get(loaded.name, {}), paths(host, loaded.name)) for loaded in host.plugins]
    hooks = {hook: [name for name in names if name != NAME] for hook, names in host.describe().items()}
    mine = [plugin for plugin in shown if plugin.name != NAME]
    return PluginList(plugins=mine, hooks={hook: names for hook, names in hooks.items() if names}, usage=dict(usage))


def _plugin(loaded: Loaded, figures: Mapping[str, float], routes: list[str]) -> PluginAnswer:
    return PluginAnswer(
        name=loaded.name,
        distribution=loaded.dist.rpartition("/")[2],
        version=loaded.found.version,
        provides=list(loaded.info.provides),
        lossless=loaded.info.lossless,
        options=without_secrets(loaded.instance.options.model_dump(mode="json")),
        figures=dict(figures),
        routes=routes,
    )


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without the values of those whose names say that they are secret; a file's path is its name alone."""

    def shown(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return without_secrets(value)
        if isinstance(value, list):
            return [shown(name, one) for one in value]
        if isinstance(value, str) and _SECRET.search(name):
            return HIDDEN
        return value.rpartition("/")[2] if isinstance(value, str) else value

    return {name: shown(name, value) for name, value in options.items()}


@router.post("/v1/abort", responses={404: {}})
async def abort(request: Request, body: AbortRequest) -> Aborted:
    """End a request; it is answered with an error."""
    if not _desk(request).abort(body.request_id):
        what = f"no request {body.request_id!r} is waiting or running"
        raise ApiError(what, status=404, type=UNKNOWN, param="request_id", code="unknown_request")
    return Aborted(request_id=body.request_id, aborted=True)
