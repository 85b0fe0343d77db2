"""What a start refuses, and says: names, options, trees where memory has no room for them, other vocabularies."""

from __future__ import annotations

import functools
import shutil

import pytest
import torch
from checkpoints import VOCABULARY, byte_level, save_llama
from doubles import KIND, Doubles, Draft, Scripted, compare, drafter, start_with
from engines import finish, greedy

from byref.contract import (
    API_VERSION,
    ConfigError,
    EngineStopped,
    ModelError,
    Plugin,
    PluginError,
    PluginInfo,
    RequestError,
    hookimpl,
)
from byref.contract.roles import TARGET
from byref.contract.specs import PoolSpec
from byref_spec_decoding.drafter import Drafter
from byref_spec_decoding.pace import Pace
from byref_spec_decoding.speculator import SpecSpeculator

PROMPTS = [[5, 9, 77, 3, 2, 8], [7, 7, 7]]


def announcing(name: str, drafter: type[Drafter]) -> type[Plugin]:
    """A plugin of another party that brings one drafter."""

    class Announces(Plugin):
        info = PluginInfo(api_version=API_VERSION)

        @hookimpl
        def register(self, registry):
            registry.register(KIND, name, drafter)

    return Announces


class Rival(Doubles):
    """Another plugin that takes the same name."""


class Beyond(Drafter):
    """Guesses an id that is none."""

    def propose(self, round):
        return {want.request.id: Draft((10**6,)) for want in round.wants if want.most}


class Beyonds(Plugin):
    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry):
        registry.register(KIND, "beyond", Beyond)
        registry.register(KIND, "none", Pools)


class Pools(Plugin):
    """Asks for memory that a tree cannot be kept in."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def refine(self, specs):
        return [*specs, self.pool(name="pools.own", role=TARGET, width=8, dtype=torch.float32)]


class Strided(Pools):
    pool = functools.partial(PoolSpec, stride=4)


class PerRequest(Pools):
    pool = functools.partial(PoolSpec, per="request", versions=9)


@pytest.mark.parametrize(
    ("rival", "name", "other"),
    [(Rival, "scripted", "doubles"), (announcing("ngram", Scripted), "ngram", "spec_decoding")],
)
def test_a_name_taken_twice_names_both_plugins(one_layer, rival, name, other):
    with pytest.raises(PluginError, match=f"the drafter '{name}' is announced twice") as error:
        start_with(one_layer, name, plugins={"rival": rival})
    assert "rival" in str(error.value)
    assert other in str(error.value)


def test_an_unknown_drafter_names_those_there_are(one_layer):
    with pytest.raises(ConfigError, match="there is no drafter 'ngrams'") as error:
        start_with(one_layer, "ngrams")
    known = "draft_model, eagle, mtp, ngram, scripted, scripted_model, self, suffix"
    assert known in str(error.value)
    assert "did you mean" in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("ngram", {"longst": 4}, r"longst of drafter 'ngram'[\s\S]*did you mean 'longest'"),
        ("scripted", {"wrong": 4}, r"wrong of drafter 'scripted'[\s\S]*right, uneven"),
        ("draft_model", {}, r"model of drafter 'draft_model'"),
        ("suffix", {"depth": 1}, r"depth of drafter 'suffix'"),
        ("self", {"weights": "int3"}, r"weights of drafter 'self'"),
    ],
)
def test_a_wrong_option_of_a_drafter_is_named(one_layer, name, options, what):
    with pytest.raises(ConfigError, match=what):
        start_with(one_layer, name, {"options": options})


@pytest.mark.parametrize("table", [{"max_draft_tokens": 0}, {"max_draft_tokens": 64}, {"max_drafts": 4}], ids=str)
def test_a_wrong_option_of_the_plugin_is_named(one_layer, table):
    with pytest.raises(PluginError, match=next(iter(table))):
        start_with(one_layer, "ngram", table)


@pytest.mark.parametrize("asked", [{"max_draft_tokens": -1}, {"max_draft_tokens": 64}, {"drafter": "suffix"}], ids=str)
def test_a_wrong_option_of_a_request_is_named(one_layer, asked):
    with start_with(one_layer, "ngram") as engine:
        with pytest.raises(RequestError, match=next(iter(asked))):
            engine.add([1, 2], greedy(4), options={"spec_decoding": asked})
        assert engine.idle


@pytest.mark.parametrize("name", ["ngram", "scripted", "draft_model", "self"])
def test_a_tree_of_a_drafter_without_is_refused(one_layer, name):
    options = {"model": str(one_layer)} if name == "draft_model" else {}
    with pytest.raises(ConfigError, match=f"the drafter '{name}' offers no trees"):
        start_with(one_layer, name, {"tree": True, "options": options})


@pytest.mark.parametrize(
    ("name", "table", "what"),
    [
        ("ngram", {}, r"a drafter without chances \(drafter 'ngram'\)[\s\S]*accept = \"equal\""),
        ("eagle", {"tree": True, "options": {"model": "head"}}, r"keeps chains only[\s\S]*tree = false"),
    ],
)
def test_rejection_sampling_where_it_cannot_be_is_refused(one_layer, name, table, what):
    with pytest.raises(ConfigError, match=what):
        start_with(one_layer, name, {"accept": "rejection", **table})


@pytest.mark.parametrize(
    ("pools", "kind"), [(Strided, "one entry per 4 tokens"), (PerRequest, "one entry per request")]
)
@pytest.mark.parametrize("tables", [{}, {"paged_kv": {}}], ids=["contiguous", "pages"])
def test_a_tree_is_refused_where_entries_fold_rows_together(one_layer, pools, kind, tables):
    with pytest.raises(ConfigError, match=f"the pool 'pools.own' of role 'target' keeps {kind}"):
        start_with(one_layer, "suffix", {"tree": True}, {"pools": pools}, tables)
    start_with(one_layer, "suffix", {}, {"pools": pools}, tables).close()


def test_a_drafter_of_another_plugin_is_found_by_class_and_by_path(one_layer):
    for name, options in (("scripted", {"right": 2}), ("scripted_model", {"model": str(one_layer)})):
        with start_with(one_layer, name, {"options": options}) as engine:
            assert isinstance(drafter(engine), Scripted)


class Malformed(Scripted):
    """Gives its drafts parents: ones that it has not, or where nobody asked for trees."""

    trees = True

    def script(self, request, most):
        return Draft((1, 2), (1, -1))


@pytest.mark.parametrize("tree", [True, False])
def test_drafts_that_are_no_tree_are_an_error_that_names_the_drafter(one_layer, tree):
    with start_with(one_layer, "malformed", {"tree": tree}, {"trees": announcing("malformed", Malformed)}) as engine:
        (done,) = engine.generate([PROMPTS[0]], greedy(8))
        assert "the drafter Malformed gives 2 tokens the parents (1, -1)" in str(done.error)


MALFORMED = {
    "a later one": (True, (1, -1)),
    "itself": (True, (-1, 1)),
    "before the newest token": (True, (-1, -2)),
    "too few": (True, (-1,)),
    "too many": (True, (-1, 0, 1)),
    "none are wanted": (False, (-1, 0)),
}


@pytest.mark.parametrize(("tree", "parents"), MALFORMED.values(), ids=MALFORMED)
def test_parents_that_no_draft_may_have(tree, parents):
    """Each alone; not by an engine, which would never come to the root of a draft that continues itself."""
    drafting = Scripted(Scripted.Options(), 4, tree=tree)
    speculator = SpecSpeculator("spec", drafting, Pace(adaptive=False, drafting=False), 4)
    with pytest.raises(PluginError, match="the drafter Scripted gives 2 tokens the parents"):
        speculator._check(Draft((1, 2), parents), VOCABULARY)
    speculator._check(Draft((1, 2), (-1, 0) if tree else ()), VOCABULARY)


class Nothing(Scripted):
    """Runs forwards, and has nothing to say."""

    runs_forwards = True

    def script(self, request, most):
        return Draft(())


def test_a_draft_without_tokens_is_none(one_layer):
    with start_with(one_layer, "nothing", {}, {"nothings": announcing("nothing", Nothing)}) as engine:
        (done,) = engine.generate([PROMPTS[0]], greedy(8))
        assert done.error is None
        assert (done.drafts.windows, len(done.token_ids)) == (0, 8)


def other_tokens(path, folder, change: str):
    """A copy of a checkpoint with one token more, or two whose ids are exchanged."""
    shutil.copytree(path, folder)
    tokenizer = byte_level()
    if change == "size":
        tokenizer.add_tokens(["more"])
    text = tokenizer.to_str()
    if change == "content":
        text = text.replace('"an":256', '"an":-1').replace('"ar":257', '"ar":256').replace('"an":-1', '"an":257')
        assert text != tokenizer.to_str()
    (folder / "tokenizer.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("size", rf"\({VOCABULARY + 1} tokens\).*\({VOCABULARY} tokens\): 'more' is no id.*and {VOCABULARY} in this"),
        ("content", rf"\({VOCABULARY} tokens\).*\({VOCABULARY} tokens\): 'a[nr]' is 25[67].*and 25[67] in this"),
    ],
)
def test_another_vocabulary_is_refused_with_sizes_and_the_first_other_token(one_layer, tmp_path, change, what):
    """Fault S05."""
    other = other_tokens(one_layer, tmp_path / "other", change)
    with pytest.raises(ModelError, match=what) as error:
        start_with(one_layer, "draft_model", {"options": {"model": str(other)}})
    assert str(other) in str(error.value)


@pytest.mark.parametrize("sizes", [(VOCABULARY, VOCABULARY + 64), (VOCABULARY + 64, VOCABULARY)], ids=str)
def test_more_or_less_padding_of_the_vocabulary_is_no_other_vocabulary(tmp_path, sizes):
    """A drafter's likeliest token may be one of its padding: it is never drafted."""
    target, draft = (save_llama(tmp_path / str(i), 3, num_hidden_layers=1, vocab_size=n) for i, n in enumerate(sizes))
    table = {"max_draft_tokens": 3, "options": {"model": str(draft)}}
    _, figures = compare(target, "draft_model", PROMPTS, greedy(12), table)
    assert figures["drafted"] > 0


def test_a_drafter_that_guesses_what_is_no_token_is_named(one_layer):
    with start_with(one_layer, "beyond", plugins={"beyonds": Beyonds}) as engine:
        (done,) = finish(engine, [engine.add(PROMPTS[0], greedy(4))])
    assert isinstance(done.error, EngineStopped)
    assert f"the drafter Beyond gives the token {10**6}, and there are" in done.error.what


def test_a_drafter_that_is_none_is_refused(one_layer):
    with pytest.raises(PluginError, match="announced as the drafter 'none' is none") as error:
        start_with(one_layer, "none", plugins={"beyonds": Beyonds})
    assert "byref_spec_decoding.drafter.Drafter" in str(error.value)
