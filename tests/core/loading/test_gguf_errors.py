"""Damaged and foreign files are refused when opened, with a sentence that names the place."""

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint


def refuse(path, match):
    with pytest.raises(ModelError, match=match) as error:
        open_checkpoint(str(path))
    assert path.name in str(error.value)


def test_not_a_gguf_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 a zip file, say")
    refuse(path, "this is not a GGUF file")


def test_an_empty_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.touch()
    refuse(path, "the file is empty")


@pytest.mark.parametrize("keep", [4, 10, 60, 400])
def test_a_header_that_ends_early(gguf_of, keep):
    path = gguf_of()
    path.write_bytes(path.read_bytes()[:keep])
    refuse(path, f"truncated: its header does not end within its {keep} bytes")


def test_tensors_that_end_early(gguf_of):
    path = gguf_of()
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    refuse(path, rf"truncated: the tensor ends at byte [\d,]+ of {len(data) - 100:,}\n  in: .*, tensor ")


def test_a_length_beyond_all_bounds(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63))
    refuse(path, "truncated")


def test_nonsense_where_a_type_should_be(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77))
    refuse(path, "the header cannot be read: 77")


@pytest.mark.parametrize(("version", "sentence"), [(1, "of version 1"), (3 << 24, "big-endian")])
def test_other_versions(tmp_path, version, sentence):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    refuse(path, f"the GGUF file is {sentence}")


def test_a_type_without_conversion_names_its_tensor(gguf_of):
    refuse(
        gguf_of(more={"blk.0.odd.weight": np.zeros((2, 4), np.int8)}), r"type I8 cannot be read\n.*blk\.0\.odd\.weight"
    )


def test_a_type_nobody_knows_names_its_tensor(gguf_of):
    path = gguf_of()
    data = path.read_bytes()
    name = b"output_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # its dimensions, one, come before its type
    path.write_bytes(data[:at] + struct.pack("<I", 999) + data[at + 4 :])
    refuse(path, r"type 999 is unknown\n.*output_norm\.weight")


def test_rows_that_are_no_whole_blocks(tmp_path, tools, tiny):
    raw = (np.zeros((2, 34), np.uint8), Type.Q8_0)
    path = tools.write_gguf(tmp_path / "odd.gguf", tools.metadata_of(tiny.config), {"token_embd.weight": raw})
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<IQQ", 2, 32, 2), struct.pack("<IQQ", 2, 33, 2)))
    refuse(path, "rows of 33 values do not divide into Q8_0 blocks of 32")


def test_one_part_of_several(gguf_of):
    refuse(gguf_of(changes={"split.count": 3}), "one of 3 parts")


def test_no_architecture(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    refuse(path, "does not name its architecture")


def test_an_unknown_architecture_keeps_its_name(tmp_path, tools):
    path = tools.write_gguf(tmp_path / "new.gguf", {}, {"x.weight": np.zeros(4, np.float32)}, "granitehybrid")
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.architecture == "granitehybrid"
    with pytest.raises(ModelError, match=r"architecture 'granitehybrid'(?s:.*)llama"):
        _ = checkpoint.config
    with pytest.raises(ModelError, match=r"'granitehybrid' name their tensors(?s:.*)llama, mixtral"):
        checkpoint.names()


def test_a_file_without_block_count(tmp_path, tools):
    path = tools.write_gguf(tmp_path / "bare.gguf", {}, {"x.weight": np.zeros(4, np.float32)})
    with pytest.raises(ModelError, match=r"lack 'llama\.block_count'"):
        open_checkpoint(str(path)).names()


@pytest.mark.parametrize("blocks", [0, 2**31])
def test_a_count_of_layers_nobody_can_mean(gguf_of, blocks):
    with pytest.raises(ModelError, match=rf"{blocks} layers cannot be made of \d+ tensors"):
        open_checkpoint(str(gguf_of(changes={"block_count": blocks}))).names()
