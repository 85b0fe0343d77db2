"""Whether two checkpoints mean the same by a token id. Knows vocabularies; no model."""

from __future__ import annotations

from byref.contract.errors import ModelError
from byref.loading.checkpoint import Checkpoint


def check_same_vocabulary(target: Checkpoint, other: Checkpoint, role: str) -> None:
    """Every token has the same id in both. Rows beyond the tokenizer's vocabulary are padding and may differ in number.

    Raises:
        ModelError: sizes or tokens differ; the first that does is named.
    """
    mine, theirs = (one.tokenizer().backend.get_vocab(with_added_tokens=True) for one in (target, other))
    if mine == theirs:
        return
    token, _ = min(mine.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
    here, there = mine.get(token, "no id"), theirs.get(token, "no id")
    raise ModelError(
        f"the vocabulary of role {role!r} ({len(theirs)} tokens) is not the target's ({len(mine)} tokens): "
        f"{token!r} is {here} in the target's and {there} in this one",
        where=str(other.path),
        hint="take a checkpoint of the target's family, which shares its tokenizer",
    )
