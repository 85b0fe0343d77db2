"""Terms of use as plain text, from the web page they are distributed as. Knows HTML; fetches nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_BLOCKS = frozenset({"p", "div", "br", "li", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "section", "table", "tr"})
_UNSEEN = frozenset({"script", "style", "nav", "header", "footer", "head", "template", "button"})
_SPACES = re.compile(r"[ \t\r\f\v]+")
_BLANK_LINES = re.compile(r"\n\s*\n")


def plain(page: str) -> str:
    """The text of a page's `article`, or of all of it where it has none; without menus, one block a paragraph."""
    for inside in ("article", None):
        reader = _Reader(inside)
        reader.feed(page)
        reader.close()
        lines = [_SPACES.sub(" ", line).strip() for line in "".join(reader.pieces).split("\n")]
        if text := _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip():
            return text
    return ""


class _Reader(HTMLParser):
    """Collects what a reader would see."""

    def __init__(self, inside: str | None) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._inside, self._depth, self._hidden = inside, int(inside is None), 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._depth += tag == self._inside
        self._hidden += tag in _UNSEEN
        if tag in _BLOCKS:
            self._add("\n")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == self._inside
        self._hidden -= tag in _UNSEEN
        if tag in _BLOCKS:
            self._add("\n")

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        if self._depth > 0 and not self._hidden:
            self.pieces.append(text)
