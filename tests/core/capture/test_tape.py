"""What the tape refuses: everything that a CUDA graph would get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from byref.capture.tape import Recording
from byref.contract import CaptureError

HOST_READS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: x + 1 if x[0] > 0 else x,
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index": lambda x: range(10)[x[0].long()],
    "slice": lambda x: x[: x[0].long()],
    "element": lambda x: x[x[0].long()],
    "print": str,
    "cpu": lambda x: x.cpu(),
    "in": lambda x: 3.0 in x,
    "iterate": lambda x: [float(value) for value in x],
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "arange": lambda x: torch.arange(x[0]),
    "numpy function": lambda x: np.add(x, 1),
    "deep copy to the host": lambda x: x.data.tolist(),
}
DYNAMIC = {
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "mask of bytes": lambda x: x[(x > 0).byte()],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: torch.repeat_interleave(x, x.long()),
    "bincount": lambda x: x.long().bincount(),
    "set by a mask": lambda x: x.clone().__setitem__(x > 0, torch.ones(3)),
    "put by a mask": lambda x: x.index_put((x > 0,), torch.ones(3)),
}
HOST_VALUES = {
    "tensor": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "tensor of one": lambda x: x + torch.tensor(1.0),
    "as_tensor": lambda x: x + torch.as_tensor([1.0, 2.0, 3.0]),
    "as_tensor of an array": lambda x: x + torch.as_tensor(np.ones(3, dtype=np.float32)),
    "from_numpy": lambda x: x + torch.from_numpy(np.ones(3, dtype=np.float32)),
    "frombuffer": lambda x: x + torch.frombuffer(bytearray(12), dtype=torch.float32),
    "new_tensor": lambda x: x + x.new_tensor([1.0, 2.0, 3.0]),
    "Tensor": lambda x: x + torch.Tensor([1.0, 2.0, 3.0]),
    "FloatTensor": lambda x: x + torch.FloatTensor([1.0, 2.0, 3.0]),
    "asarray": lambda x: x + torch.asarray([1.0, 2.0, 3.0]),
    "set item": lambda x: x.clone().__setitem__(slice(None), torch.tensor([1.0, 2.0, 3.0])),
    "as the result": lambda _: torch.from_numpy(np.ones(3, dtype=np.float32)),
}


def record(body):
    """A recording of `body` on one persistent buffer, and that buffer."""
    buffer = torch.tensor([1.0, 2.0, 3.0])

    def run():
        result = body(buffer)
        return result if isinstance(result, torch.Tensor) else buffer + 0

    with torch.inference_mode():
        return Recording(run, lambda: None), buffer


@pytest.mark.parametrize("body", HOST_READS.values(), ids=HOST_READS)
def test_a_host_read_is_refused(body):
    with pytest.raises(CaptureError, match="reads a device value on the host"):
        record(body)


@pytest.mark.parametrize("body", DYNAMIC.values(), ids=DYNAMIC)
def test_a_shape_that_depends_on_values_is_refused(body):
    with pytest.raises(CaptureError, match="reads a device value on the host"):
        record(body)


@pytest.mark.parametrize("body", HOST_VALUES.values(), ids=HOST_VALUES)
def test_a_tensor_built_from_host_values_is_refused(body):
    with pytest.raises(CaptureError, match="host values"):
        record(body)


ALLOWED = {
    "in place": lambda x: x.mul_(2).add_(1).clone(),
    "a view that is written": lambda x: (x[1:].mul_(2), x + 1)[1],
    "several results": lambda x: torch.cat((*x.topk(2), *x.split(1))),
    "integer index": lambda x: x[x.long() % 3],
    "put by an index": lambda x: x.clone().index_put((x.long() % 3,), x),
    "where of three": lambda x: torch.where(x > 2, x, -x),
    "masked_fill": lambda x: x.masked_fill(x > 2, 0.0),
    "host numbers": lambda x: torch.full((3,), 2.0) * x + torch.arange(3),
    "out": lambda x: torch.add(x, x, out=torch.empty(3)),
    "composed operations": lambda x: torch.einsum("i,j->ij", x, x).softmax(-1) @ x,
    "the buffer's data": lambda x: x.data + 1,
    "the buffer itself": lambda x: x.add_(1),
    "nothing": lambda x: x,
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_a_replay_computes_from_what_the_buffers_hold_now(body):
    recording, buffer = record(body)
    for values in ([5.0, 3.0, 1.0], [0.5, 2.5, 9.0]):
        buffer.copy_(torch.tensor(values))
        expected = body(fresh := torch.tensor(values))
        assert torch.equal(recording.replay(), expected)
        assert torch.equal(buffer, fresh)


def test_a_tensor_that_outlives_the_forward_is_refused():
    kept = []
    with pytest.raises(CaptureError, match=r"a tensor made inside the forward, by aten\.mul\.Tensor, outlives it"):
        record(lambda x: kept.append(x * 2))


def test_what_a_memo_forgets_does_not_outlive_the_forward():
    memo, buffer = {}, torch.ones(2)

    def body():
        memo["twice"] = buffer * 2
        return memo["twice"] + 1

    assert torch.equal(Recording(body, memo.clear).replay(), torch.full((2,), 3.0))
