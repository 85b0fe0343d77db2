"""A sharded folder with one thing wrong gives the sentence that names it; what is nobody's business is left alone."""

from __future__ import annotations

import json
import shutil
import struct

import pytest
import torch
from checkpoints import save_llama
from engines import greedy, start
from families import save_family
from safetensors.torch import load_file, save_file

from byref.contract.errors import ModelError

INDEX = "model.safetensors.index.json"
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
PROMPT = [5, 9, 200, 41, 7]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder of several shards, none of whose files may be changed."""
    folder = save_llama(tmp_path_factory.mktemp("sound"), num_hidden_layers=2, tie_word_embeddings=False)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {f"model-{i + 1:05}-of-00003.safetensors": list(whole)[i::3] for i in range(3)}
    for file, names in shards.items():
        save_file({name: whole[name] for name in names}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, names in shards.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "model")


def places(folder) -> dict[str, str]:
    return json.loads((folder / INDEX).read_text())["weight_map"]


def rewrite(folder, file: str, index: bool = True, **tensors):
    """Put tensors into a shard, or take them out of it (None), in the index too where told."""
    stored = load_file(folder / file) | tensors
    stored = {name: tensor for name, tensor in stored.items() if tensor is not None}
    save_file(stored, folder / file, metadata={"format": "pt"})
    if index:
        listed = {name: place for name, place in places(folder).items() if place != file} | dict.fromkeys(stored, file)
        (folder / INDEX).write_text(json.dumps({"weight_map": listed}))


def other(folder, name: str) -> str:
    """A shard where `name` is not."""
    return next(file for file in sorted(set(places(folder).values())) if file != places(folder)[name])


def no_shard(folder):
    file = places(folder)[NORM]
    (folder / file).unlink()
    return rf"the shard {file} is missing\n  in: .*{INDEX}"


def an_index_that_is_wrong(folder):
    (folder / INDEX).write_text(
        json.dumps({"weight_map": places(folder) | {"model.extra.weight": places(folder)[NORM]}})
    )
    return rf"the shard {places(folder)[NORM]} lacks the tensor 'model\.extra\.weight'.*\n  in: .*{INDEX}"


def an_index_that_names_another_shard(folder):
    file = other(folder, NORM)
    (folder / INDEX).write_text(json.dumps({"weight_map": places(folder) | {NORM: file}}))
    return rf"the shard {file} lacks the tensor '{NORM}'.*\n  in: .*{INDEX}"


def an_index_that_is_no_object(folder):
    (folder / INDEX).write_text("[]")
    return rf"{INDEX} holds no JSON object"


def an_index_of_numbers(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {NORM: 3}}))
    return rf"the index names no file\n  in: .*{INDEX}"


def a_tensor_in_two_shards(folder):
    first, second = sorted((places(folder)[NORM], other(folder, NORM)))
    rewrite(folder, other(folder, NORM), index=False, **{NORM: torch.ones(64)})
    return rf"the tensor '{NORM}' is in two shards, {first} and {second}\n  in: .*{INDEX}"


def no_tensor(folder):
    rewrite(folder, places(folder)[DOWN], **{DOWN: None})
    return rf"no tensor '{DOWN}'\n  in: .*model\n  try: the nearest are model\.layers\.0\.mlp\.down_proj"


def a_tensor_too_many(folder):
    rewrite(folder, places(folder)[NORM], **{"model.layers.1.mlp.extra_proj.weight": torch.ones(2, 2)})
    return r"1 tensors that nothing reads, first 'model\.layers\.1\.mlp\.extra_proj\.weight'\n  in: .*model"


def a_layer_too_many(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return r"9 tensors that nothing reads, first 'model\.layers\.1\."


def another_shape(folder):
    file = places(folder)[DOWN]
    rewrite(folder, file, **{DOWN: torch.ones(64, 127)})
    return rf"the model wants \[64, 128\], the file has {DOWN} \[64, 127\]\n  in: .*{file}"


def a_truncated_shard(folder):
    file = folder / places(folder)[NORM]
    file.write_bytes(file.read_bytes()[:-10])
    return rf"the file is truncated.*\n  in: .*{file.name}"


def an_empty_shard(folder):
    file = folder / places(folder)[NORM]
    file.write_bytes(b"")
    return rf"the file is empty\n  in: .*{file.name}"


def a_type_that_nobody_knows(folder):
    file = folder / places(folder)[NORM]
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header[NORM]["dtype"] = "X99"
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])
    return rf"X99(?s:.*)\n  in: .*{file.name}"


def a_type_that_is_no_weight(folder):
    file = places(folder)[NORM]
    rewrite(folder, file, **{NORM: torch.ones(64, dtype=torch.bool)})
    return rf"type BOOL cannot be read as torch\.float32\n  in: .*{file}, tensor {NORM}"


def a_head_that_is_not_tied(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return r"lm_head\.weight.*differs.*embed_tokens"


def a_head_that_is_missing(folder):
    rewrite(folder, places(folder)["lm_head.weight"], **{"lm_head.weight": None})
    return r"no tensor 'lm_head\.weight'\n  in: .*model"


FAULTS = [
    no_shard,
    an_index_that_is_wrong,
    an_index_that_names_another_shard,
    an_index_that_is_no_object,
    an_index_of_numbers,
    a_tensor_in_two_shards,
    no_tensor,
    a_tensor_too_many,
    a_layer_too_many,
    another_shape,
    a_truncated_shard,
    an_empty_shard,
    a_type_that_nobody_knows,
    a_type_that_is_no_weight,
    a_head_that_is_not_tied,
    a_head_that_is_missing,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_single_fault_is_named(folder, fault):
    sentence = fault(folder)
    with pytest.raises(ModelError, match=sentence):
        start(folder)


def test_a_sound_folder_loads_and_stray_files_are_ignored(sound, folder):
    whole = {name: tensor for file in set(places(folder).values()) for name, tensor in load_file(folder / file).items()}
    save_file({name: torch.zeros_like(tensor) for name, tensor in whole.items()}, folder / "consolidated.safetensors")
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"half of a download")
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{")
    with start(sound) as plain, start(folder) as engine:
        expected, found = (one.generate([PROMPT], greedy(8))[0].token_ids for one in (plain, engine))
    assert found == expected


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3-MoE"])
@pytest.mark.parametrize("stored", ["model.rotary_emb.inv_freq", "model.layers.1.self_attn.rotary_emb.inv_freq"])
def test_stored_rotary_frequencies_are_optional(tmp_path, name, stored):
    save_family(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {stored: torch.ones(8)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with start(tmp_path) as engine:
        assert len(engine.generate([PROMPT], greedy(2))[0].token_ids) == 2
