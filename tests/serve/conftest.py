"""A tiny model that can chat and knows tools, served once for all tests that only ask."""

import shutil

import pytest
from serving import serving

TEMPLATE = (
    "{% for tool in tools or [] %}<turn>tool: {{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}{% endfor %}<turn>"
)


@pytest.fixture(scope="session")
def talker(short_llama, tmp_path_factory):
    """The short Llama with a chat template."""
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(short_llama, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def served(talker):
    """A server that keeps running; what a test leaves behind is found by the next that asks for idleness."""
    with serving(talker) as server:
        yield server


@pytest.fixture(scope="session")
def structured(talker):
    """A server with the plugin that shapes answers."""
    plugin = pytest.importorskip("byref_structured_output").StructuredOutput
    with serving(talker, {"structured_output": plugin}) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2():
    """The real model's file."""
    from byref.contract import ModelError
    from byref.loading import open_checkpoint

    try:
        return open_checkpoint("smollm2").path
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
