"""The training script on a micro plan, its plain-torch forwards against transformers, and the committed figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from engines import greedy, start, together
from safetensors import safe_open
from transformers.modeling_layers import MtpModel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from train import measure, parts, save, unroll  # noqa: E402
from train.data import VOCABULARY, gather  # noqa: E402
from train.deepseek import DeepSeek, config  # noqa: E402
from train.eagle import AUX_LAYERS  # noqa: E402
from train.figures import DENSE, EAGLE, LLAMA, SPARSE, Sizes  # noqa: E402
from train.heads import new_eagle, new_mtp  # noqa: E402
from train.indexer import Stages  # noqa: E402
from train.layers import Chain  # noqa: E402
from train.loop import Stage  # noqa: E402
from train.ngram import NGram, lookup  # noqa: E402
from train.target import hiddens, llama  # noqa: E402

NAMES = (LLAMA, EAGLE, DENSE, SPARSE)
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"
MICRO = parts.Plan(
    **dict.fromkeys(("llama", "eagle", "deepseek", "mtp"), Stage(2, 2, 48)),
    sparse=Stages(warm=Stage(1, 2, 48), sparse=Stage(1, 2, 48), module_warm=Stage(1, 2, 48), module=Stage(1, 2, 48)),
    sizes=Sizes(prompts=2, prompt=24, continuation=8, windows=2, length=32, long_windows=1),
)


@pytest.fixture(scope="module")
def text():
    return gather(limit=300_000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("checkpoints")
    parts.write_held_out(out, text, MICRO)
    for name, part in parts.PARTS.items():
        part.train(out, text, MICRO, name)
        part.measure(out, text, MICRO)
    return out


def shapes(path):
    with safe_open(path / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def test_text_is_bytes_between_marks_and_held_out_apart(text):
    again = gather(limit=300_000)
    assert again.digest == text.digest
    assert len(text.train) > 300_000 > len(text.held_out) > 0
    assert int(text.train.max()) < VOCABULARY


def test_each_part_writes_its_figures(trained):
    found = {name: json.loads((trained / name / "training.json").read_text()) for name in (LLAMA, EAGLE, DENSE, SPARSE)}
    assert all(said["text"]["digest"] for said in found.values())
    assert found[EAGLE]["figures"]["accepted"].keys() == {"head", "lookup", "place_1", "place_2", "place_3"}
    assert found[SPARSE]["figures"]["bits_per_byte_long"]["length"] == 128


def test_committed_figures_hold_what_the_checkpoints_promise():
    found = {name: json.loads((CHECKPOINTS / name / "training.json").read_text())["figures"] for name in NAMES}
    for name in (EAGLE, DENSE, SPARSE):
        assert found[name]["accepted"]["head"] > max(1.5, found[name]["accepted"]["lookup"])
    for name in (LLAMA, DENSE, SPARSE):
        assert found[name]["bits_per_byte"]["model"] < found[name]["bits_per_byte"]["ngram_5"]
    long = found[SPARSE]["bits_per_byte_long"]
    assert long["length"] == 1024
    assert long["index_topk"] <= long["length"] // 8
    assert long["selected"] < 1.02 * long["dense"]
    assert long["shuffled"] > 1.05 * long["dense"]


def test_committed_drafts_are_accepted_as_their_figure_says():
    target = save.load_llama(CHECKPOINTS / LLAMA)
    prompts = torch.tensor(json.loads((CHECKPOINTS / "held_out.json").read_text())["prompts"])[::12]
    texts = measure.continued(lambda ids: target(input_ids=ids).logits, prompts, 24)
    head, taps = save.load_eagle(CHECKPOINTS / EAGLE, target), hiddens(target, texts, AUX_LAYERS)[0]
    assert measure.acceptance(head, taps, texts, prompts.shape[1])["head"] > 1.5


def test_byref_and_transformers_continue_alike(trained):
    model = transformers.LlamaForCausalLM.from_pretrained(trained / LLAMA, dtype=torch.float32)
    prompt = list(b"Return the number of")
    expected = measure.continued(lambda ids: model(input_ids=ids).logits, torch.tensor([prompt]), 8)[0, len(prompt) :]
    with start(trained / LLAMA) as engine:
        (found,) = together(engine, [prompt], greedy(8))
    assert list(found.token_ids) == expected.tolist()


def test_tokenizer_is_the_bytes(trained):
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / LLAMA)
    said = "naïve\n\tλ </s>"
    assert tokenizer(said).input_ids == [*"naïve\n\tλ ".encode(), 257]
    assert tokenizer.decode(tokenizer(said).input_ids) == said
    assert tokenizer.convert_tokens_to_ids(save.byte_letters()) == list(range(256))


def test_eagle_has_the_published_names(trained):
    found = shapes(trained / EAGLE)
    assert found["fc.weight"] == (192, 576)
    assert found["midlayer.self_attn.q_proj.weight"] == (192, 384)
    assert found["midlayer.self_attn.k_proj.weight"] == (96, 384)
    assert found["lm_head.weight"] == (96, 192)
    assert found["d2t"] == (96,)
    assert found["t2d"] == (VOCABULARY,)
    assert {name.split(".")[0] for name in found} == {"fc", "midlayer", "norm", "lm_head", "d2t", "t2d"}
    head = save.load_eagle(trained / EAGLE, save.load_llama(trained / LLAMA))
    assert (head.d2t + torch.arange(96)).tolist() == head.t2d.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("name", [DENSE, SPARSE])
def test_mtp_has_the_published_names(trained, name):
    found, at = shapes(trained / name), "model.layers.4."
    assert found[f"{at}eh_proj.weight"] == (192, 384)
    for own in ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "self_attn.kv_a_layernorm"):
        assert f"{at}{own}.weight" in found
    assert found[f"{at}embed_tokens.weight"] == found[f"{at}shared_head.head.weight"] == (VOCABULARY, 192)
    assert found[f"{at}mlp.experts.7.down_proj.weight"] == (192, 96)
    assert (f"{at}self_attn.indexer.wq_b.weight" in found) == (name == SPARSE)
    assert json.loads((trained / name / "config.json").read_text())["num_nextn_predict_layers"] == 1


@pytest.mark.parametrize("sparse", [False, True])
def test_plain_deepseek_is_transformers(tmp_path, sparse):
    torch.manual_seed(0)
    model = DeepSeek(config(sparse=sparse, **({"index_topk": 8} if sparse else {}))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    save.save_deepseek(tmp_path, model, new_mtp(model))
    model, _ = save.load_deepseek(tmp_path)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[1], oracle(tokens).logits, rtol=1e-4, atol=1e-4)


def test_plain_mtp_is_transformers(trained):
    target, module = save.load_deepseek(trained / DENSE)
    main = transformers.AutoModelForCausalLM.from_pretrained(trained / DENSE, dtype=torch.float32).eval()
    main._keys_to_ignore_on_load_unexpected = [r"model\.layers\.4\..*"]
    oracle = MtpModel.from_pretrained(main).eval()
    tokens = torch.randint(256, (2, 21), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        hidden, chain = target(tokens)[0][:, :-1], Chain()
        found, _ = module(hidden, tokens[:, 1:], chain)
        positions = torch.arange(20)[None]
        wanted = oracle.forward_layer(0, hidden, positions, None, input_ids=tokens[:, 1:])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def head_and_taps(name):
    torch.manual_seed(0)
    if name == "eagle":
        target = llama()
        return new_eagle(target, gather(limit=10_000)), lambda ids: hiddens(target, ids, AUX_LAYERS)[0]
    deep = DeepSeek(config(sparse=name == "sparse mtp", **({"index_topk": 8} if name == "sparse mtp" else {}))).eval()
    return new_mtp(deep).eval(), lambda ids: deep(ids)[0]


@pytest.mark.parametrize("name", ["eagle", "mtp", "sparse mtp"])
def test_unrolled_drafts_are_those_of_rows_appended_one_by_one(name):
    head, taps = head_and_taps(name)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    tokens = torch.randint(256, (1, 24), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ids, scores = unroll.drafted(head, taps(tokens), tokens)
        for last in (0, 5, 22):
            rows, known = head.begin(taps(tokens)[:, : last + 1]), tokens[:, 1 : last + 2]
            for step in range(unroll.STEPS):
                out, logits = head(rows, known, Chain())
                torch.testing.assert_close(logits[0, -1], scores[0, last, step], rtol=1e-4, atol=1e-4)
                token = ids[:, last, step, None]
                assert head.ids(logits[:, -1:]).equal(token)
                rows, known = torch.cat([rows, out[:, -1:]], dim=1), torch.cat([known, token], dim=1)


def test_ngram_chances_sum_to_one():
    tokens = np.array(list(b"abracadabra abracadabra"))
    model = NGram(tokens, 3)
    chances = [2 ** -model.bits(np.array([[97, 98, last]])) for last in range(VOCABULARY)]
    first = 2 ** -model.bits(np.array([[97, 98]]))
    assert sum(chance**2 / first for chance in chances) == pytest.approx(1.0)


def test_lookup_follows_the_longest_suffix():
    text = list(b"the cat, the dog, the c")
    assert lookup(text, 3, longest=5) == list(b"at,")
    assert lookup(text, 3, longest=1) == list(b"at,")
    assert lookup(list(b"abc"), 3, longest=5) == []


def test_accepted_counts_prefixes_and_moves_past_the_bonus():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    drafted = {2: [3, 4, 0], 5: [0, 7, 8], 6: [7, 8, 9]}
    assert list(measure.accepted(text, 1, drafted.__getitem__)) == [2, 0, 3]
