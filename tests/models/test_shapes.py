"""The table of shapes: each is a configuration that tinychat accepts, and of the size its name says."""

import math

import pytest

from tinychat.errors import SettingError
from tinychat.models.architectures import linears, parse_config
from tinychat.models.shapes import SHAPES, config_of

BILLIONS = {"smollm2-135m": 0.135, "tinyllama-1.1b": 1.1, "llama-3.2-1b": 1.24, "llama-2-7b": 6.74}
BILLIONS |= {"bitnet-2b4t": 2.41, "bonsai-8b": 8.19, "gpt-oss-20b": 20.9, "dory-4b": 3.97}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_a_valid_configuration(shape):
    raw = config_of(shape)
    assert parse_config(raw, shape).architecture == raw["architectures"][0]


@pytest.mark.parametrize("shape", BILLIONS)
def test_parameters_add_up_to_the_name(shape):
    config = parse_config(config_of(shape), shape)
    weights = sum(linear.weights for linear in linears(config))
    assert math.isclose(weights / 1e9, BILLIONS[shape], rel_tol=0.01)


def test_a_mixture_is_cut_to_some_of_its_layers():
    config = parse_config(config_of("qwen3-30b-a3b-4-layers"), "shape")
    outside = 2 * config.vocab_size * config.hidden_size
    weights = sum(linear.weights for linear in linears(config)) - outside
    assert math.isclose((weights / 4 * 48 + outside) / 1e9, 30.5, rel_tol=0.01)


def test_unknown_shapes_are_refused_with_the_list():
    with pytest.raises(SettingError, match="smollm2-135m"):
        config_of("gpt-5")
