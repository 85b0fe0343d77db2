"""The errors a user reads: what was wrong, where, and what to do next. Knows no other module."""


class ByrefError(Exception):
    """Base of every error byref raises on purpose.

    Args:
        what: one sentence saying what was wrong.
        where: the file, tensor, plugin or field it was found in.
        hint: what to do next.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(
            "\n".join(part for part in (what, where and f"  in: {where}", hint and f"  try: {hint}") if part)
        )


class ConfigError(ByrefError):
    """An option, a configuration file or an environment variable is wrong."""


class PluginError(ByrefError):
    """A plugin is missing, broken, in conflict, or broke a rule of the contract."""


class ModelError(ByrefError):
    """A checkpoint is missing, damaged, or of a kind nobody knows."""


class ContextError(PluginError):
    """Something tried to put on the forward context what may not be there."""


class CaptureError(ByrefError):
    """A forward that cannot be captured, or a replay that would not mean what was captured."""


class RequestError(ByrefError):
    """One request cannot be served; the others go on."""


class EngineStopped(ByrefError):
    """The engine has stopped; every waiting request carries this error."""
