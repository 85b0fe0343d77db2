"""Everything that the OpenAPI document allows, and some that it does not: no status of 500 and more, every answer as documented."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import PATIENCE

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDPOINTS = {
    "/v1/completions": 60,
    "/v1/chat/completions": 60,
    "/tokenize": 20,
    "/detokenize": 20,
    "/v1/abort": 10,
    "/v1/models": 3,
    "/v1/models/{model}": 10,
    "/v1/plugins": 3,
    "/health": 3,
    "/metrics": 3,
}
TAKING = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/abort")
"""Those that take something that could be wrong."""
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


def test_every_endpoint_is_asked(served):
    assert set(served.ask("/openapi.json").body["paths"]) == set(ENDPOINTS)


def test_the_document_promises_no_other_shape_of_errors(served):
    paths = served.ask("/openapi.json").body["paths"]
    assert not any("422" in operation["responses"] for methods in paths.values() for operation in methods.values())


def small(case) -> None:
    """Long answers show nothing more."""
    if isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
            if isinstance(case.body.get(name), int) and case.body[name] > 4:
                case.body[name] = 4


@pytest.mark.parametrize(
    ("path", "mode"), [*((path, RIGHT) for path in ENDPOINTS), *((path, WRONG) for path in TAKING)]
)
def test_answers_are_as_documented(served, path, mode):
    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json", wait_for_schema=PATIENCE)
    (operation,) = [found.ok() for found in document.get_all_operations() if found.ok().path == path]

    @settings(max_examples=ENDPOINTS[path], suppress_health_check=list(HealthCheck), deadline=None)
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case):
        small(case)
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

    ask()
    served.assert_idle()
