"""Checkpoints on disk, read into tensors. Knows files and names; knows no model, no engine and no plugin."""

from byref.loading.checkpoint import Checkpoint, open_checkpoint
from byref.loading.parameters import ParameterReader
from byref.loading.vocabulary import check_same_vocabulary

__all__ = ["Checkpoint", "ParameterReader", "check_same_vocabulary", "open_checkpoint"]
