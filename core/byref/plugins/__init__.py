"""Finding, loading, ordering and calling plugins. Knows the contract; must not know any plugin."""

from byref.plugins.hooks import Hooks
from byref.plugins.host import PluginHost
from byref.plugins.loader import Loaded

__all__ = ["Hooks", "Loaded", "PluginHost"]
