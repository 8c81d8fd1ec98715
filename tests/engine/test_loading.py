"""What a decoder is opened with when nobody says otherwise."""

import pytest

from tinychat.engine.loading import usual_kv
from tinychat.models.architectures import parse_config
from tinychat.models.layout import Quantization
from tinychat.models.shapes import config_of


@pytest.mark.parametrize(
    ("hidden_size", "method", "kv"),
    [(64, "int4", "f16"), (510, "int8", "f16"), (512, "int4", "bf16"), (2048, "int8", "bf16"), (2048, "f32", "f32")],
)
def test_the_type_of_the_cache_follows_the_model(hidden_size, method, kv):
    config = parse_config(
        config_of("smollm2-135m") | {"hidden_size": hidden_size, "num_attention_heads": 1, "num_key_value_heads": 1},
        "test",
    )
    assert usual_kv(config, Quantization(method, 32)) == kv
