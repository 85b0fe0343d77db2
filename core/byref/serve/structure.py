"""What has to constrain an answer: a schema, or calls of tools. Knows the capability's name, not who has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byref.engine import Engine
from byref.plugins.discovery import providers
from byref.serve.errors import ApiError
from byref.serve.schemas import ChatRequest, ToolChoice

CAPABILITY = "structured_output"
"""A plugin that provides it takes, per request, exactly one of

- `json_object`: true
- `json_schema`: a schema
- `tools`: {"functions": [{"name", "parameters"}], "required": bool, "parallel": bool}: calls as `tools.py` reads them
"""


def constraint(engine: Engine, body: ChatRequest) -> Mapping[str, Mapping[str, Any]]:
    """The options of the plugin that constrains the answer, by its name; empty where nothing does.

    Raises:
        ApiError: something has to, and no plugin that can is enabled; or two things at once are asked for.
    """
    wanted = _format(body)
    tools = _tools(body)
    if tools and wanted:
        what = "response_format and tools cannot both shape an answer: give one of them"
        raise ApiError(what, param="response_format")
    if not wanted and not tools:
        return {}
    return {_provider(engine, shaping(body)): wanted or tools}


def shaping(body: ChatRequest) -> str:
    """The field that shapes the answer."""
    return "response_format" if _format(body) else "tools"


def _format(body: ChatRequest) -> dict[str, Any]:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return {}
    return {"json_object": True} if asked.json_schema is None else {"json_schema": asked.json_schema.schema_}


def _tools(body: ChatRequest) -> dict[str, Any]:
    if not body.tools or body.tool_choice == "none":
        return {}
    choice = body.tool_choice
    only = choice.function.name if isinstance(choice, ToolChoice) else None
    functions = [tool.function for tool in body.tools if only in (None, tool.function.name)]
    return {
        "tools": {
            "functions": [{"name": one.name, "parameters": one.parameters} for one in functions],
            "required": only is not None or choice == "required",
            "parallel": body.parallel_tool_calls is not False and only is None,
        }
    }


def _provider(engine: Engine, field: str) -> str:
    for loaded in engine.parts.host.plugins:
        if CAPABILITY in loaded.info.provides:
            return loaded.name
    known = ", ".join(providers().get(CAPABILITY, ())) or "byref-structured-output has one"
    what = f"{field} needs a plugin that provides {CAPABILITY}, and none is enabled: enable one in [plugins] ({known})"
    raise ApiError(what, param=field, code="plugin_needed")
