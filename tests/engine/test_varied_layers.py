"""Layers whose heads are of two sizes and may read other layers' keys, and four residual streams: the same bits."""

import mmap
import sys
from pathlib import Path

import engines
import families
import numpy as np
import pytest
import reference

from tinychat.bench.random_model import write_random_model
from tinychat.engine.blocks import bytes_per_position
from tinychat.engine.sequence import new_sequence
from tinychat.generate.sequence import logits_of_all
from tinychat.models.architectures import parse_config
from tinychat.models.folder import open_model_folder

CONTEXT, LENGTH = 700, 600


@pytest.fixture(scope="module", params=["gemma4", "gemma3n"])
def folder(request, folders):
    return folders(request.param)


@pytest.fixture(scope="module")
def expected(folder):
    sequence = new_sequence(engines.open_engine(folder), CONTEXT)
    ids = engines.draw_ids(sequence, LENGTH)
    return ids, logits_of_all(sequence, ids)


@pytest.mark.parametrize(("size", "threads"), [(1, 2), (7, 1), (64, 3), (256, 2)])
def test_threads_and_chunks(size, threads, folder, expected):
    ids, logits = expected
    sequence = new_sequence(engines.open_engine(folder, threads), CONTEXT)
    for start in range(0, LENGTH, size):
        row = sequence.step(ids[start : start + size])[-1]
        assert row.tobytes() == logits[len(sequence.ids) - 1].tobytes()


def test_a_cache_full_of_rubbish(folder, expected):
    ids, logits = expected
    sequence = new_sequence(engines.open_engine(folder, positions=LENGTH + 64), LENGTH)
    for array in sequence.engine.pool.arrays:
        array.view(np.uint8)[:] = 0xFF
    assert logits_of_all(sequence, ids).tobytes() == logits.tobytes()


def test_rewinds_forks_and_drafts(folder, expected):
    ids, logits = expected
    sequence = new_sequence(engines.open_engine(folder, 2), CONTEXT)
    sequence.step(ids[:200])
    # Tokens that are proposed and not taken leave no trace.
    sequence.step([3, 5, 8, 13], outputs=4)
    sequence.rewind(200)
    other = sequence.fork()
    other.step(ids[7:90])
    assert sequence.step(ids[200:204], outputs=4).tobytes() == logits[200:204].tobytes()
    assert sequence.reuse(ids[:130]) == 129
    assert sequence.step(ids[129:256])[-1].tobytes() == logits[255].tobytes()


def test_sixteen_sequences_in_one_step(folder, expected):
    ids, logits = expected
    engine = engines.open_engine(folder, 2, positions=16 * LENGTH)
    sequences = [new_sequence(engine, CONTEXT) for _ in range(16)]
    for i, sequence in enumerate(sequences):
        logits_of_all(sequence, ids[: 1 + 30 * i])
    for count in (1, 3):
        chunks = [sequence.chunk(ids[len(sequence.ids) :][:count], len(sequence.ids) + count) for sequence in sequences]
        for sequence, row in zip(sequences, engine.run(chunks)):
            assert row.tobytes() == logits[len(sequence.ids) - 1 : len(sequence.ids)].tobytes()


def test_keys_and_values_from_a_file(folder, expected, tmp_path):
    ids, logits = expected
    sequence = new_sequence(engines.open_engine(folder), CONTEXT)
    sequence.step(ids[:150])
    assert sequence.save(tmp_path / "saved.cache")
    other = new_sequence(engines.open_engine(folder), CONTEXT)
    assert other.load(tmp_path / "saved.cache") == 150
    assert other.reuse(ids[:180]) == 150
    assert other.step(ids[150:180])[-1].tobytes() == logits[179].tobytes()


def unrotated_keys(sequence, layer, positions):
    """Return the keys of a layer of the model at some positions, turned back to position 0."""
    pool, config = sequence.engine.pool, sequence.engine.config
    index, (narrow, *_), *_ = config.cache_layer(layer), *config.cache_shapes
    keys = pool.arrays[0][:, index] if index < narrow else pool.arrays[3][:, index - narrow]
    found = np.stack([keys[sequence.cache.table[p // 64], :, p % 64 // 16, :, p % 16] for p in positions])
    angles, _ = reference.layer_angles(config, layer, max(positions) + 1)
    return reference.rope(found, -angles[positions])


@pytest.mark.parametrize("layer", [0, 2, 1])
def test_dropped_turns_move_the_keys_of_both_sizes(layer, folder, expected):
    ids, _ = expected
    sequence = new_sequence(engines.open_engine(folder, kv="f32"), CONTEXT)
    sequence.step(ids[:150])
    before = unrotated_keys(sequence, layer, np.r_[:20, 61:150])
    sequence.drop(20, 61)
    np.testing.assert_allclose(unrotated_keys(sequence, layer, np.arange(109)), before, atol=1e-4)


def test_layers_that_read_others_keys_have_none():
    config = parse_config(families.BY_NAME["gemma4"].config, "config.json")
    assert (config.cache_layers, config.cache_shapes) == ((0, 2, 1), ((2, 1, 40), (1, 1, 56)))
    assert [config.cache_layer(layer) for layer in range(5)] == [0, 2, 1, 1, 2]
    # Values are padded to whole vectors.
    assert bytes_per_position(config, "f32") == 4 * (2 * (40 + 48) + 56 + 64)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it was asked")
def test_of_inputs_of_layers_only_what_is_looked_at_is_read(tmp_path):
    shape = families.BY_NAME["gemma4"].config | {"intermediate_size": 160, "hidden_size_per_layer_input": 128}
    (tmp_path / "model").mkdir()
    folder = open_model_folder(write_random_model(shape, tmp_path / "model"))
    table = folder.tensors["layer_inputs.packed"]
    page = mmap.PAGESIZE
    first, last = table.ctypes.data // page * page + page, (table.ctypes.data + table.nbytes) // page * page
    flags = flags_of_mappings()
    assert "rr" in flags[first, last]
    assert "rr" not in next(found for (start, _), found in flags.items() if start == last)


def flags_of_mappings():
    """Return the flags of the parts of memory by their first and last address; "rr": read here and there."""
    found, place = {}, None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            place = tuple(int(address, 16) for address in first.split("-"))
        elif first == "VmFlags:":
            found[place] = rest
    return found
