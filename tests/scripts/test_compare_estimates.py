"""Models of the catalog with fewer layers, of which the rates of the largest are compared."""

import pytest
from compare_estimates import cut

from tinychat.models.architectures import weight_count
from tinychat.store.catalog import CATALOG
from tinychat.store.estimates import disk_bytes


@pytest.mark.parametrize(
    "name",
    ["llama3.1-8b", "gemma3n-e2b", "gemma4-e2b", "gemma4-e4b", "falcon-h1-7b", "granite4-h-tiny", "nemotron3-nano"],
)
def test_a_model_with_fewer_layers_is_one(name):
    whole = CATALOG[name]
    most = 0.45 * disk_bytes(whole)
    entry = cut(whole, most)
    assert disk_bytes(entry) <= most
    assert 2 < entry.config.num_hidden_layers < whole.config.num_hidden_layers
    assert weight_count(entry.config) < weight_count(whole.config)
