"""lm-eval, with a task of our own: log-likelihoods through the server equal those through transformers, in fp32."""

import shutil
from pathlib import Path

import pytest
from serving import serving

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra eval (lm-eval)")
pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what lm-eval and its forty companions warn of is theirs
]

TASK = Path(__file__).parent / "eval"
TOLERANCE = 1e-3


def loglikelihoods(model, folder):
    """Per item the log-likelihood of every choice, and whether it was the likeliest continuation."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(model, tasks=["colours"], task_manager=manager, log_samples=True, bootstrap_iters=0)
    samples = sorted(found["samples"]["colours"], key=lambda sample: sample["doc_id"])
    return [[tuple(answer) for answer in sample["filtered_resps"]] for sample in samples]


def test_loglikelihoods_equal_those_of_transformers(smollm2, tmp_path, monkeypatch):
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path / "task"
    shutil.copytree(TASK, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    with serving(smollm2, engine={"max_context": 512, "threads": 0}) as server:
        backend = server.engine.tokenizer.backend
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>")
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        api = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions",
            model="tiny",
            tokenizer=str(tmp_path / "tokenizer"),
            tokenizer_backend="huggingface",
            num_concurrent=4,
        )
        through_server = loglikelihoods(api, folder)
    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype="float32")
    through_transformers = loglikelihoods(HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1), folder)
    assert len(through_server) == 12
    for mine, theirs in zip(through_server, through_transformers, strict=True):
        for (score, greedy), (expected, likeliest) in zip(mine, theirs, strict=True):
            assert score == pytest.approx(expected, abs=TOLERANCE)
            assert greedy == likeliest
