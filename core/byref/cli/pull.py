"""`byref pull`: fetches a known model. Knows nothing of where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(alias: Annotated[str, typer.Argument(metavar="ALIAS", help="A known model, e.g. smollm2.")]) -> None:
    """Fetch a model into the cache folder, unless it is there; print its path."""
    from byref.loading.pull import pull as fetch

    print(fetch(alias))
