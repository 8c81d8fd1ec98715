"""What a decoder is opened with when nobody says otherwise."""

import engines
import pytest

from tinychat.engine.loading import load_engine, usual_kv
from tinychat.errors import FieldError
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


@pytest.mark.parametrize(("field", "count"), [("threads", 0), ("threads", 1025), ("fewest_threads", 0)])
def test_a_number_of_threads_that_cannot_be_is_refused(field, count, tmp_path):
    folder = engines.convert_variant("tinyllama", "int4", tmp_path / "model")
    with pytest.raises(FieldError, match=f"must be 1.* not {count}") as caught:
        load_engine(folder, **{field: count})
    assert caught.value.field == field
