import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.errors import CheckpointError, UnsupportedModelError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 10,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.norm.weight": np.ones(8, dtype=np.float32)}, tmp_path / "model.safetensors")
    return tmp_path


def test_opens_a_folder(folder):
    for name in ("tokenizer.model", "chat_template.jinja", "README.md"):
        (folder / name).write_text("x")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.path == folder
    assert checkpoint.config.hidden_size == 8
    assert checkpoint.tensors.names() == {"model.norm.weight"}
    names = [path.name for path in checkpoint.text_files()]
    assert names == ["config.json", "tokenizer.model", "chat_template.jinja"]


def test_missing_folder_and_file_in_its_place(folder):
    for path in (folder / "nothing", folder / "config.json"):
        with pytest.raises(CheckpointError, match="is not a folder"):
            open_checkpoint(path)


def test_gguf_is_refused_where_there_is_nothing_else(folder):
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert open_checkpoint(folder).tensors.names()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="GGUF files are not supported: give the Hugging Face checkpoint"):
        open_checkpoint(folder)


def test_missing_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        open_checkpoint(folder)


def test_unknown_architecture_comes_before_the_weights(folder):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["BertModel"]}))
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"BertModel.*supported are LlamaForCausalLM"):
        open_checkpoint(folder)
