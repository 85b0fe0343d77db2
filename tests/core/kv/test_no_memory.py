"""A cache that the machine has no memory for is the user's to make smaller."""

import pytest
from engines import start

from byref.contract import ConfigError


def test_a_cache_without_memory_names_what_sizes_it(tiny_llama):
    with pytest.raises(ConfigError, match="there is no memory for the KV cache") as error:
        start(tiny_llama, kv_tokens=10**13)
    assert "[engine] kv_tokens" in error.value.where
    assert "fewer tokens" in error.value.hint
