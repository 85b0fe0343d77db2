"""What the server takes on, and how it says no: queue, body, time, keys, ids."""

import asyncio
import http.client
import json
import threading

import openai
import pytest
from scripts import Noted
from serving import PATIENCE, serving

from byref.contract import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.engine.intake import choice_id

LONG = {"prompt": "abc", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


class Gate(Plugin):
    """Holds the engine's thread between two steps until a test lets it go on."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.open = threading.Event()
        self.open.set()

    @hookimpl
    def prepare_step(self, step):
        assert self.open.wait(PATIENCE)


@pytest.fixture(scope="module")
def gated(talker):
    """A server of two running requests and three waiting ones."""
    with serving(talker, {"gate": Gate}, engine={"max_requests": 2}, queue=3) as server:
        yield server


@pytest.fixture
def gate(gated):
    one = gated.engine.parts.host.plugin("gate").instance
    yield one
    one.open.set()


def in_background(function, *arguments):
    """Run it in a thread; what joins it and returns its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()

    def result():
        thread.join(PATIENCE)
        return results[0]

    return result


def test_a_full_queue_is_told_when_to_come_back(gated, gate):
    gate.open.clear()
    waiting = [in_background(lambda: gated.complete(**LONG)) for _ in range(5)]
    gated.until(lambda: gated.desk.admission.taken == 5)
    refused = gated.complete("abc")
    assert refused.status == 429
    assert refused.error["type"] == "rate_limit_error"
    assert refused.error["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    with gated.client() as client, pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny", prompt="abc", stream=True)
    assert gated.ask("/health").status == 200, "the event loop waits for the engine"
    gate.open.set()
    assert [result().status for result in waiting] == [200] * 5
    gated.assert_idle()


def test_the_client_comes_back_by_itself(gated, gate):
    gate.open.clear()
    waiting = [in_background(lambda: gated.complete(**(LONG | {"max_tokens": 3}))) for _ in range(5)]
    gated.until(lambda: gated.desk.admission.taken == 5)

    async def patient():
        async with openai.AsyncOpenAI(base_url=f"{gated.url}/v1", api_key="x", max_retries=5) as client:
            asking = asyncio.create_task(client.completions.create(model="tiny", prompt="abc", max_tokens=2))
            await asyncio.sleep(0)
            refused = gated.desk.metrics.requests.labels("completions", "refused")
            before = refused._value.get()
            while refused._value.get() == before:
                await asyncio.sleep(0.01)
            gate.open.set()
            return await asking

    assert asyncio.run(patient()).usage.completion_tokens == 2
    assert [result().status for result in waiting] == [200] * 5


def test_more_completions_than_there_can_ever_be(gated):
    answer = gated.complete(["a"] * 6)
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert gated.complete("a", n=6, temperature=1.0).error["param"] == "n"


def test_a_request_that_takes_too_long(talker):
    with serving(talker, {"gate": Gate}, timeout=0.2) as server:
        gate = server.engine.parts.host.plugin("gate").instance
        gate.open.clear()
        answer = in_background(lambda: server.complete(**LONG))
        with server.client() as client, pytest.raises(openai.APIError) as caught:
            list(client.completions.create(model="tiny", **{k: LONG[k] for k in ("prompt", "max_tokens")}, stream=True))
        gate.open.set()
        assert answer().status == 504
        assert answer().error["code"] == caught.value.code == "timeout"
        server.assert_idle()


def test_bodies(talker):
    with serving(talker, max_body=1000) as server:
        assert server.complete("a" * 1000).status == 413
        assert server.complete("a" * 1000).error["code"] == "body_too_large"
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        pieces = iter([b'{"prompt": "', *[b"a" * 500] * 4, b'"}'])
        connection.request("POST", "/v1/completions", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        endless = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        endless.putrequest("POST", "/v1/completions")
        endless.putheader("Content-Type", "application/json")
        endless.putheader("Transfer-Encoding", "chunked")
        endless.endheaders()
        endless.send(b"3e9\r\n" + b"a" * 1001 + b"\r\n")
        assert endless.getresponse().status == 413, "it waits for the end"
        endless.close()
        assert server.complete("a").status == 200


def test_keys(talker):
    with serving(talker, api_keys=["first", "second"]) as server:
        for key, status in (("first", 200), ("second", 200), ("firs", 401), ("firsts", 401), ("", 401)):
            assert server.ask("/v1/models", headers={"Authorization": f"Bearer {key}"}).status == status, key
        assert server.ask("/v1/models", headers={"Authorization": "first"}).status == 401
        assert server.ask("/health", headers={"Authorization": ""}).status == 200
        assert server.ask("/metrics", headers={"Authorization": ""}).status == 401
        assert server.ask("/docs", headers={"Authorization": ""}).status == 401
        with server.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert "first" not in str(caught.value)


def test_other_origins(served, talker):
    ask = {"Origin": "https://elsewhere.example"}
    assert "access-control-allow-origin" not in served.ask("/health", headers=ask).headers
    with serving(talker, cors_origins=["https://elsewhere.example"]) as server:
        assert server.ask("/health", headers=ask).headers["access-control-allow-origin"] == ask["Origin"]


def test_ids_of_clients_never_mix(gated, gate):
    gate.open.clear()
    two = {"n": 2, "seed": 7, "max_tokens": 8}
    first = in_background(lambda: gated.complete("first", request_id="mine", **two))
    gated.until(lambda: "mine" in gated.desk.open)
    refused = gated.complete("second", request_id="mine")
    assert (refused.status, refused.error["param"]) == (409, "request_id")
    theirs = choice_id("mine", 1)  # what an engine that heard of "mine" would call its second choice
    other = in_background(lambda: gated.complete("second", request_id=theirs, **two))
    gated.until(lambda: theirs in gated.desk.open)
    gate.open.set()
    assert first().body["id"] == "mine"
    alone = [gated.complete(prompt, **two).body["choices"] for prompt in ("first", "second")]
    assert [first().body["choices"], other().body["choices"]] == alone


def test_abort(gated, gate):
    gate.open.clear()
    answer = in_background(lambda: gated.complete(request_id="stop me", **LONG))
    gated.until(lambda: "stop me" in gated.desk.open)
    assert gated.ask("/v1/abort", {"request_id": "stop me"}).body == {"request_id": "stop me", "aborted": True}
    before = gated.desk.metrics.tokens._value.get()
    gate.open.set()
    assert answer().error["code"] == "aborted"
    gated.assert_idle()
    assert gated.desk.metrics.tokens._value.get() - before <= 2
    unknown = gated.ask("/v1/abort", {"request_id": "stop me"})
    assert (unknown.status, unknown.error["param"]) == (404, "request_id")
    gated.assert_idle()


def test_a_stream_that_fails_ends_with_the_error_and_not_as_if_all_were_well(gated, gate):
    gate.open.clear()
    stream = in_background(lambda: gated.complete(request_id="a stream", stream=True, **LONG))
    gated.until(lambda: gated.engine._live)
    assert gated.ask("/v1/abort", {"request_id": "a stream"}).status == 200
    gate.open.set()
    assert stream().status == 200
    (event,) = [line for line in stream().body.splitlines() if line.startswith("data: ")]
    error = json.loads(event.removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "aborted"
    gated.assert_idle()


def test_prompts_are_taken_all_or_none(gated):
    before = gated.desk.metrics.tokens._value.get()
    assert gated.complete(["abc", ""], max_tokens=100).status == 400
    gated.assert_idle()
    assert gated.desk.metrics.tokens._value.get() == before


def test_a_client_that_leaves_before_its_answer_is_aborted(gated, gate):
    gate.open.clear()
    connection = http.client.HTTPConnection("127.0.0.1", gated.port, timeout=PATIENCE)
    body = '{"prompt": "abc", "max_tokens": 200, "ignore_eos": true}'
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    gated.until(lambda: gated.desk.open)
    before = gated.desk.metrics.tokens._value.get()
    connection.close()
    gated.until(lambda: not gated.desk.open)
    gate.open.set()
    gated.assert_idle()
    assert gated.desk.metrics.tokens._value.get() - before <= 2, "it went on without anybody listening"


def test_a_plugin_that_refuses_a_request_and_one_that_fails_in_it(talker):
    with serving(talker, {"noted": Noted}) as server:
        noted = server.engine.parts.host.plugin("noted").instance
        noted.raises = {"request_added": lambda request: True}
        answer = server.complete("abc")
        assert (answer.status, answer.error["code"]) == (500, "plugin_failed")
        noted.raises = {}
        assert server.complete("abc").status == 200
        server.assert_idle()
