"""The model that is offered where only the smallest is there: which, when, and what it takes."""

import json
import os
from pathlib import Path

import pytest

from tinychat.store import better_model, hub
from tinychat.store.better_model import LEAST_RATE, MOST_BYTES, best_entry, model_to_offer
from tinychat.store.catalog import CATALOG
from tinychat.store.default_model import DEFAULT_MODEL, Offer, advice, default_model, read_offer, write_offer
from tinychat.store.estimates import disk_bytes, memory_bytes_needed, tokens_per_second
from tinychat.store.local import path_for

DAY = 24 * 3600.0
NAME = "qwen3-0.6b"


def at(speed):
    """Return a bandwidth that is the same for any size."""
    return lambda size: speed


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Measure 20 GB/s and 8 GB of free memory, and let the hub have what is asked for: 1.5 GB."""
    monkeypatch.setattr(better_model, "memory_bandwidth", at(20.0))
    monkeypatch.setattr(better_model, "available_memory_bytes", lambda: 8 << 30)
    asked = []
    monkeypatch.setattr(hub, "download_size", lambda repository, seconds: asked.append(repository) or 1_503_300_328)
    monkeypatch.setattr("tinychat.store.default_model._MODULE", "no_such_package")
    return asked


def add_model(name):
    path_for(name).mkdir(parents=True)
    (path_for(name) / "tinychat.json").write_text("{}")


def test_the_best_is_the_largest_that_runs_well():
    best = best_entry(at(20.0), 8 << 30)
    assert best is CATALOG[NAME]
    assert disk_bytes(best) <= MOST_BYTES and tokens_per_second(best, at(20.0)) >= LEAST_RATE
    assert best_entry(at(20.0), None) is best
    small = best_entry(at(20.0), memory_bytes_needed(best) - 1)
    assert disk_bytes(CATALOG[DEFAULT_MODEL]) < disk_bytes(small) < disk_bytes(best)
    slow = best_entry(at(3.0), 8 << 30)
    assert disk_bytes(slow) < disk_bytes(best) and tokens_per_second(slow, at(3.0)) >= LEAST_RATE
    assert best_entry(at(0.1), 8 << 30) is None
    assert best_entry(at(20.0), 1 << 20) is None


def test_nothing_is_offered_whose_terms_have_to_be_accepted():
    for bandwidth in (1.0, 2.0, 5.0, 100.0):
        found = best_entry(at(bandwidth), None)
        assert found is None or found.licence in ("Apache-2.0", "MIT")


def test_it_is_offered_once(machine):
    better = model_to_offer({}, lambda: DAY)
    assert (better.entry.name, better.download, machine) == (NAME, 1_503_300_328, ["Qwen/Qwen3-0.6B"])
    assert better.lines("smollm2-135m") == [
        "qwen3-0.6b (Apache-2.0) would answer better than smollm2-135m, at some 50 tokens a second.",
        "It takes a download of 1.50 GB, some minutes to convert, then 0.34 GB on the disk and up to 1.6 GB of memory.",
    ]
    assert model_to_offer({}, lambda: 100 * DAY) is None
    assert len(machine) == 1


def test_without_the_hub_it_is_asked_again_the_next_day(machine, monkeypatch):
    monkeypatch.setattr(hub, "download_size", lambda repository, seconds: machine.append(repository))
    assert model_to_offer({}, lambda: DAY) is None
    assert model_to_offer({}, lambda: 1.9 * DAY) is None
    assert (len(machine), read_offer()) == (1, Offer(None, DAY))
    assert model_to_offer({}, lambda: 2 * DAY) is None
    assert len(machine) == 2
    # A clock that was set back must not keep it from being asked for years.
    assert model_to_offer({}, lambda: 1.0) is None
    assert len(machine) == 3


def test_nothing_is_offered_to_whom_it_does_not_concern(machine, monkeypatch):
    assert model_to_offer({"TINYCHAT_MODEL": "demo"}) is None
    assert read_offer() == Offer()
    add_model(NAME)
    assert model_to_offer({}) is None
    assert machine == []
    monkeypatch.setattr(better_model, "write_offer", lambda offer: False)
    assert model_to_offer({}, lambda: 1e12) is None, "what cannot be noted would be asked with each start"


def test_a_model_that_was_offered_answers_once_it_is_there():
    assert default_model({}) == "demo"
    assert advice({}).startswith("this is a very small demo model")
    write_offer(Offer(NAME, 1.0))
    assert default_model({}) == "demo"
    assert advice({}) == "qwen3-0.6b would answer better here: `tinychat pull qwen3-0.6b` gets it"
    add_model(DEFAULT_MODEL)
    assert default_model({}) == DEFAULT_MODEL
    assert "qwen3-0.6b would answer better" in advice({})
    add_model(NAME)
    assert default_model({}) == NAME
    assert default_model({"TINYCHAT_MODEL": "mine"}) == "mine"
    assert advice({}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"offered": "../x", "looked_at": "no"}', '{"offered": 3}', "\0"])
def test_a_damaged_note_is_as_none(text):
    file = Path(os.environ["TINYCHAT_HOME"]) / "offered.json"
    file.write_text(text)
    assert read_offer() == Offer()
    assert default_model({}) == "demo"
    file.write_text(json.dumps({"offered": "../../evil", "looked_at": 1.0}))
    assert read_offer() == Offer(None, 1.0)
