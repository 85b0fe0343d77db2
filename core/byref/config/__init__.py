"""The configuration: one model, read from files, the environment and the command line. Knows no plugin and no torch."""

from byref.config.load import load_config
from byref.config.model import Config, EngineSection, ModelSection, PluginsSection, ServeSection

__all__ = ["Config", "EngineSection", "ModelSection", "PluginsSection", "ServeSection", "load_config"]
