"""byref: an inference runtime whose features are plugins. Importing it imports no torch."""

from byref.contract.plugin import API_VERSION, Plugin, PluginInfo, hookimpl

__version__ = "0.1.0"

__all__ = ["API_VERSION", "Plugin", "PluginInfo", "__version__", "hookimpl"]
