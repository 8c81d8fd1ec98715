"""Keys and values in a file: the same logits from it, or as if it were not there."""

import json
import os
import shutil
import struct
import zlib

import engines
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tinychat.engine import cache_file
from tinychat.engine.cache_file import _MAGIC
from tinychat.engine.sequence import new_sequence
from tinychat.errors import FieldError, SessionError

CONTEXT = 500


@pytest.fixture(scope="module")
def folder(folders):
    return folders("qwen3-window", "f32")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.cache"


def new_engine(folder, blocks=40, kv="bf16"):
    return engines.open_engine(folder, 2, kv, positions=blocks * 64)


def run(sequence, ids):
    for start in range(len(sequence.ids), len(ids), 200):
        logits = sequence.step(ids[start : start + 200])
    return logits[-1]


@given(length=st.integers(1, 400), kept=st.integers(0, 400), new=st.integers(1, 90))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_sequence_that_goes_on_from_a_file_computes_what_a_fresh_one_does(folder, tmp_path, length, kept, new):
    """After a rewind too, with another end, and from the middle of a block."""
    path, rng = tmp_path / "kept.cache", np.random.default_rng(length)
    before, after, fresh = (new_sequence(new_engine(folder), CONTEXT) for _ in range(3))
    ids = rng.integers(0, 517, length).tolist()
    run(before, ids)
    before.rewind(kept := min(kept, length))
    assert before.save(path) == (kept > 0)
    assert after.load(path) == kept
    prompt = [*ids[:kept], *rng.integers(0, 517, new).tolist()]
    assert after.reuse(prompt) >= min(kept, len(prompt) - 1)
    np.testing.assert_array_equal(run(after, prompt), run(fresh, prompt))
    path.unlink(missing_ok=True)


def kept_by(engine, path, length=150):
    sequence = new_sequence(engine, CONTEXT)
    ids = np.random.default_rng(1).integers(0, 517, length).tolist()
    run(sequence, ids)
    assert sequence.save(path)
    return ids


def test_another_sequence_goes_on_in_the_last_block_meanwhile(folder, path, monkeypatch):
    first, rng = new_sequence(new_engine(folder), CONTEXT), np.random.default_rng(3)
    run(first, ids := rng.integers(0, 517, 70).tolist())
    second, replacing = first.fork(), cache_file.replacing
    monkeypatch.setattr(cache_file, "replacing", lambda path: first.step([5, 6]) is not None and replacing(path))
    assert second.save(path)
    assert first.cache.table == second.cache.table
    assert new_sequence(new_engine(folder), CONTEXT).load(path) == len(ids)


def test_only_what_is_of_the_same_is_used(folder, folders, path, monkeypatch):
    ids = kept_by(new_engine(folder), path)

    def found(name="qwen3-window", kv="bf16", blocks=40):
        return new_sequence(new_engine(folders(name, "f32"), blocks, kv), min(CONTEXT, blocks * 64)).load(path)

    assert found() == len(ids)
    assert found(kv="f16") == 0
    assert found(name="tinyllama") == 0
    assert found(blocks=2) == 0, "there is no room"
    monkeypatch.setattr("tinychat.engine.engine.sources_digest", lambda: "of another version")
    assert found() == 0
    monkeypatch.undo()
    weights = folder / "model.safetensors"
    os.utime(weights, (0, 0))
    assert found() == 0, "the weights are others"


def test_a_fine_tune_of_equal_size_and_time_is_another_model(folders, path, tmp_path):
    folder = shutil.copytree(folders("tinyllama", "f32"), tmp_path / "model")
    kept_by(new_engine(folder), path)
    weights = folder / "model.safetensors"
    stat, data = weights.stat(), bytearray(weights.read_bytes())
    tenth = len(data) // 10
    data[-2 * tenth : -tenth] = bytes(tenth)
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert new_sequence(new_engine(folder), CONTEXT).load(path) == 0


def test_blocks_of_a_file_are_free_again_when_others_want_them(folder, path):
    ids = kept_by(new_engine(folder), path)
    engine = new_engine(folder, 8)
    sequence = new_sequence(engine, CONTEXT)
    assert sequence.load(path) == len(ids)
    assert sequence.load(path) == len(ids), "a second time does no harm"
    assert engine.pool.used == 3
    run(sequence, [5] * CONTEXT)
    assert sequence.reuse(ids) == 0


def test_a_file_that_is_missing_or_damaged_anywhere_is_as_good_as_none(folder, path):
    engine = new_engine(folder)
    assert new_sequence(engine, CONTEXT).load(path) == 0
    kept_by(engine, path)
    whole = path.read_bytes()
    places = [0, 20, 26, 30, 40, 60, len(whole) // 3, len(whole) // 2, len(whole) - 1]
    damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in places]
    cut = [whole[:i] for i in (0, 10, 30, 100, len(whole) // 2, len(whole) - 1)]
    for data in (*damaged, *cut):
        path.write_bytes(data)
        other = new_engine(folder)
        assert new_sequence(other, CONTEXT).load(path) == 0
        assert other.pool.used == 0


def test_what_follows_dropped_tokens_is_not_kept(folder, path):
    sequence = new_sequence(new_engine(folder), CONTEXT)
    ids = np.random.default_rng(1).integers(0, 517, 300).tolist()
    run(sequence, ids)
    sequence.drop(70, 90)
    assert sequence.save(path)
    other = new_sequence(new_engine(folder), CONTEXT)
    assert other.load(path) == 64
    assert other.reuse(ids) == 64


def test_a_write_that_fails_leaves_the_old_file(folder, path, monkeypatch):
    engine = new_engine(folder)
    kept_by(engine, path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(SessionError, match=r"kept\.cache cannot be written \(no space\): free some space"):
        new_sequence(engine, CONTEXT).save(path) or kept_by(engine, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named_in_one_line(folder, tmp_path):
    engine = new_engine(folder)
    for path in (tmp_path / "missing" / "kept.cache", tmp_path / ("x" * 300)):
        with pytest.raises(SessionError, match="cannot be written") as caught:
            kept_by(engine, path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "crafted",
    [
        lambda header: [],
        lambda header: header | {"ids": None},
        lambda header: header | {"ids": 5},
        lambda header: header | {"ids": {"a": 1}},
        lambda header: header | {"ids": "x" * len(header["ids"])},
        lambda header: header | {"ids": [[token] for token in header["ids"]]},
        lambda header: header | {"ids": [-1] * len(header["ids"])},
        lambda header: header | {"ids": [1 << 40] * len(header["ids"])},
        lambda header: header | {"ids": [True] * len(header["ids"])},
        lambda header: header | {"blocks": None},
        lambda header: header | {"blocks": dict.fromkeys("abc", 1)},
        lambda header: header | {"angles": [1]},
        lambda header: header | {"angles": {"a": 1}},
        lambda header: {name: value for name, value in header.items() if name != "angles"},
        lambda header: {name: value for name, value in header.items() if name != "ids"},
        lambda header: {name: value for name, value in header.items() if name != "blocks"},
    ],
)
def test_a_crafted_header_with_a_sound_checksum_is_as_good_as_none(crafted, folder, path):
    engine = new_engine(folder)
    kept_by(engine, path)
    header, rest = parts_of(path)
    path.write_bytes(with_header(json.dumps(crafted(header)).encode(), rest))
    other = new_engine(folder)
    assert new_sequence(other, CONTEXT).load(path) == 0
    assert other.pool.used == 0


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"of":' * 100_000, b"5", b"\xff", b"9" * 5000, b""])
def test_a_header_that_is_no_object_is_as_good_as_none(text, folder, path):
    path.write_bytes(with_header(text, b""))
    assert new_sequence(new_engine(folder), CONTEXT).load(path) == 0


@pytest.mark.parametrize("count", [100, 6 << 20])
def test_a_header_of_many_lists_is_not_read(count, folder, path, monkeypatch):
    path.write_bytes(with_header(b"[" + b"[]," * count + b"0]", b""))
    sequence = new_sequence(new_engine(folder), CONTEXT)
    monkeypatch.setattr("json.loads", lambda text: pytest.fail("it is read"))
    assert sequence.load(path) == 0


def parts_of(path):
    """Return the header of a file as an object, and what follows it."""
    data = path.read_bytes()
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(data[start - 8 : start - 4], "little")
    return json.loads(data[start:end]), data[end:]


def with_header(text, rest):
    return _MAGIC + struct.pack("<II", len(text), zlib.crc32(text)) + text + rest


def test_another_type_of_cache_takes_over_what_is_there_and_keeps_none_of_it_for_others(folder, path):
    sequence = new_sequence(new_engine(folder), CONTEXT)
    ids = np.random.default_rng(1).integers(0, 517, 150).tolist()
    expected = run(sequence, ids)
    sequence.rewind(149)
    alone = sequence.on_changed_engine(threads=1)
    assert (alone.engine.threads, alone.kv, alone.ids) == (1, sequence.kv, ids[:149])
    assert np.array_equal(alone.step(ids[149:])[-1], expected)
    other = sequence.on_changed_engine(kv="f32")
    assert (other.kv, other.ids, other.context_size) == ("f32", ids[:149], CONTEXT)
    assert sequence.ids == ids[:149]
    found = other.step(ids[149:])[-1]
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert not other.save(path)
    other.insert_prefix()
    assert new_sequence(other.engine, CONTEXT).reuse(ids) == 0
    with pytest.raises(FieldError, match="must be one of"):
        sequence.on_changed_engine(kv="int3")
