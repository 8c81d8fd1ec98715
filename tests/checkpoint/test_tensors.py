import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tinychat.checkpoint.tensors import open_tensors
from tinychat.errors import CheckpointError

REPO = Path(__file__).parents[2]
STORIES = REPO.parent / "shared" / "data" / "stories260K"

FIRST = {"a": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.ones(5, dtype=np.float16)}
SECOND = {"c": np.zeros((2, 2), dtype=np.float32)}


@pytest.fixture
def shards(tmp_path):
    save_file(FIRST, tmp_path / "model-1.safetensors")
    save_file(SECOND, tmp_path / "model-2.safetensors")
    weight_map = {
        **dict.fromkeys(FIRST, "model-1.safetensors"),
        **dict.fromkeys(SECOND, "model-2.safetensors"),
    }
    write_index(tmp_path, weight_map)
    return tmp_path


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_single_file(tmp_path):
    save_file(FIRST, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    assert tensors.by_name.keys() == {"a", "b"}
    assert tensors["a"].shape == (4, 3)
    np.testing.assert_array_equal(tensors.read("a"), FIRST["a"])
    np.testing.assert_array_equal(tensors.read("a", 2), FIRST["a"][2:])
    np.testing.assert_array_equal(tensors.read("b", 1, 3), FIRST["b"][1:3])


def test_shards(shards):
    tensors = open_tensors(shards)
    assert tensors.by_name.keys() == {"a", "b", "c"}
    np.testing.assert_array_equal(tensors.read("a"), FIRST["a"])
    np.testing.assert_array_equal(tensors.read("c"), SECOND["c"])


def test_a_single_file_is_preferred_to_shards_and_safetensors_to_bin(shards):
    save_file(SECOND, shards / "model.safetensors")
    (shards / "pytorch_model.bin").write_bytes(b"never looked at")
    assert open_tensors(shards).by_name.keys() == {"c"}


def test_links_out_of_the_folder_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    save_file(FIRST, blobs / "0123")
    (snapshot / "model.safetensors").symlink_to(blobs / "0123")
    assert open_tensors(snapshot).by_name.keys() == {"a", "b"}


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2), (5, 5)])
def test_rows_that_are_not_there(tmp_path, start, stop):
    save_file(FIRST, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="'a' has 4 rows"):
        open_tensors(tmp_path).read("a", start, stop)


def test_unknown_tensor(shards):
    tensors = open_tensors(shards)
    for ask in (tensors.read, tensors.__getitem__):
        with pytest.raises(CheckpointError, match=r"has no tensor 'lm_head\.weight'"):
            ask("lm_head.weight")


def test_no_weights(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no weights; expected one of model\.safetensors"):
        open_tensors(tmp_path)


def test_missing_shard(shards):
    (shards / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors is missing, though the index lists it"):
        open_tensors(shards)


def test_tensor_that_is_not_in_its_shard(shards):
    write_index(shards, {"a": "model-1.safetensors", "d": "model-2.safetensors"})
    with pytest.raises(CheckpointError, match=r"'d' is not in model-2\.safetensors"):
        open_tensors(shards)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/x.safetensors", "..\\x.safetensors", "C:x.safetensors", "sub/x.bin", "a\0.bin"],
)
def test_index_cannot_reach_out_of_its_folder(shards, shard):
    inside = shards / "inner"
    inside.mkdir()
    save_file(FIRST, shards / "x.safetensors")
    write_index(inside, {"a": shard})
    with pytest.raises(CheckpointError, match="outside the folder") as caught:
        open_tensors(inside)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("shard", [3, None, "", "config.json", [], "..", {"a": 1}])
def test_index_entry_that_is_not_a_shard(shards, shard):
    write_index(shards, {"a": shard})
    with pytest.raises(CheckpointError, match="not the name of a shard"):
        open_tensors(shards)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_damaged_index(shards, content):
    (shards / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_tensors(shards)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_git_lfs_pointer(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        open_tensors(tmp_path)


def test_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_tensors(tmp_path)


def test_a_real_checkpoint():
    if not STORIES.exists():
        pytest.skip(f"{STORIES} is not there")
    tensors = open_tensors(STORIES)
    assert tensors["model.embed_tokens.weight"].shape == (512, 64)
    rows = tensors.read("model.embed_tokens.weight", 500)
    assert rows.shape == (12, 64)
    assert np.isfinite(rows).all() and rows.std() > 0
