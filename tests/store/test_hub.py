"""Checkpoints of the hub: what is downloaded, what is refused, and how errors read."""

import json
import os
import shutil
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import embedders
import families
import numpy as np
import packed_checkpoints
import pytest
from fake_hub import COMMIT, TOKEN, serving
from huggingface_hub import constants
from huggingface_hub.utils import _http
from safetensors.numpy import save

from tinychat import api
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import convert
from tinychat.conversion.pipeline import Recipe
from tinychat.conversion.unfinished import JournaledWriter
from tinychat.errors import CheckpointError, ConversionError, HubError, UnsupportedModelError
from tinychat.store import estimates
from tinychat.store.hub import download_size, fetch, fetch_adapter

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 10,
}
CONFIG_FILE = json.dumps(CONFIG).encode()
WEIGHTS = save({"model.norm.weight": np.arange(8, dtype=np.float32)})


@pytest.fixture
def hub(monkeypatch, tmp_path):
    repositories = {
        "owner/model": {
            "config.json": CONFIG_FILE,
            "tokenizer.model": b"pieces",
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"the same again",
            "model.fp16.safetensors": b"and again",
            "README.md": b"words",
            "original/model.safetensors": b"in another layout",
        }
    }
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with serving(repositories) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_fetches_what_is_needed_and_nothing_else(hub):
    folder = fetch("owner/model")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert names == {"config.json", "tokenizer.model", "model.safetensors"}
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(checkpoint.tensors.read("model.norm.weight"), np.arange(8))


def test_a_second_fetch_downloads_nothing(hub):
    first = fetch("owner/model")
    hub.asked.clear()
    assert fetch("owner/model") == first
    assert [line for line in hub.asked if line.startswith("GET") and "/resolve/" in line] == []


def test_what_was_fetched_once_needs_no_network(hub, monkeypatch):
    first = fetch("owner/model")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch("owner/model") == first


def test_half_a_download_is_not_taken_for_a_whole_one_without_a_network(hub, monkeypatch):
    files = hub.repositories["owner/model"]
    del files["model.safetensors"], files["pytorch_model.bin"]
    check_one_line("owner/model", "no weights")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    check_one_line("owner/model", "is not in the cache and the hub cannot be reached")


def test_the_files_of_an_embedding_model_come_before_its_weights(hub, tmp_path):
    (tmp_path / "files").mkdir()
    embedders.write_modules(tmp_path / "files", modules=("Transformer", "Pooling", "LayerNorm"))
    names = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    hub.repositories["owner/model"] |= {str(path.relative_to(tmp_path / "files")): path.read_bytes() for path in names}
    with pytest.raises(UnsupportedModelError, match="a module of type 'LayerNorm' is not supported"):
        fetch("owner/model")
    assert not any("model.safetensors" in line for line in hub.asked)
    embedders.write_modules(tmp_path / "files")
    hub.repositories["owner/model"]["modules.json"] = (tmp_path / "files/modules.json").read_bytes()
    shutil.rmtree(tmp_path / "cache")
    assert open_checkpoint(fetch("owner/model")).config.writes is False


def test_adapters(hub):
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": WEIGHTS, "README.md": b"words"}
    hub.repositories["owner/adapter"] = adapter
    folder = fetch_adapter("owner/adapter")
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    with pytest.raises(HubError, match=r"owner/adapter is an adapter.*convert BASE DST --adapter owner/adapter"):
        fetch("owner/adapter")
    with pytest.raises(HubError, match="owner/model is not an adapter"):
        fetch_adapter("owner/model")


def test_the_size_of_a_download(hub, monkeypatch):
    hub.repositories["owner/sharded"] = {
        "model-00001-of-00002.safetensors": b"abc",
        "model-00002-of-00002.safetensors": b"de",
        "model.safetensors.index.json": b"{}",
        "model.fp16.safetensors": b"and again",
    }
    hub.repositories["owner/words"] = {"README.md": b"words"}
    assert download_size("owner/model", 5) == len(WEIGHTS)
    assert download_size("owner/sharded", 5) == 7
    for name in ("owner/words", "owner/missing", "owner/gated"):
        assert download_size(name, 5) is None
    hub.repositories["owner/odd"] = {"../model.safetensors": b"x", "model.safetensors": b"x"}
    assert download_size("owner/odd", 5) is None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert download_size("owner/model", 5) is None


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        began = time.monotonic()
        assert download_size("owner/model", 0.3) is None
        assert time.monotonic() - began < 5


def test_bin_weights_where_there_is_nothing_better(hub):
    del hub.repositories["owner/model"]["model.safetensors"]
    assert (fetch("owner/model") / "pytorch_model.bin").read_bytes() == b"the same again"


def test_shards(hub):
    files = hub.repositories["owner/model"]
    shard = "model-00001-of-00001.safetensors"
    files[shard] = files.pop("model.safetensors")
    index = {"weight_map": {"model.norm.weight": shard}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    checkpoint = open_checkpoint(fetch("owner/model"))
    assert checkpoint.tensors.by_name.keys() == {"model.norm.weight"}


@pytest.fixture
def sharded(hub, tmp_path):
    """A checkpoint in shards, the last of which the server holds back; the event lets it go."""
    folder = families.write_checkpoint(families.BY_NAME["llama2-gqa"], tmp_path / "sharded")
    hub.repositories["owner/sharded"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    last = sorted(path.name for path in folder.glob("model-*.safetensors"))[-1]
    hub.held_back[last] = threading.Event()
    yield folder, hub.held_back[last]
    hub.held_back[last].set()


@pytest.fixture
def plainly(monkeypatch):
    """Convert as fast as can be where a model is named."""
    monkeypatch.setattr(
        "tinychat.conversion.pipeline.default_recipe", lambda folder: Recipe("int8", algorithm="plain", check=False)
    )


def test_a_conversion_begins_with_the_first_shard(sharded, plainly, monkeypatch):
    checkpoint, released = sharded
    write, written = JournaledWriter.write, []

    def note(self, linear, layer, *rest):
        written.append((linear, layer, released.is_set()))
        if len(written) == 3:
            released.set()
        write(self, linear, layer, *rest)

    monkeypatch.setattr(JournaledWriter, "write", note)
    folder = api.locate("owner/sharded")
    assert [before for _, _, before in written[:4]] == [False] * 3 + [True]
    expected = convert(checkpoint, checkpoint.parent / "whole", "int8")
    assert (folder / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    described = [json.loads((each / "tinychat.json").read_text()) for each in (folder, expected)]
    assert described[0] == described[1] | {"source": "owner/sharded"}


def test_the_bar_moves_while_a_shard_is_waited_for(sharded, plainly):
    checkpoint, released = sharded
    *_, last = sorted(checkpoint.glob("model-*.safetensors"))
    shown = []

    def progress(done, total):
        shown.append(done / total)
        # It waits: the same is shown again.
        if len(shown) > 1 and shown[-1] == shown[-2]:
            released.set()

    api.locate("owner/sharded", progress)
    assert shown == sorted(shown)
    waits = [share for share, after in pairwise(shown) if share == after]
    assert waits
    assert 0 < waits[0] < 1 - last.stat().st_size / sum(path.stat().st_size for path in checkpoint.glob("model-*")) / 2
    assert shown[-1] == 1


def test_all_shards_are_downloaded_at_once_where_nothing_reads_them_meanwhile(sharded, monkeypatch):
    checkpoint, released = sharded
    released.set()
    monkeypatch.setattr("tinychat.store.hub.Arrivals", None)
    folder = api.checkpoint_folder("owner/sharded")
    assert {path.name for path in folder.glob("model-*")} == {path.name for path in checkpoint.glob("model-*")}


def test_a_packed_checkpoint_is_pulled_as_it_is(hub, tmp_path, rng):
    packed_checkpoints.write_checkpoint("mlx", packed_checkpoints.VARIANT, tmp_path / "packed", rng)
    hub.repositories["owner/packed"] = {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    described = json.loads((api.pull("owner/packed") / "tinychat.json").read_text())
    assert described["codes"]["kept"] == {"mlx": 7 * 3 + 1}


def test_a_shard_that_does_not_come_ends_the_conversion(sharded, plainly, hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    checkpoint, released = sharded
    name = sorted(path.name for path in checkpoint.glob("model-*.safetensors"))[-1]
    hub.repositories["owner/sharded"][name] = b"something else"
    released.set()
    with pytest.raises(CheckpointError, match=f"{name} is truncated or not safetensors"):
        api.locate("owner/sharded")
    del hub.repositories["owner/sharded"][name]
    shutil.rmtree(constants.HF_HUB_CACHE)
    hub.repositories["owner/sharded"][name] = None
    with pytest.raises(HubError, match=r"owner/sharded lists a file that it does not have; try again later"):
        api.locate("owner/sharded")


def test_a_conversion_that_fails_ends_the_download(sharded, plainly, hub, monkeypatch):
    def fail(*arguments):
        raise ConversionError("it fails")

    monkeypatch.setattr(JournaledWriter, "write", fail)
    monkeypatch.setattr("tinychat.store.hub._SECONDS_TO_STOP", 0.01)
    with pytest.raises(ConversionError, match="it fails"):
        api.locate("owner/sharded")
    sharded[1].set()
    wait_until(lambda: not any(thread.name.endswith("(_run)") for thread in threading.enumerate()))
    # How much of the shards before it came meanwhile depends on the moment.
    *_, last = hub.held_back
    assert not list(Path(constants.HF_HUB_CACHE).rglob(f"snapshots/*/{last}"))


def test_a_download_that_goes_on_after_its_block_is_still_checked(sharded, plainly, hub, monkeypatch):
    def fail(*arguments):
        wait_until(lambda: any(line.startswith(f"GET /owner/sharded/resolve/{COMMIT}/{last}") for line in hub.asked))
        raise ConversionError("it fails")

    *_, last = hub.held_back
    before = _http._GLOBAL_CLIENT_FACTORY
    monkeypatch.setattr(JournaledWriter, "write", fail)
    monkeypatch.setattr("tinychat.store.hub._SECONDS_TO_STOP", 0.01)
    with pytest.raises(ConversionError, match="it fails"):
        api.locate("owner/sharded")
    hub.headers = {"X_Repo_Commit": "../../elsewhere"}
    with pytest.raises(HubError, match="which no hub does"):
        _http.get_session().get(f"{os.environ['HF_ENDPOINT']}/owner/model/resolve/main/config.json")
    sharded[1].set()
    wait_until(lambda: before == _http._GLOBAL_CLIENT_FACTORY)


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_disk_that_is_too_small_is_told_before_the_download(sharded, plainly, hub, monkeypatch):
    monkeypatch.setattr(estimates, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=10_000)))
    with pytest.raises(ConversionError, match=r"for the download .* and the model .* are free: free") as caught:
        api.locate("owner/sharded")
    assert str(caught.value).isprintable()
    assert not [line for line in hub.asked if line.startswith("GET") and ".safetensors" in line.split("?")[0]]


def test_unsupported_model_is_refused_before_its_weights_are_fetched(hub):
    hub.repositories["owner/model"]["config.json"] = b'{"architectures": ["UnknownModel"]}'
    with pytest.raises(UnsupportedModelError, match="UnknownModel"):
        fetch("owner/model")
    assert not [line for line in hub.asked if line.endswith(("safetensors", ".bin"))]


def test_token_is_sent(hub, monkeypatch):
    hub.repositories["owner/gated"] = hub.repositories["owner/model"]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert (fetch("owner/gated") / "model.safetensors").exists()


def check_one_line(repo_id, reason):
    with pytest.raises(HubError, match=reason) as caught:
        fetch(repo_id)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_what_the_hub_refuses(hub):
    hub.repositories |= {"owner/gated": {}, "owner/other-branch": {}}
    check_one_line("owner/gated", "owner/gated is gated: accept its terms.*HF_TOKEN")
    check_one_line("owner/nothing", "owner/nothing does not exist on the hub, or is private")
    check_one_line("owner/other-branch", "owner/other-branch has no branch main")
    check_one_line("no//id", "'no//id' is not a repo id")
    check_one_line("a/b/c\n", "is not a repo id")


def test_repositories_that_are_no_checkpoints(hub):
    del hub.repositories["owner/model"]["config.json"]
    check_one_line("owner/model", r"owner/model has no config\.json.*; give the repository that it was made from")
    hub.repositories["owner/other"] = {"config.json": CONFIG_FILE, "model.gguf": b"x"}
    check_one_line("owner/other", r"owner/other has no weights.*expected one of model\.safetensors")
    hub.repositories["owner/other-GGUF"] = {"model.gguf": b"x"}
    check_one_line("owner/other-GGUF", "download its GGUF file and give the path of that")


def test_no_network(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    check_one_line("owner/model", "the hub cannot be reached; check the network and HF_ENDPOINT")


def test_a_server_in_trouble(hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.broken = True
    check_one_line("owner/model", "owner/model .*(cannot be reached|cannot be downloaded)")


def test_a_full_disk(hub, monkeypatch):
    def fail(*arguments, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    check_one_line("owner/model", "cannot be downloaded:.*No space left")


class ContentNetwork(BaseHTTPRequestHandler):
    """Where a hub keeps large files: another server, with entity tags of its own kind."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("ETag", 'W/"ab/c+d=="')
        self.send_header("Content-Length", str(len(WEIGHTS)))
        self.end_headers()
        self.wfile.write(WEIGHTS)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def content_network():
    server = ThreadingHTTPServer(("127.0.0.1", 0), ContentNetwork)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_weights_may_lie_elsewhere_under_any_tag(hub, content_network):
    hub.elsewhere = content_network
    assert (fetch("owner/model") / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    "tag", ["../../../../escaped", "{}/escaped", "..", ".", "a/../../b", "a\\b", "a b", "W/../x", ""]
)
@pytest.mark.parametrize("name", ["ETag", "X_Linked_Etag", "X_Repo_Commit"])
def test_a_header_that_would_lead_out_of_the_cache_is_refused(hub, tmp_path, name, tag):
    (tmp_path / "secret").write_text("of the user")
    before = files_below(tmp_path)
    hub.headers = {name: f'"{tag.format(tmp_path)}"'}
    check_one_line("owner/model", f"{name.replace('_', '-')}.*refused: check HF_ENDPOINT")
    assert files_below(tmp_path) == before


def test_an_existing_file_is_not_taken_for_a_downloaded_one(hub, tmp_path):
    (tmp_path / "secret").write_text("of the user")
    hub.headers = {"ETag": f'"{tmp_path}/secret"'}
    check_one_line("owner/model", "refused")
    assert not list((tmp_path / "cache").rglob("config.json"))


@pytest.mark.parametrize(
    "name", ["/etc/model.json", "../model.json", "a/../../b", "a\\b", "C:/x", "a//b", "a\x1b[31m", ""]
)
def test_a_listing_with_names_that_no_file_can_have_is_refused(hub, tmp_path, name):
    hub.repositories["owner/model"][name] = b"{}"
    check_one_line("owner/model", "the hub lists a file of the name .*refused")
    assert not (tmp_path / "cache").exists()


def test_plain_http_stays_on_this_machine(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    check_one_line("owner/model", r"http://hub\.invalid is not encrypted.*use https, or set TINYCHAT_PLAIN_HTTP=1")
    monkeypatch.setenv("TINYCHAT_PLAIN_HTTP", "1")
    check_one_line("owner/model", "the hub cannot be reached")
    monkeypatch.setenv("HF_ENDPOINT", f"http://localhost:{hub.server_port}")
    monkeypatch.delenv("TINYCHAT_PLAIN_HTTP")
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert fetch("owner/model").exists()


def test_a_redirect_to_plain_http_elsewhere_is_refused(hub):
    hub.elsewhere = "http://cdn.invalid"
    check_one_line("owner/model", r"http://cdn\.invalid is not encrypted")


def test_the_client_of_others_is_left_as_it_was(hub):
    from huggingface_hub.utils import _http, get_session

    before = _http._GLOBAL_CLIENT_FACTORY
    fetch("owner/model")
    assert _http._GLOBAL_CLIENT_FACTORY is before
    assert get_session().event_hooks["response"] == []
