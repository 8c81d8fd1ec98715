"""What is compiled beside the download of the usual model is what that needs."""

import compile_default
import pytest

from tinychat.checkpoint.folder import folder_of
from tinychat.conversion.pipeline import default_recipe, quantization_of
from tinychat.models.architectures import read_config
from tinychat.models.layout import tensor_specs
from tinychat.store.default_model import default_file


def test_it_is_a_model():
    config, quantization = compile_default.usual()
    assert sum(spec.bytes for spec in tensor_specs(config, quantization).values()) > 90e6


def test_it_is_the_usual_model():
    file = default_file()
    if file is None:
        pytest.skip("its package is not installed")
    with folder_of(file) as folder:
        config = read_config(folder / "config.json")
        assert compile_default.usual() == (config, quantization_of(folder, default_recipe(folder)))
