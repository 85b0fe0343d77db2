"""Between text and token ids. Knows no model, no request and no engine."""

from byref.text.detokenizer import Detokenizer
from byref.text.stops import StopScanner
from byref.text.tokenizer import Message, Tokenizer

__all__ = ["Detokenizer", "Message", "StopScanner", "Tokenizer"]
