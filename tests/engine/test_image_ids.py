"""Rows of images in the residual stream: their ids, and that a step computes with them as with embeddings."""

import gc
import json
import sys
from dataclasses import replace
from threading import Thread

import engines
import families
import numpy as np
import pytest
import reference

from tinychat.engine.image_ids import ImageIds
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, SettingError
from tinychat.generate.prompt import check_prompt
from tinychat.models.architectures import read_config

IMAGE_TOKEN = 5
LENGTH = 40
PART = range(9, 30)  # those that stand for an image


def let_see(folder, token=IMAGE_TOKEN, wrapper="SmolVLMForConditionalGeneration"):
    """Make a model folder one of a model that sees images."""
    path = folder / "config.json"
    text = {**json.loads(path.read_text()), "architectures": None}
    raw = {"architectures": [wrapper], "text_config": text, "image_token_id": token}
    path.write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module", params=["tinyllama", "gemma2", "lfm2"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / request.param
    return let_see(engines.convert_variant(request.param, "f32", path))


@pytest.fixture(scope="module")
def engine(folder):
    return engines.open_engine(folder)


def embeddings(engine, ids):
    """Return the rows of the residual stream that ids begin with."""
    values = engine.parameters.embed_tokens.values
    rows = values.transpose(0, 2, 1).reshape(-1, values.shape[1])[ids, : engine.config.hidden_size]
    return rows * np.float32(engine.config.embedding_multiplier)


def text_and_image(engine):
    """Return ids of a text, the same with image ids for a part of it, and the tile of these."""
    text = engines.draw_ids(new_sequence(engine), LENGTH)
    tile = engine.images.new_tile(len(PART), lambda: embeddings(engine, text[PART.start : PART.stop]))
    return text, [*text[: PART.start], *tile.ids, *text[PART.stop :]], tile


def logits_of(engine, ids, chunks):
    sequence, found = new_sequence(engine), []
    for start, stop in zip([0, *chunks], [*chunks, len(ids)]):
        found.append(sequence.step(ids[start:stop], len(ids), outputs=stop - start))
    return np.concatenate(found)


@pytest.mark.parametrize("chunks", [[], [8], [9, 10, 29], [12, 30, 39]])
def test_rows_of_an_image_count_as_embeddings_do(engine, chunks):
    text, seen, tile = text_and_image(engine)
    np.testing.assert_array_equal(logits_of(engine, seen, chunks), logits_of(engine, text, []))
    assert tile.is_computed


def test_text_after_an_image_does_not_see_the_rows_of_an_earlier_step(engine):
    text, seen, _tile = text_and_image(engine)
    first, other = new_sequence(engine), new_sequence(engine)
    first.step(seen, outputs=1)
    np.testing.assert_array_equal(other.step(text, outputs=LENGTH), logits_of(engine, text, []))


def test_sequences_of_one_step_have_rows_of_their_own(engine):
    text, seen, _tile = text_and_image(engine)
    sequences = [new_sequence(engine) for _ in range(3)]
    chunks = [one.chunk(ids, LENGTH) for one, ids in zip(sequences, (text, seen, text))]
    for found in engine.run(chunks):
        np.testing.assert_array_equal(found, logits_of(engine, text, [])[-1:])


def test_rows_change_what_follows(engine):
    text = engines.draw_ids(new_sequence(engine), LENGTH)
    tile = engine.images.new_tile(8, lambda: np.ones((8, engine.config.hidden_size), np.float32))
    plain = [*text[:10], *[IMAGE_TOKEN] * 8, *text[18:]]
    found = logits_of(engine, [*text[:10], *tile.ids, *text[18:]], [])
    np.testing.assert_array_equal(found[:10], logits_of(engine, plain, [])[:10])
    assert np.abs(found[-1] - logits_of(engine, plain, [])[-1]).max() > 1e-3


def test_the_prefix_of_the_same_image_is_found_and_of_another_one_is_not(engine):
    _text, seen, _tile = text_and_image(engine)
    sequence = new_sequence(engine)
    sequence.step(seen)
    sequence.insert_prefix()
    sequence.release()
    _, other, _another = text_and_image(engine)
    assert new_sequence(engine).reuse([*other, 7]) <= PART.start
    assert new_sequence(engine).reuse([*seen, 7]) == LENGTH


def test_hidden_states_of_images_are_given(engine):
    text, seen, _tile = text_and_image(engine)
    found = [engine.hidden_states([new_sequence(engine).chunk(ids, LENGTH, 0)])[0] for ids in (text, seen)]
    np.testing.assert_array_equal(*found)


def test_ids_of_an_image_that_is_gone_are_refused_before_anything_runs(engine):
    _text, seen, tile = text_and_image(engine)
    sequence = new_sequence(engine)
    del tile
    gc.collect()
    with pytest.raises(SettingError, match="of no image, or of one that is gone"):
        sequence.step(seen)
    with pytest.raises(SettingError, match="of no image"):
        sequence.step([engine.images.first - 1, 1 << 40])
    assert sequence.ids == []


def test_another_type_of_cache_goes_on_with_the_same_images(engine):
    _text, seen, _tile = text_and_image(engine)
    sequence = new_sequence(engine)
    sequence.step(seen)
    other = sequence.on_changed_engine(kv="f32")
    assert other.ids == seen
    other.rewind(0)
    np.testing.assert_array_equal(other.step(seen), logits_of(other.engine, seen, [8, 12])[-1:])


def test_ids_are_told_from_text():
    images = ImageIds(100, 7)
    first, second = images.new_tile(3, lambda: np.zeros((3, 4))), images.new_tile(2, lambda: np.ones((2, 4)))
    assert (len(first.ids), len(second.ids)) == (3, 2) and min(*first.ids, *second.ids) >= 100
    ids = [1, *first.ids, 2, *second.ids, 3]
    assert images.tokens(ids) == [1, 7, 7, 7, 2, 7, 7, 3]
    assert images.tiles_of(ids) == [first, second] and images.tiles_of([1, second.ids[1]]) == [second]
    assert images.until_computed(ids) == 5 and images.until_computed([1, 2]) == 2
    assert [images.until_computed(given, 0) for given in (ids, ids[2:], [1])] == [1, 0, 1]
    assert [index for index, _ in images.computed(ids[:5])] == [1, 2, 3]
    assert [images.until_computed(ids, most) for most in (0, 1)] == [5, len(ids)]
    assert first.is_computed and not second.is_computed


def test_a_tile_is_found_while_another_thread_makes_some():
    images = ImageIds(100, 7)
    held = [images.new_tile(4, lambda: None) for _ in range(500)]
    wanted, found = [held[100].ids[0], held[400].ids[3]], []
    reader = Thread(target=lambda: found.extend(images.tiles_of(wanted) for _ in range(3000)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        reader.start()
        while reader.is_alive():
            held.append(images.new_tile(4, lambda: None))
            del held[500:-100]
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == [[held[100], held[400]]] * 3000


def test_tiles_that_are_gone_take_no_memory_and_leave_the_others():
    images = ImageIds(100, 7)
    held = images.new_tile(4, lambda: None)
    gone = [images.new_tile(4, lambda: None).ids[3] for _ in range(1000)]
    assert images.tile_of(held.ids[3]) is held and len(images._firsts) < 9
    with pytest.raises(SettingError, match=f"token id {gone[-1]} is of no image"):
        images.tile_of(gone[-1])


def test_ids_cannot_be_guessed():
    # Nor does a client that has kept some see another image when the server has begun again.
    ids = [ImageIds(100, 7).new_tile(64, lambda: None).ids.start for _ in range(8)]
    assert len(set(ids)) == 8 and min(ids) > 1 << 40


def test_the_image_token_is_one_of_the_vocabulary(tmp_path):
    folder = let_see(engines.convert_variant("tinyllama", "f32", tmp_path / "model"), 1 << 20)
    with pytest.raises(CheckpointError, match="image_token_id"):
        read_config(folder / "config.json")


def test_a_saved_cache_ends_before_an_image(engine, tmp_path):
    _text, seen, _tile = text_and_image(engine)
    sequence = new_sequence(engine)
    sequence.step(seen)
    assert sequence.save(tmp_path / "cache")
    other = engines.open_engine(engine._folder.path)
    loaded = new_sequence(other)
    assert loaded.load(tmp_path / "cache") == PART.start
    assert loaded.reuse(seen) == PART.start


def test_ids_that_run_together_are_never_cut():
    images = ImageIds(100, 7, 4)
    tiles = [images.new_tile(count, lambda: None) for count in (4, 3)]
    first, second = ([*tile.ids] for tile in tiles)
    ids = [1, 2, *first, *second, 3]
    # At the end of an image, or before it where there is no room.
    found = [images.step_length(ids, count, 9) for count in range(1, 11)]
    assert found == [1, 2, 6, 6, 6, 6, 9, 9, 9, 9]
    assert [images.step_length(ids, count, 5) for count in (2, 3, 5, 9)] == [2, 2, 2, 2]
    assert images.step_length(ids[3:], 1, 2) == 0 and images.step_length(ids[3:], 1, 3) == 3
    assert images.step_length([1, 2], 9, 9) == 2 and ImageIds(100, 7).step_length(ids, 3, 9) == 3
    whole = [(ids, []), (second, [*first]), (first[2:], [1, *first[:2]]), ([1], [2]), ([1], [])]
    for given, before in whole:
        images.check_whole(given, before)
    parts = [
        (first[:3], []),
        (first[1:], []),
        ([1], first[:2]),
        (second, first[:3]),
        (first[::-1], []),
        ([1, *first[1:]], []),
    ]
    for given, before in parts:
        with pytest.raises(SettingError, match="a part of an image: give the ids of all of it together"):
            images.check_whole(given, before)
    # An image that has run may be gone: text goes on behind it.
    gone = images.new_tile(2, lambda: None).ids
    images.check_whole([1, 2], [*gone])
    assert [images.known_prefix(ids[:count]) for count in range(11)] == [0, 1, 2, 2, 2, 2, 6, 6, 6, 9, 10]


def let_see_as_a_whole(folder):
    """Make a model folder one of a model in which the tokens of an image attend to each other."""
    path = folder / "config.json"
    text = {**json.loads(path.read_text()), "architectures": None}
    name = text["model_type"].removesuffix("_text")
    raw = {"architectures": [f"{name.title()}ForConditionalGeneration"], "text_config": text}
    if name == "gemma4":
        raw |= {"image_token_id": IMAGE_TOKEN, "vision_soft_tokens_per_image": JOINT}
        text["use_bidirectional_attention"] = "vision"
    else:
        raw |= {"image_token_index": IMAGE_TOKEN, "mm_tokens_per_image": JOINT}
    path.write_text(json.dumps(raw))
    return folder


JOINT = 24


JOINT_MODELS = [("gemma3", "f32"), ("gemma3", "int8"), ("gemma4-large", "f32")]


@pytest.fixture(scope="module", params=JOINT_MODELS, ids=" ".join)
def joint_folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("joint") / "model"
    return let_see_as_a_whole(engines.convert_variant(*request.param, path))


@pytest.fixture(scope="module")
def joint_engine(joint_folder):
    return engines.open_engine(joint_folder)


# Where images begin, and how many tokens they have: at the beginning, side by side, across blocks of the cache.
PLACES = [(0, 9), (30, JOINT), (54, 20), (100, 5), (118, JOINT)]
WHOLE = 150


def rows_of(engine, count, seed):
    size = engine.config.hidden_size
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32) * np.sqrt(size)


def with_images(engine):
    """Return ids of a text with images in it, and these; the same rows in every engine."""
    ids = engines.draw_ids(new_sequence(engine), WHOLE)
    held = []
    for seed, (begin, count) in enumerate(PLACES):
        held.append(engine.images.new_tile(count, lambda count=count, seed=seed: rows_of(engine, count, seed)))
        ids[begin : begin + count] = held[-1].ids
    return ids, held


def borders(rng, count):
    """Return random places for cuts that are within no image."""
    inside = {place for begin, size in PLACES for place in range(begin + 1, begin + size)}
    outside = [place for place in range(1, WHOLE) if place not in inside]
    return sorted(rng.choice(outside, count, replace=False).tolist())


@pytest.mark.parametrize("joint_folder", JOINT_MODELS[::2], ids=" ".join, indirect=True)
def test_images_as_a_whole_equal_the_reference(joint_folder, request):
    engine = engines.open_engine(joint_folder, kv="f32")
    assert (engine.config.joint_tokens, engine.most_rows) == (JOINT, 256 + JOINT)
    ids, _held = with_images(engine)
    places = [(begin, rows_of(engine, count, seed), (1, count)) for seed, (begin, count) in enumerate(PLACES)]
    variant = families.BY_NAME[request.node.callspec.params["joint_folder"][0]]
    expected = reference.decoder_logits(
        engine.config, families.make_weights(variant), engine.images.tokens(ids), images=places
    )
    found = logits_of(engine, ids, [])
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
    # Seen in one direction only, they give something else.
    causal = reference.decoder_logits(
        replace(engine.config, joint_tokens=0), families.make_weights(variant), engine.images.tokens(ids), images=places
    )
    assert np.abs(causal - expected)[-1].max() > 1e-2 * expected.std()


def test_chunks_threads_and_company_change_no_bit(joint_engine, joint_folder, rng):
    ids, _held = with_images(joint_engine)
    expected = logits_of(joint_engine, ids, [])
    for count in (1, 4, 30):
        np.testing.assert_array_equal(logits_of(joint_engine, ids, borders(rng, count)), expected)
    sequence = new_sequence(joint_engine)
    parts = [sequence.step(part, WHOLE, outputs=len(part)) for part in sequence.step_ids(ids, count=7)]
    assert len(parts) > 12
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    other = engines.open_engine(joint_folder, threads=2)
    its_ids, _its_held = with_images(other)
    np.testing.assert_array_equal(logits_of(other, its_ids, borders(rng, 3)), expected)
    # Beside a text, and beside the same images at other places.
    text = engines.draw_ids(new_sequence(joint_engine), 40)
    shifted = [*text[:3], *ids[30:100]]
    sequences = [new_sequence(joint_engine) for _ in range(4)]
    together = (text, ids[:118], shifted, text[:1])
    found = joint_engine.run([one.chunk(some, len(some)) for one, some in zip(sequences, together)])
    for one, some in zip(found, together):
        np.testing.assert_array_equal(one, logits_of(joint_engine, some, [])[-1:])
    np.testing.assert_array_equal(found[1], expected[117:118])


@pytest.mark.parametrize("length", [1, 8, 9, 33, 53, 60, 63, 64, 65, 73, 103, 119, 130, 142, 149])
def test_a_cache_that_is_cut_goes_on_within_an_image(joint_engine, length):
    ids, _held = with_images(joint_engine)
    expected = logits_of(joint_engine, ids, [])
    sequence = new_sequence(joint_engine)
    for part in sequence.step_ids(ids):
        sequence.step(part, WHOLE)
    sequence.rewind(length)
    assert sequence.ids == ids[:length]
    other = sequence.fork()
    for one in (sequence, other):
        parts = [one.step(part, WHOLE, outputs=len(part)) for part in one.step_ids(ids, length, 3)]
        np.testing.assert_array_equal(np.concatenate(parts), expected[length:])


def test_a_cached_prefix_may_end_within_an_image(joint_engine):
    ids, _held = with_images(joint_engine)
    expected, sequence = logits_of(joint_engine, ids, []), new_sequence(joint_engine)
    for part in sequence.step_ids(ids):
        sequence.step(part, WHOLE)
    sequence.release()
    for length in (33, 66, 110, 131, WHOLE):
        fresh = new_sequence(joint_engine)
        reused = fresh.reuse(ids[:length])
        assert reused == length - 1
        parts = [fresh.step(part, WHOLE, outputs=len(part)) for part in fresh.step_ids(ids, reused)]
        np.testing.assert_array_equal(np.concatenate(parts), expected[reused:])


def test_parts_of_images_are_refused(joint_engine):
    ids, held = with_images(joint_engine)
    sequence = new_sequence(joint_engine)
    for part in ([*held[0].ids][:5], [*held[0].ids][1:], ids[: PLACES[1][0] + 3]):
        with pytest.raises(SettingError, match="a part of an image"):
            sequence.step(part)
    assert sequence.ids == []
    sequence.step(ids[:9])
    sequence.cut(5)
    with pytest.raises(SettingError, match="a part of an image"):
        sequence.step([1, 2])
    with pytest.raises(SettingError, match="a part of an image"):
        check_prompt(ids[:5], joint_engine, 256)
    check_prompt(ids, joint_engine, 256)


def test_a_changed_type_of_cache_keeps_images_whole(joint_engine):
    ids, _held = with_images(joint_engine)
    sequence = new_sequence(joint_engine)
    sequence.step(ids)
    other = sequence.on_changed_engine(kv="f32")
    other.rewind(0)
    other._run_again(ids[:40], WHOLE)
    assert other.ids == ids[:30]
    found = [other.step(part, WHOLE, outputs=len(part)) for part in other.step_ids(ids, 30)]
    np.testing.assert_array_equal(np.concatenate(found), logits_of(other.engine, ids, [])[30:])
