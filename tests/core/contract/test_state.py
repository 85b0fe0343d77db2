"""Keys and the memo: what a state is made of."""

from __future__ import annotations

import torch

from byref.contract.state import Key, Lifetime, Memo, State
from byref.contract.walk import find_tensors

T = torch.zeros(2)
PLAIN = Key("plain", State)


def test_a_memo_computes_once_until_it_is_cleared():
    memo, calls = Memo(), []
    for _ in range(2):
        assert memo.get("a", lambda: calls.append(1) or T) is T
    memo.get(("a", 1), lambda: calls.append(2))
    assert calls == [1, 2]
    memo.clear()
    memo.get("a", lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert memo.lifetime is Lifetime.FORWARD
    assert list(find_tensors(memo)) == []


def test_keys_are_compared_by_identity():
    assert Key("plain", State) != PLAIN
    assert repr(PLAIN) == "Key('plain')"
