"""What the server says of itself: figures, plugins without their secrets, routes of plugins."""

import asyncio

import openai
import pytest
from pydantic import BaseModel, ConfigDict, SecretStr
from serving import serving

from byref.config import Config
from byref.contract import API_VERSION, Plugin, PluginError, PluginInfo, hookimpl
from byref.plugins import PluginHost


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    api_key: str = "hush"
    password: SecretStr = SecretStr("hush")
    nested: dict[str, str] = {"access_token": "hush", "name": "shown"}
    file: str = "/home/somebody/place/notes.txt"
    several: tuple[dict[str, str], ...] = ({"secret": "hush", "file": "/home/somebody/more.txt"},)
    size: int = 3


class Counter(Plugin[Options]):
    """Counts steps, and shows how many under a route of its own."""

    info = PluginInfo(api_version=API_VERSION, provides=("counting",))
    Options = Options

    def __init__(self, name, options):
        super().__init__(name, options)
        self.steps = 0

    @hookimpl
    def register(self, registry):
        registry.route("steps", self._app)

    @hookimpl
    def prepare_step(self, step):
        self.steps += 1

    def figures(self):
        return {"steps": self.steps}

    def _app(self):
        from fastapi import FastAPI

        app = FastAPI()

        @app.get("/count")
        async def count() -> dict[str, int]:
            return {"steps": self.steps}

        return app


@pytest.fixture(scope="module")
def counted(talker):
    with serving(talker, {"counter": Counter}, api_keys=["k"]) as server:
        yield server


def test_a_plugin_answers_under_its_own_prefix_and_nowhere_else(counted):
    assert counted.complete("abc", max_tokens=3).status == 200
    assert counted.ask("/plugins/counter/steps/count").body == {"steps": 3}
    assert counted.ask("/steps/count").status == 404
    assert counted.ask("/plugins/counter/steps/count", headers={"Authorization": ""}).status == 401


def test_plugins_show_no_secret_and_no_path(counted):
    answer = counted.ask("/v1/plugins")
    assert "hush" not in str(answer.body)
    assert "somebody" not in str(answer.body)
    found = {plugin["name"]: plugin for plugin in answer.body["plugins"]}
    assert set(found) == {"models", "counter"}
    counter = found["counter"]
    assert counter["options"] == {
        "api_key": "**********",
        "password": "**********",
        "nested": {"access_token": "**********", "name": "shown"},
        "file": "notes.txt",
        "several": [{"secret": "**********", "file": "more.txt"}],
        "size": 3,
    }
    assert counter["routes"] == ["/plugins/counter/steps"]
    assert counter["figures"]["steps"] > 0
    assert answer.body["hooks"]["prepare_step"] == ["counter"]


def test_metrics(counted):
    before = counted.figures()
    counted.complete("abcdef", max_tokens=5, temperature=0, ignore_eos=True)
    counted.complete("abc", temprature=1)
    after = counted.figures()

    def grew(name):
        return after[name] - before.get(name, 0.0)

    assert grew('byref_requests_total{endpoint="completions",outcome="completed"}') == 1
    assert grew("byref_generation_tokens_total") == 5
    assert grew("byref_prompt_tokens_total") == len(counted.engine.tokenizer.encode("abcdef"))
    assert grew("byref_step_seconds_count") == 5
    assert grew("byref_time_to_first_token_seconds_count") == 1
    assert grew("byref_time_per_output_token_seconds_count") == 1
    assert grew('byref_plugin_figure{figure="steps",plugin="counter"}') == 5
    assert grew('byref_plugin_seconds{plugin="counter"}') > 0
    assert after["byref_requests_running"] == after["byref_requests_waiting"] == after["byref_kv_used_tokens"] == 0
    assert after["byref_kv_capacity_tokens"] > 0


def test_refusals_are_counted(served):
    name = 'byref_requests_total{endpoint="completions",outcome="refused"}'
    before = served.figures().get(name, 0)
    assert served.complete([10**6]).status == 400
    assert served.figures()[name] == before + 1


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("../models",), ("",), ("A b",)])
def test_routes_that_collide_stop_the_start(paths):
    class Routed(Plugin):
        info = PluginInfo(api_version=API_VERSION)

        @hookimpl
        def register(self, registry):
            for path in paths:
                registry.route(path, object)

    with pytest.raises(PluginError, match="route"):
        PluginHost.load(Config(), {"routed": Routed})


def test_two_plugins_may_have_routes_of_one_name():
    def routed():
        class Routed(Plugin):
            info = PluginInfo(api_version=API_VERSION)

            @hookimpl
            def register(self, registry):
                registry.route("a", object)

        return Routed

    host = PluginHost.load(Config(), {"one": routed(), "two": routed()})
    assert list(host.registry.routes) == ["/plugins/one/a", "/plugins/two/a"]


def test_cached_tokens_are_counted_and_salts_keep_prefixes_apart(talker):
    plugin = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    with serving(talker, {"paged_kv": plugin}) as server:
        prompt = list(range(40))

        def cached(**fields):
            answer = server.complete(prompt, max_tokens=2, temperature=0, **fields)
            return answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached() == 0
        assert cached() == 32
        assert cached(cache_salt="mine") == 0
        assert cached(cache_salt="mine") == 32
        assert cached(cache_salt="yours") == 0
        assert server.figures()["byref_cached_tokens_total"] == 64
        assert server.figures()['byref_plugin_figure{figure="cached_pages",plugin="paged_kv"}'] > 0


def test_preemptions_are_counted(talker):
    plugin = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    options = {"paged_kv": {"num_pages": 16, "prefix_cache": False}}
    with serving(talker, {"paged_kv": plugin}, options) as server:

        async def together():
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
                asked = {"model": "tiny", "max_tokens": 100, "extra_body": {"ignore_eos": True}}
                return await asyncio.gather(*(client.completions.create(prompt=[i, i], **asked) for i in range(4)))

        answers = asyncio.run(together())
        assert [answer.usage.completion_tokens for answer in answers] == [100] * 4
        assert server.figures()["byref_preemptions_total"] > 0
        server.assert_idle()
