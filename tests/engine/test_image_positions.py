"""Images of Qwen3-VL and Qwen3.5 in the text model: positions of three axes, and parts of rows behind the first layers.

Against the formulas, to the bit in any order of steps, and where the past is rewritten.
"""

import gc
import json
import re
from types import SimpleNamespace

import engines
import families
import numpy as np
import pytest
import reference
from engine.test_engine import assert_close
from engine.test_image_ids import IMAGE_TOKEN, let_see
from engine.test_states import CONTEXT, LENGTH, Sequences
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize
from kernels.cache_inputs import Pages, read_keys
from test_multimodal import CASES, SIZES

import tinychat
from tinychat.engine.cache import KVCache
from tinychat.engine.image_ids import ImageIds
from tinychat.engine.image_positions import ImagePositions
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, SettingError
from tinychat.generate.prompt import check_prompt
from tinychat.generate.sequence import logits_of_all
from tinychat.kernels.sizes import BLOCK
from tinychat.models.architectures import parse_config, read_config

# By variant: what it is inside of, the pairs of channels of each axis, if its files say so, and the layers of the tower
# of which rows have a part: two of the three layers of the text model get one.
WRAPPERS = {
    "qwen3": ("Qwen3VLForConditionalGeneration", [8, 7, 5], [1, 4]),
    "qwen3.5": ("Qwen3_5ForConditionalGeneration", None, None),
}
# Numbers of tokens of text, and grids of images.
LAYOUTS = {
    "first": [(3, 5), 20],
    "in the middle": [11, (7, 2), 30],
    "two": [3, (1, 6), 9, (4, 4), 12],
    "one behind the other": [8, (5, 2), (2, 3), 10],
    "of one token": [9, (1, 1), 9, (6, 1), 9],
}


def seeing(variant, quant, folder):
    """Convert a variant, and make it a model that sees images."""
    wrapper, section, deep = WRAPPERS[variant]
    folder = let_see(engines.convert_variant(variant, quant, folder), wrapper=wrapper)
    raw = json.loads((folder / "config.json").read_text())
    if section is not None:
        raw["text_config"]["rope_scaling"] = {"type": "mrope", "mrope_section": section}
        raw["vision_config"] = {"deepstack_visual_indexes": deep}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module", params=WRAPPERS)
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def folder(variant, tmp_path_factory):
    return seeing(variant, "f32", tmp_path_factory.mktemp("positions") / variant)


@pytest.fixture(scope="module")
def engine(folder):
    return engines.open_engine(folder, kv="f32")


def show(engine, layout, seed=3):
    """Return ids of text and images, these for `reference.decoder_logits`, and their tiles."""
    rng = np.random.default_rng(seed)
    ids, images, tiles = [], [], []
    for part in layout:
        if isinstance(part, int):
            ids += rng.integers(0, 517, part).tolist()
        else:
            width = engine.config.hidden_size * (1 + engine.config.deepstack_layers)
            rows = rng.standard_normal((part[0] * part[1], width)).astype(np.float32)
            tiles.append(engine.images.new_tile(len(rows), lambda rows=rows: rows, part))
            images.append((len(ids), rows, part))
            ids += tiles[-1].ids
    return ids, images, tiles


def by_formulas(engine, variant, ids, images):
    weights = families.make_weights(families.BY_NAME[variant])
    return reference.decoder_logits(engine.config, weights, engine.images.tokens(ids), images)


def test_parts_of_images_are_no_prompts(engine):
    # The positions behind them would grow with each by far more than the ids.
    ids, _images, (tile,) = show(engine, [3, (2, 5), 4])
    check_prompt(ids, engine, 256)
    for part in ([tile.ids[0]] * 3, ids[:9], ids[5:]):
        with pytest.raises(SettingError, match="a part of an image"):
            check_prompt(part, engine, 256)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_formulas(engine, variant, layout):
    ids, images, _tiles = show(engine, LAYOUTS[layout])
    expected = by_formulas(engine, variant, ids, images)
    assert_close(logits_of_all(new_sequence(engine), ids), expected, 1e-5, 1.0)
    # The grid counts, and so does where text goes on.
    in_a_row = [(first, rows, (1, len(rows))) for first, rows, _ in images]
    if any(rows > 1 for *_, (rows, _) in images):
        other = by_formulas(engine, variant, ids, in_a_row)
        assert np.abs(other - expected)[-1].max() > 1e-3 * expected.std()


def test_each_token_of_any_chunks_has_the_same_bits(engine, folder):
    ids, _, _tiles = show(engine, [5, (3, 7), 12, (9, 4), 11, (2, 2), 16])
    expected, rng = logits_of_all(new_sequence(engine), ids), np.random.default_rng(4)
    for _ in range(8):
        sequence, found = new_sequence(engine), []
        while len(sequence.ids) < len(ids):
            count = int(rng.integers(1, 1 + min(int(rng.choice([1, 9, 40])), len(ids) - len(sequence.ids))))
            found.append(sequence.step(ids[len(sequence.ids) :][:count], len(ids), outputs=count))
        np.testing.assert_array_equal(np.concatenate(found), expected)
    two = engines.open_engine(folder, 2, kv="f32")
    two.images = engine.images
    np.testing.assert_array_equal(logits_of_all(new_sequence(two), ids), expected)


def test_sequences_of_one_step_have_positions_of_their_own(engine):
    layouts = [[7, (2, 6), 9], [30], [(5, 1), 3, (2, 2), 8]]
    texts = [show(engine, layout, seed) for seed, layout in enumerate(layouts)]
    sequences = [new_sequence(engine) for _ in texts]
    for first, stop in ((0, 8), (8, 9), (9, 17)):
        chunks = [one.chunk(ids[first:stop], 30, stop - first) for one, (ids, *_) in zip(sequences, texts)]
        for found, (ids, *_) in zip(engine.run(chunks), texts):
            np.testing.assert_array_equal(found, logits_of_all(new_sequence(engine), ids[:stop])[first:])


def test_text_alone_has_the_bits_of_a_model_that_sees_nothing(engine, folder, variant, tmp_path):
    raw = json.loads((folder / "config.json").read_text())
    text = raw["text_config"] | {"architectures": families.BY_NAME[variant].config["architectures"]}
    other = engines.convert_variant(variant, "f32", tmp_path / "text")
    (other / "config.json").write_text(json.dumps(text | {"rope_scaling": None}))
    blind = engines.open_engine(other, kv="f32")
    assert blind.config.rotary_axes == () and blind.config.image_token_id is None
    ids = show(engine, [90])[0]
    np.testing.assert_array_equal(logits_of_all(new_sequence(engine), ids), logits_of_all(new_sequence(blind), ids))


def test_a_sequence_goes_on_from_the_middle_of_an_image(engine):
    ids, _, _tiles = show(engine, [6, (4, 5), 9])
    other = [*ids[:15], *show(engine, [12], 9)[0]]
    expected = [logits_of_all(new_sequence(engine), each) for each in (ids, other)]
    sequence = new_sequence(engine)
    sequence.step(ids)
    sequence.rewind(15)
    np.testing.assert_array_equal(sequence.step(ids[15:], outputs=len(ids) - 15), expected[0][15:])
    sequence.rewind(15)
    # Text behind a part of an image stands where it would behind the whole.
    np.testing.assert_array_equal(sequence.step(other[15:], outputs=12), expected[1][15:])
    sequence.rewind(6)
    np.testing.assert_array_equal(sequence.step(ids[6:], outputs=len(ids) - 6), expected[0][6:])


@pytest.mark.parametrize("layout", [[70, (8, 9), 40], [(8, 9), 80, (3, 2), 20]])
def test_what_others_have_cached_is_gone_on_with(engine, layout):
    ids, _, _tiles = show(engine, layout)
    expected = logits_of_all(new_sequence(engine), ids)
    first = new_sequence(engine)
    first.step(ids[:-9])
    first.insert_prefix()
    fork = first.fork()
    np.testing.assert_array_equal(fork.step(ids[-9:], outputs=9), expected[-9:])
    first.release()
    second = new_sequence(engine)
    assert second.reuse(ids) == len(ids) - 9
    np.testing.assert_array_equal(second.step(ids[-9:], outputs=9), expected[-9:])
    changed = fork.on_changed_engine(threads=2)
    changed.rewind(len(ids) - 5)
    np.testing.assert_array_equal(changed.step(ids[-5:], outputs=5), expected[-5:])


def test_a_fork_has_images_of_its_own(engine):
    ids, _, _tiles = show(engine, [6, (4, 5), 9])
    other, _, _more = show(engine, [6, 3, (2, 7), 9], 5)
    other[:6] = ids[:6]
    sequence = new_sequence(engine)
    sequence.step(ids[:6])
    fork = sequence.fork()
    for stop in (20, len(ids)):
        for one, text in ((sequence, ids), (fork, other)):
            found = one.step(text[len(one.ids) : stop], outputs=1)
            np.testing.assert_array_equal(found, logits_of_all(new_sequence(engine), text[:stop])[-1:])
            fork.fork().step(ids[:3])


def test_a_sequence_outlives_its_images_but_others_do_not_find_them(engine):
    ids, _, tiles = show(engine, [66, (2, 40), 70])
    expected = logits_of_all(new_sequence(engine), ids)
    first = new_sequence(engine)
    first.step(ids[:-20])
    first.insert_prefix()
    tiles.clear()
    gc.collect()
    assert first.reuse(ids) == len(ids) - 20
    np.testing.assert_array_equal(first.fork().step(ids[-20:], outputs=20), expected[-20:])
    np.testing.assert_array_equal(first.step(ids[-20:], outputs=20), expected[-20:])
    # Only the image itself tells where text behind it stands.
    assert new_sequence(engine).reuse(ids) <= 66


def test_a_step_that_fails_leaves_no_image(engine, monkeypatch):
    ids, _, _tiles = show(engine, [4, (3, 3), 9])
    text = show(engine, [22], 8)[0]
    sequence = new_sequence(engine)
    sequence.step(ids[:4])
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(engine._workers, "run", lambda *job: (_ for _ in ()).throw(MemoryError))
        sequence.step(ids[4:])
    assert sequence.ids == ids[:4]
    found = sequence.fork().step(text[4:], outputs=18)
    np.testing.assert_array_equal(sequence.step(text[4:], outputs=18), found)
    np.testing.assert_array_equal(found, logits_of_all(new_sequence(engine), [*ids[:4], *text[4:]])[4:])


def keys_of(sequence):
    """Return the keys of a sequence's first layer of attention."""
    cache = sequence.cache
    pages = Pages(cache.pool.buffers, np.array(cache.table, np.int32))
    return read_keys(cache.kv, pages, cache.config.head_dim, 0)[:, : cache.length]


@pytest.mark.parametrize(("start", "stop"), [(2, 40), (66, 75), (10, 68), (72, 90), (70, 80), (85, 125)])
def test_keys_behind_what_is_dropped_turn_to_where_they_now_stand(tmp_path, start, stop):
    engine = engines.open_engine(seeing("qwen3", "f32", tmp_path / "model"), kv="f32")
    ids, _, _tiles = show(engine, [66, (3, 6), 30, (4, 2), 20])
    left = [*ids[:start], *ids[stop:]]
    sequence, fresh = new_sequence(engine), new_sequence(engine)
    sequence.step(ids)
    sequence.drop(start, stop)
    fresh.step(left)
    # The first layer's keys follow from each token and its position.
    np.testing.assert_allclose(keys_of(sequence), keys_of(fresh), atol=2e-5)
    more = show(engine, [12], 7)[0]
    sequence.step(more)
    fresh.step(more)
    np.testing.assert_allclose(keys_of(sequence)[:, -12:], keys_of(fresh)[:, -12:], atol=1e-6)


class SeeingSequences(Sequences):
    """Three sequences of a pool; the ids of each begin one of two texts with images."""

    images = None

    @initialize()
    def begin(self):
        super().begin()
        self.engine.images = self.images

    def save(self):
        """Files end before an image: see `test_image_ids`."""


def test_any_order_of_operations(folder, engine):
    shared, _, tiles = show(engine, [300, (20, 11), 30, (2, 9), 132], 1)
    texts = []
    for seed in (2, 3):
        rest, _, more = show(engine, [3, (9, 21), 100, (10, 10), 188], seed)
        texts.append([*shared, *rest])
        tiles += more
    expected = [logits_of_all(new_sequence(engine, CONTEXT), text) for text in texts]
    assert {len(text) for text in texts} == {LENGTH}
    SeeingSequences.folder, SeeingSequences.texts, SeeingSequences.images = folder, (texts, expected), engine.images
    SeeingSequences.positions = 40 * BLOCK
    machine = SeeingSequences.TestCase
    machine.settings = settings(
        max_examples=25,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()


def positions_of(layout, images=None):
    """Return ids of a layout, and the images in a sequence of them."""
    images = images or ImageIds(100, IMAGE_TOKEN)
    engine = SimpleNamespace(images=images, config=SimpleNamespace(hidden_size=4, deepstack_layers=0))
    ids, shown, tiles = show(engine, layout)
    ids = [one if one >= 517 else 7 for one in ids]
    found = ImagePositions(SimpleNamespace(vocab_size=100, rotary_axes=(0, 1, 2)))
    return ids, shown, tiles, found, images


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_are_those_of_the_formulas(layout):
    ids, shown, _tiles, found, images = positions_of(LAYOUTS[layout])
    expected = reference.image_positions(len(ids), shown)
    found.extend(0, ids, images.find)
    for start in range(len(ids)):
        for stop in range(start + 1, len(ids) + 1):
            np.testing.assert_array_equal(found.positions(start, stop), expected[start:stop])


def test_positions_of_a_wide_image_are_those_of_transformers():
    # 2 by 3 behind four tokens of text, as `get_rope_index` of Qwen3-VL gives them.
    ids, _, _tiles, found, images = positions_of([4, (2, 3), 3])
    found.extend(0, ids, images.find)
    expected = [[0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9], [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9]]
    expected += [[0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]]
    np.testing.assert_array_equal(found.positions(0, len(ids)).T, expected)


def test_the_same_image_twice_is_two():
    ids, shown, tiles, found, images = positions_of([2, (2, 3), 3])
    twice = [*ids, *tiles[0].ids, *tiles[0].ids[:4], 7]
    shown = [(2, shown[0][1], (2, 3)), (11, shown[0][1], (2, 3)), (17, shown[0][1][:4], (2, 3))]
    found.extend(0, twice, images.find)
    np.testing.assert_array_equal(found.positions(0, len(twice)), reference.image_positions(len(twice), shown))


def test_ids_up_to_an_image_that_is_gone_are_found():
    ids, _, tiles, found, images = positions_of([2, (2, 3), 3, (4, 4), 5])
    gone = tiles.pop()
    assert found.extend(0, ids, images.find) == len(ids)
    del gone
    gc.collect()
    assert found.extend(0, ids, images.find) == 11
    with pytest.raises(SettingError, match="of one that is gone"):
        images.tile_of(ids[11])


AXES = {
    ("Qwen3VLForConditionalGeneration", 20, (8, 7, 5)): "01201201201201201001",
    ("Qwen3VLForConditionalGeneration", 12, (6, 3, 2)): "012012010000",
    ("Qwen3_5ForConditionalGeneration", 4, None): "0120",
    ("Qwen3_5ForConditionalGeneration", 32, None): "01201201201201201201201201201201",
    ("SmolVLMForConditionalGeneration", 12, (4, 4, 4)): "",
}


@pytest.mark.parametrize("case", AXES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_pairs_of_channels_take_turns(case):
    wrapper, pairs, section = case
    name = "qwen3.5" if "3_5" in wrapper else "qwen3"
    head_dim = 8 * pairs if name == "qwen3.5" else 2 * pairs
    text = families.BY_NAME[name].config | {"architectures": None, "head_dim": head_dim}
    if section is not None:
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section)}
    raw = {"architectures": [wrapper], "text_config": text, "image_token_id": 5}
    assert "".join(map(str, parse_config(raw, "").rotary_axes)) == AXES[case]


def test_layers_with_a_part_of_their_own_are_counted():
    text = families.BY_NAME["qwen3"].config | {"architectures": None}
    raw = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text, "image_token_id": 5}
    counts = [({"deepstack_visual_indexes": []}, 0), ({"deepstack_visual_indexes": [5, 8]}, 2), ({}, 3)]
    for vision, count in counts:
        assert parse_config(raw | {"vision_config": vision}, "").deepstack_layers == count
    assert parse_config(raw | {"image_token_id": None}, "").deepstack_layers == 0
    raw["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    raw["text_config"] = families.BY_NAME["qwen3.5"].config | {"architectures": None}
    assert parse_config(raw, "").deepstack_layers == 0


@pytest.mark.parametrize(
    ("found", "changed", "message"),
    [
        ("[8, 7, 5]", "[8, 7]", "mrope_section is [8, 7]; expected a list of 3 numbers"),
        ("[1, 4]", "[1, 2, 3, 4]", "deepstack_visual_indexes is [1, 2, 3, 4]; expected a list of up to 3 layers"),
        ("[1, 4]", "7", "deepstack_visual_indexes is 7; expected a list"),
    ],
)
def test_a_section_that_cannot_be_is_refused(found, changed, message, tmp_path):
    folder = seeing("qwen3", "f32", tmp_path / "model")
    path = folder / "config.json"
    path.write_text(path.read_text().replace(found, changed))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_config(path)


def test_a_cache_by_itself_finds_text_alone(engine):
    ids, _, _tiles = show(engine, [66, (2, 3), 20])
    first = new_sequence(engine)
    first.step(ids)
    first.insert_prefix()
    found = KVCache(engine.pool, 200)
    found.match_prefix(ids, len(ids))
    assert found.length <= 66


SEEING = [name for name in CASES if name.startswith(("Qwen3VL", "Qwen3_5"))]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SEEING)
# They tell images apart by the text between these.
@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"one behind the other"}))
def test_logits_are_those_of_transformers(case, layout, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model_type, text, vision, *more = CASES[case]
    config = transformers.AutoConfig.for_model(
        model_type, text_config={**SIZES, **text}, vision_config=vision, **dict(*more)
    )
    torch.manual_seed(1)
    theirs = getattr(transformers, case.partition(" ")[0])(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1.5)
    theirs.save_pretrained(tmp_path / "checkpoint")
    families.write_tokenizer(tmp_path / "checkpoint", SIZES["vocab_size"])
    model = tinychat.load(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32"), kv="f32")
    ids, images, _tiles = show(model.engine, LAYOUTS[layout])
    tokens = torch.tensor([model.engine.images.tokens(ids)])
    kinds = torch.tensor([[int(one >= SIZES["vocab_size"]) for one in ids]])
    merged = config.vision_config.spatial_merge_size
    grids = torch.tensor([[1, merged * rows, merged * columns] for *_, (rows, columns) in images])
    with torch.no_grad():
        positions, _ = theirs.model.get_rope_index(tokens, kinds, image_grid_thw=grids)
        embedded = theirs.model.get_input_embeddings()(tokens)
        parts = [np.split(rows, 1 + model.engine.config.deepstack_layers, axis=1) for _, rows, _ in images]
        first, *others = (torch.tensor(np.concatenate(part)) for part in zip(*parts))
        embedded[kinds == 1] = first
        deep = {"visual_pos_masks": kinds == 1, "deepstack_visual_embeds": others} if others else {}
        states = theirs.model.language_model(inputs_embeds=embedded, position_ids=positions, **deep).last_hidden_state
        expected = theirs.lm_head(states)[0].numpy()
    sequence, found = new_sequence(model.engine), []
    for stop in (5, 11, len(ids) - 6, *range(len(ids) - 5, len(ids) + 1)):
        start = len(sequence.ids)
        found.append(sequence.step(ids[start:stop], len(ids), outputs=stop - start))
    assert np.abs(np.concatenate(found) - expected).max() < 1e-3 * expected.std()
