"""What a plugin author imports. Knows nothing of the rest of byref, and nothing of any plugin's noun."""

from byref.contract.context import ForwardContext, Kind, StateMap
from byref.contract.errors import (
    ByrefError,
    CaptureError,
    ConfigError,
    ContextError,
    EngineStopped,
    ModelError,
    PluginError,
    RequestError,
)
from byref.contract.plugin import API_VERSION, Plugin, PluginInfo, Registry, RoleSource, hookimpl
from byref.contract.requests import Request, SamplingParams
from byref.contract.state import Key, Lifetime, Memo, State
from byref.contract.step import LogitRows, Outcome, RowInfo, Step, StepPlan, StepReport, Verdict, Wanted, Window

__all__ = [
    "API_VERSION",
    "ByrefError",
    "CaptureError",
    "ConfigError",
    "ContextError",
    "EngineStopped",
    "ForwardContext",
    "Key",
    "Kind",
    "Lifetime",
    "LogitRows",
    "Memo",
    "ModelError",
    "Outcome",
    "Plugin",
    "PluginError",
    "PluginInfo",
    "Registry",
    "Request",
    "RequestError",
    "RoleSource",
    "RowInfo",
    "SamplingParams",
    "State",
    "StateMap",
    "Step",
    "StepPlan",
    "StepReport",
    "Verdict",
    "Wanted",
    "Window",
    "hookimpl",
]
