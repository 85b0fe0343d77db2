"""`byref pull`: fetches a known model, or one of the hub. Knows nothing of where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from byref.cli import options


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A known model (`byref models` lists them), or a hub id: org/name, org/name/file.gguf.",
            autocompletion=options.complete_alias,
        ),
    ],
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the model's terms of use; without it they are shown.")
    ] = False,
) -> None:
    """Fetch a model into the cache folder, unless it is there; print its path."""
    from byref.loading import hub
    from byref.loading.catalog import CATALOG

    if model not in CATALOG and hub.is_hub_id(model):
        print(hub.fetch(model))
        return
    from byref.loading.pull import pull as fetch

    print(fetch(model, accept_terms=accept_terms))
