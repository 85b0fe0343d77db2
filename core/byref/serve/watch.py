"""A plugin of the server's own: it sees steps and preemptions as a stranger's would, in the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byref.contract import API_VERSION, Plugin, PluginInfo, Request, StepReport, hookimpl
from byref.contract.plugin import NoOptions
from byref.contract.requests import Reason

NAME = "server"


class Watch:
    """What the plugin has seen.

    Args:
        step: is told of every step, in the engine's thread.
        preempted: is told of every preemption, in the engine's thread.
    """

    def __init__(self, step: Callable[[StepReport], None], preempted: Callable[[], None]) -> None:
        self.last: StepReport | None = None
        """The newest step's figures."""
        self._step, self._preempted = step, preempted

    def plugins(self) -> dict[str, type[Plugin[Any]]]:
        """The plugin, as a program hands one over."""
        watch = self

        class Server(Plugin[NoOptions]):
            """Feeds the server's figures."""

            info = PluginInfo(api_version=API_VERSION)

            @hookimpl
            def step_done(self, report: StepReport) -> None:
                watch.saw(report)

            @hookimpl
            def request_released(self, request: Request, reason: Reason) -> None:
                if reason is Reason.PREEMPTED:
                    watch.saw_preemption()

        return {NAME: Server}

    def saw(self, report: StepReport) -> None:
        """A step has ended."""
        self.last = report
        self._step(report)

    def saw_preemption(self) -> None:
        """A request lost its place for memory."""
        self._preempted()
