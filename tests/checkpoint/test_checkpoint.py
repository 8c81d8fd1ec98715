import json

import families
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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
    assert checkpoint.tensors.by_name.keys() == {"model.norm.weight"}
    names = [path.name for path in checkpoint.text_files()]
    assert names == ["config.json", "tokenizer.model", "chat_template.jinja"]


# Of each part of a layer, which layer of a pair a published file of Dory has it in, and as what.
BLOCKS = {"self_attn": (0, "mixer"), "mlp": (1, "mixer"), "lambda_1": (0, "attn_alpha"), "lambda_2": (1, "mlp_alpha")}


def published_name(name):
    """Return the name that a published file of Dory has: attention and MLP are layers of their own, in turns."""
    parts = name.replace("model.", "backbone.").replace("embed_tokens", "embeddings").split(".")
    if parts[1] == "layers":
        block, new = BLOCKS[parts[3]]
        end = ["g_proj" if each == "gate_proj" and not block else each for each in parts[4:]]
        parts[2:] = [str(2 * int(parts[2]) + block), new, *end]
    return ".".join(parts)


def test_names_of_published_files_of_dory(tmp_path):
    folder = families.write_checkpoint(families.BY_NAME["dory-three"], tmp_path)
    own = {name: tensor.read(0, tensor.shape[0]) for name, tensor in open_checkpoint(folder).tensors.by_name.items()}
    stored = load_file(folder / "model.safetensors")
    published = {published_name(name): tensor for name, tensor in stored.items()}
    expected = ["layers.0.mixer.g_proj.weight", "layers.3.mixer.gate_proj.weight", "layers.6.attn_alpha"]
    assert {f"backbone.{name}" for name in (*expected, "layers.7.mlp_alpha", "layers.1.mixer.suv_up")} < {*published}
    save_file(published, folder / "model.safetensors")
    tensors = open_checkpoint(folder).tensors
    assert tensors.by_name.keys() == own.keys()
    for name, values in own.items():
        np.testing.assert_array_equal(tensors.read(name), values)


def test_missing_folder_and_file_in_its_place(folder):
    for path in (folder / "nothing", folder / "config.json"):
        with pytest.raises(CheckpointError, match="is not a folder"):
            open_checkpoint(path)


def test_gguf_is_read_where_there_is_nothing_else(folder):
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert open_checkpoint(folder).tensors.by_name
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.gguf ends within its header"):
        open_checkpoint(folder)


def test_missing_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        open_checkpoint(folder)


def test_unknown_architecture_comes_before_the_weights(folder):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["UnknownModel"]}))
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match="'UnknownModel' is not supported; see 'Supported families' in"):
        open_checkpoint(folder)


def test_an_unknown_architecture_is_told_in_200_characters_wherever_it_lies(tmp_path):
    folder = tmp_path / ("long" * 50) / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["UnknownModel" * 50]}))
    with pytest.raises(UnsupportedModelError) as raised:
        open_checkpoint(folder)
    assert str(raised.value).startswith("...onglonglonglonglong/checkpoint/config.json: architecture 'UnknownModel")
    assert str(raised.value).endswith("see 'Supported families' in docs/, or `tinychat models --available`")
    assert len(str(raised.value)) < 200


def test_a_text_file_that_is_a_link_out_of_the_checkpoint_is_refused(tmp_path):
    folder = families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path / "checkpoint")
    (tmp_path / "secret").write_text("{}")
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / "tokenizer_config.json").symlink_to("../secret")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is a link to a file outside of the checkpoint"):
        open_checkpoint(folder)
    (folder / "elsewhere").write_text("{}")
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").symlink_to("elsewhere")
    open_checkpoint(folder)


@pytest.mark.parametrize("blobs", ["models--owner--name/blobs", "blobs/ab"])
def test_links_of_the_hubs_cache_are_followed(tmp_path, blobs):
    folder = tmp_path / "models--owner--name" / "snapshots" / "0123"
    folder.parent.mkdir(parents=True)
    families.write_checkpoint(families.BY_NAME["smollm2"], folder)
    (tmp_path / blobs).mkdir(parents=True)
    for index, file in enumerate([*folder.iterdir()]):
        target = tmp_path / blobs / f"blob{index}"
        file.rename(target)
        file.symlink_to(target)
    assert open_checkpoint(folder).text_files()
    (tmp_path / "secret").write_text("{}")
    (folder / "added_tokens.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        open_checkpoint(folder)
