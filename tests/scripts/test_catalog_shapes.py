"""The catalog's shapes against the formulas that their configurations go through, whole and with fewer layers."""

import pytest
from catalog_shapes import catalog_config, cut

from tinychat.conversion.pipeline import Recipe, fitted, weight_count
from tinychat.engine.blocks import bytes_per_position
from tinychat.models.architectures import parse_config
from tinychat.models.layout import tensor_specs
from tinychat.store.catalog import CATALOG
from tinychat.store.estimates import PROGRAM_BYTES, disk_bytes, memory_bytes_needed

# Those of Llama's build.
DENSE = [f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")]


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)
def test_a_shape_has_the_weights_of_its_configuration(entry):
    config = parse_config(catalog_config(entry), entry.name)
    # Routers do not count.
    assert entry.shape.weights == pytest.approx(weight_count(config), rel=1e-3 if config.experts else 0)
    if entry.architecture in DENSE or not entry.writes:
        recipe = Recipe("int8", check=False) if not entry.writes else Recipe()
        made = sum(spec.bytes for spec in tensor_specs(config, fitted(config, recipe)).values())
        assert made == pytest.approx(disk_bytes(entry), rel=0.06)
        cache = memory_bytes_needed(entry) - disk_bytes(entry) - PROGRAM_BYTES
        assert cache == min(entry.context, 8192) * bytes_per_position(config, "bf16")


@pytest.mark.parametrize(
    "name",
    ["llama3.1-8b", "gemma3n-e2b", "gemma4-e2b", "gemma4-e4b", "falcon-h1-7b", "granite4-h-tiny", "nemotron3-nano"],
)
def test_a_model_with_fewer_layers_is_one(name):
    most = 0.45 * disk_bytes(CATALOG[name])
    entry = cut(CATALOG[name], most)
    config = parse_config(catalog_config(entry), name)
    assert disk_bytes(entry) <= most
    assert 2 < config.num_hidden_layers == entry.shape.layers < CATALOG[name].shape.layers
    assert entry.shape.weights == pytest.approx(weight_count(config), rel=4e-3)
