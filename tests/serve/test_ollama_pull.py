"""A model of the catalog that a client pulls from a hub of our own, and talks to."""

import json
from functools import partial

import packed_checkpoints
import pytest
from fake_hub import serving as serving_hub
from fake_model import fake_model
from huggingface_hub import constants
from local_server import listening, new_server

from tinychat.commands.loading import load_model
from tinychat.commands.serve import _opened, _pulled
from tinychat.generate.precedence import Preferences
from tinychat.serve.server import ServerOptions
from tinychat.store.catalog import CATALOG, CatalogEntry


@pytest.fixture
def catalogued(monkeypatch, tmp_path, rng):
    """Put a tiny model on a hub of our own, and into the catalog."""
    packed_checkpoints.write_checkpoint("mlx", packed_checkpoints.VARIANT, tmp_path / "packed", rng)
    files = {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    entry = CatalogEntry("tiny", "owner/packed", "MIT", "LlamaForCausalLM", 64, (1, 1, 1, 1, 1, 1, 1, True))
    monkeypatch.setitem(CATALOG, "tiny", entry)
    with serving_hub({"owner/packed": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.mark.slow
def test_a_model_is_pulled_and_answers(catalogued):
    options = ServerOptions(pull=partial(_pulled, partial(_opened, load_model, Preferences(), None)))
    state = new_server(fake_model(lambda _ids: 97), options=options)
    with listening(state) as server:
        status, data = server.raw("POST", "/api/pull", '{"model": "tiny"}')
        lines = [json.loads(line) for line in data.splitlines()]
        assert status == 200 and lines[-1] == {"status": "success"}, lines
        steps = [line for line in lines if "total" in line]
        assert steps and all(0 <= one["completed"] <= one["total"] for one in steps)
        _, listed = json.loads(server.raw("GET", "/api/tags")[1])["models"]
        assert (listed["name"], listed["details"]["format"]) == ("tiny", "tinychat") and listed["size"] > 0
        assert any("model.safetensors" in line for line in catalogued.asked)
        body = {"model": "tiny", "prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 3}}
        status, answer = server.post("/api/generate", body)
        assert status == 200 and answer["eval_count"] == 3, answer
