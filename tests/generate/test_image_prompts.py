"""Prompts with images: ids in place of image tokens, rows when they run, and replies beside them."""

import asyncio
import base64
import gc
import json
import re
import weakref
from types import SimpleNamespace

import engines
import families
import numpy as np
import pytest

from tinychat.engine.sequence import new_sequence
from tinychat.errors import FieldError, ModelFolderError, PromptTooLongError, SettingError, TextError, TinychatError
from tinychat.generate.image_prompts import ImagePrompts
from tinychat.generate.model import Model
from tinychat.generate.prompt_logprobs import prompt_logprobs
from tinychat.images.image import Image
from tinychat.images.preparation import prepare
from tinychat.models.image_preparation import BoundedImage, OneTile, ShapedTiles, SquareTiles, WholeImage
from tinychat.text.guard import GUARD_END, GUARD_START

IMAGE, FAKE, GLOBAL = 500, 501, 502
TILE = 16
PREPARATION = SquareTiles(4, 2, "bilinear", 1 / 255, (0.5,) * 3, (0.5,) * 3, TILE, 2 * TILE, True)
TOKENS = 4  # of a tile


class Encoder:
    """Gives rows that follow from the mean of a tile's patches, and counts them."""

    def __init__(self, width):
        self.vision = SimpleNamespace(image_token_id=IMAGE, preparation=PREPARATION, scale_factor=2, row_size=width)
        self.encoded = []

    def rows(self, tile, grid):
        self.encoded.append(tile)
        assert (tile.shape, grid) == (((TILE // 4) ** 2, 48), (TILE // 4, TILE // 4))
        wave = np.arange(TOKENS * self.vision.row_size).reshape(TOKENS, -1)
        return np.sin(wave * (1 + tile.mean())).astype(np.float32)


class Tokenizer:
    """Knows the tokens around images; other characters are their numbers."""

    special = {"<image>": IMAGE, "<fake_token_around_image>": FAKE, "<global-img>": GLOBAL}  # noqa: RUF012

    def encode_rendered(self, text):
        ids = []
        while text:
            name = next((name for name in self.special if text.startswith(name)), None)
            if name is None and text.startswith("<row"):
                name = text[: text.index(">") + 1]
            ids.append(self.special.get(name, 400 + len(name)) if name else ord(text[0]))
            text = text[len(name or "x") :]
        return ids


def photo(seed, height=20, width=40):
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def filled(prompts, ids, images):
    content = [{"type": "text", "text": "?"}, *({"type": "image", "image": image} for image in images)]
    return prompts.fill(ids, [{"role": "system", "content": "Look."}, {"role": "user", "content": content}])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = engines.convert_variant("smollm2", "int8", tmp_path_factory.mktemp("seeing") / "model")
    path = found / "config.json"
    text = {**json.loads(path.read_text()), "architectures": None}
    raw = {"architectures": ["SmolVLMForConditionalGeneration"], "text_config": text, "image_token_id": IMAGE}
    path.write_text(json.dumps(raw))
    return found


@pytest.fixture
def engine(folder):
    return engines.open_engine(folder)


@pytest.fixture
def prompts(engine):
    return ImagePrompts(
        SimpleNamespace(engine=engine, context_size=256), Tokenizer(), Encoder(engine.config.hidden_size)
    )


def test_an_image_token_becomes_the_tiles_with_their_tokens(prompts, engine):
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    # 20 x 40 becomes 16 x 32: two tiles side by side, then the overview.
    assert engine.images.tokens(ids) == [
        *(1, FAKE, 413, *[IMAGE] * 4, FAKE, 413, *[IMAGE] * 4, 10, 10, FAKE, GLOBAL, *[IMAGE] * 4, FAKE, 2)
    ]
    tiles = engine.images.tiles_of(ids)
    assert [one for one in ids if one >= engine.vocab_size] == [one for tile in tiles for one in tile.ids]
    assert [len(tile.ids) for tile in tiles] == [TOKENS] * 3
    assert prompts._encoder.encoded == []


def test_the_image_token_is_that_of_the_plan(prompts, engine):
    whole = WholeImage(4, 2, "bicubic", 1 / 255, (0.5,) * 3, (0.5,) * 3, 256, 4096)
    prompts._encoder.vision.preparation = whole
    with pytest.raises(TextError, match=rf"the tokenizer does not know <\|image_pad\|> as token {IMAGE}"):
        filled(prompts, [1, IMAGE, 2], [photo(0)])
    prompts._tokenizer.special = {"<|image_pad|>": IMAGE}
    # 20 x 40 becomes 16 x 40.
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    assert engine.images.tokens(ids) == [1, *[IMAGE] * 10, 2]
    with pytest.raises(SettingError, match="an image of 201 x 1 pixels is too narrow"):
        filled(prompts, [IMAGE], [photo(0, 1, 201)])


def test_tokens_may_stand_between_those_of_a_tile(prompts, engine):
    prompts._encoder.vision.preparation = BoundedImage(4, 2, "bicubic", 1 / 255, (0.5,) * 3, (0.5,) * 3, 16, 1 << 16)
    prompts._tokenizer.special = {"[IMG]": IMAGE, "[IMG_BREAK]": 503, "[IMG_END]": 504}
    ids = filled(prompts, [1, IMAGE, 2, IMAGE], [photo(0, 16, 16), photo(1, 16, 16)])
    whole = [IMAGE, IMAGE, 503, IMAGE, IMAGE, 504]
    assert engine.images.tokens(ids) == [1, *whole, 2, *whole]
    first, second = engine.images.tiles_of(ids)
    assert [*first.ids, *second.ids] == [one for one in ids if one >= engine.vocab_size]
    assert (engine.images.until_computed(ids), engine.images.known_prefix(ids)) == (8, len(ids))
    # In any chunks the rows are those of their places.
    together = new_sequence(engine).step(ids)
    sequence = new_sequence(engine)
    for stop in (3, 4, 9, 12):
        sequence.step(ids[len(sequence.ids) : stop])
    assert sequence.step(ids[12:]).tobytes() == together.tobytes()
    assert len(prompts._encoder.encoded) == 2


def test_an_image_has_the_same_ids_again_and_another_one_has_others(prompts):
    first = filled(prompts, [IMAGE], [photo(0)])
    both = filled(prompts, [IMAGE, 9, IMAGE], [photo(1), photo(0)])
    assert both[-len(first) :] == first and not set(both[: len(first)]) & {one for one in first if one > IMAGE + 20}


@pytest.mark.parametrize(("height", "width", "grid"), [(16, 40, (2, 5)), (56, 24, (7, 3))])
def test_the_ids_of_a_tile_lie_in_the_rows_and_columns_of_its_tokens(prompts, engine, height, width, grid):
    pixels = PREPARATION.patch_size, PREPARATION.scale_factor, "bilinear", 1 / 255, (0.5,) * 3, (0.5,) * 3
    prompts._encoder.vision.preparation = ShapedTiles(*pixels, 64, 1, 1, 4, 32, 2.0, False)
    (tile,) = engine.images.tiles_of(filled(prompts, [IMAGE], [photo(0, height, width)]))
    assert tile.grid == grid and len(tile.ids) == grid[0] * grid[1]


def test_an_image_in_low_detail_is_another_one(prompts):
    whole, overview = (filled(prompts, [IMAGE], [photo(0).seen_in(detail)]) for detail in ("high", "low"))
    assert sum(one >= 517 for one in whole) == 3 * TOKENS and sum(one >= 517 for one in overview) == TOKENS
    assert filled(prompts, [IMAGE], [photo(0)]) == whole and not set(whole) & set(overview) - {FAKE, GLOBAL}


def test_rows_are_computed_once_when_they_run(prompts, engine):
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    sequence = new_sequence(engine)
    sequence.step(ids[:5])
    assert len(prompts._encoder.encoded) == 1
    sequence.step(ids[5:])
    assert len(prompts._encoder.encoded) == 3
    new_sequence(engine).step(ids)
    assert len(prompts._encoder.encoded) == 3


@pytest.mark.parametrize(("tokens", "images"), [(0, 1), (1, 2), (2, 1)])
def test_a_template_that_leaves_images_out_is_refused(prompts, tokens, images):
    with pytest.raises(TextError, match=f"writes {tokens} of {images} images"):
        filled(prompts, [1, *[IMAGE] * tokens], [photo(n) for n in range(images)])


@pytest.mark.parametrize("image", ["photo.png", 5, None])
def test_parts_that_are_no_images_are_refused(prompts, image):
    with pytest.raises(FieldError, match=r"messages\[1\]\.content\[1\]\.image must be"):
        filled(prompts, [IMAGE], [image])


def test_images_are_given_in_other_forms(prompts, tmp_path):
    image, path = photo(3), tmp_path / "photo.png"
    pytest.importorskip("PIL.Image").fromarray(image.pixels).save(path)
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    ids = filled(prompts, [IMAGE], [image])
    for form in (image.pixels, path, path.read_bytes(), url):
        assert filled(prompts, [IMAGE], [form]) == ids


def test_images_that_nobody_shows_any_more_go(prompts, engine, monkeypatch):
    monkeypatch.setattr("tinychat.generate.image_prompts._MOST_BYTES", 3 * TILE * TILE * 3)
    first = filled(prompts, [IMAGE], [photo(0)])
    filled(prompts, [IMAGE], [photo(1)])
    gc.collect()
    assert engine.images.known_prefix(first) == 2
    assert filled(prompts, [IMAGE], [photo(0)]) != first


def test_an_image_that_does_not_run_holds_its_tiles_alone(prompts):
    # As one of a request that only counts tokens, or that ends before the first tile.
    image = Image(np.full((4000, 5000, 3), 7, np.uint8), data=bytes(7))
    gone = weakref.ref(image), weakref.ref(image.pixels)
    filled(prompts, [IMAGE], [image])
    del image
    gc.collect()
    assert [one() for one in gone] == [None, None]
    (seen,) = prompts._seen.values()
    assert seen.bytes == len(seen.tiles) * TILE * TILE * 3


def test_images_that_do_not_fit_are_not_resized(prompts, monkeypatch):
    resized = []

    def counted(*given):
        resized.append(given)
        return prepare(*given)

    monkeypatch.setattr("tinychat.generate.image_prompts.prepare", counted)
    most = prompts._driver.context_size // len(filled(prompts, [IMAGE], [photo(0)]))
    assert len(resized) == 1
    ids = filled(prompts, [IMAGE] * (most + 1), [photo(seed) for seed in range(most + 1)])
    assert len(ids) > prompts._driver.context_size and len(resized) == 1
    # The same prompt fits into a larger context, and some of its images into this one.
    filled(prompts, [IMAGE] * 2, [photo(1), photo(2)])
    assert len(resized) == 3


def test_all_images_of_a_prompt_stay_however_much_memory_they_take(prompts, monkeypatch):
    monkeypatch.setattr("tinychat.generate.image_prompts._MOST_BYTES", 1)
    assert len(filled(prompts, [IMAGE] * 7, [photo(n) for n in range(7)])) > 7
    assert len(prompts._seen) == 7
    filled(prompts, [IMAGE], [photo(8)])
    assert len(prompts._seen) == 1


def test_an_image_counts_its_tiles_until_they_have_run(prompts, engine):
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    (seen,) = prompts._seen.values()
    sequence, rows, tile = new_sequence(engine), 4 * engine.config.hidden_size * 3 * TOKENS, TILE * TILE * 3
    assert seen.bytes == 3 * tile
    sequence.step(ids[:5])
    assert seen.bytes == rows // 3 + 2 * tile
    sequence.step(ids[5:])
    assert seen.bytes == rows


def test_texts_do_not_wait_for_an_image_that_is_resized(prompts):
    with prompts._lock, prompts._resizing:
        assert filled(prompts, [1, 2], []) == [1, 2]


def model_of(folder, threads=1):
    """Return a model with an encoder of its own, and its prompts."""
    from tinychat.text.loading import load_tokenizer
    from tinychat.text.template import load_template

    families.write_tokenizer(folder, 517)
    tokenizer = load_tokenizer(folder)
    engine = engines.open_engine(folder, threads)
    model = Model(new_sequence(engine, 256), tokenizer, load_template(folder, tokenizer), frozenset(), folder)
    return model, ImagePrompts(model.driver, Tokenizer(), Encoder(engine.config.hidden_size))


FIELDS = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0}


def written(model, ids, **fields):
    return model.stream(ids, **{**FIELDS, **fields}).to_end().token_ids


def test_replies_depend_on_the_image_and_on_nothing_else(folder):
    model, prompts = model_of(folder)
    text = [1, 30, 31, IMAGE, 40, 41]
    first = filled(prompts, text, [photo(0)])
    alone = written(model, first)
    assert alone != written(model, filled(prompts, text, [photo(1)]))
    # Found in the cache, then with other drafts, penalties that look at the prompt, and in company.
    assert written(model, first) == alone
    model.change_drafts(False)
    assert written(model, first) == alone
    penalized = {"repeat_penalty": 1.2, "frequency_penalty": 0.2, "dry_multiplier": 0.5, "repeat_last_n": 64}
    assert len(written(model, first, **penalized)) == 24
    others = [filled(prompts, text, [photo(2)]), first, [1, 30, 31, 40]]
    many = [[*result.token_ids] for result in model.generate_many(others, **FIELDS)]
    assert many[1] == alone
    other, its_prompts = model_of(folder, 2)
    assert written(other, filled(its_prompts, text, [photo(0)])) == alone


def test_the_next_turn_finds_the_image_in_the_cache(folder):
    model, prompts = model_of(folder)
    ids = filled(prompts, [1, 30, IMAGE, 40], [photo(0)])
    reply = model.stream(ids, **FIELDS).to_end()
    again = [*filled(prompts, [1, 30, IMAGE, 40], [photo(0)]), *reply.token_ids, 50, 51]
    assert model.stream(again, **FIELDS).to_end().summary.reused_tokens >= len(ids)
    assert len(prompts._encoder.encoded) == 3


def test_an_image_that_is_gone_is_told_before_the_reply_begins(folder):
    model, prompts = model_of(folder)
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    prompts._seen.clear()
    gc.collect()
    with pytest.raises(SettingError, match="is of no image, or of one that is gone: render its prompt again"):
        model.stream(ids, **FIELDS)
    with pytest.raises(PromptTooLongError):
        model.stream(ids * 100, **FIELDS)


def test_images_run_in_any_order(folder):
    model, prompts = model_of(folder)
    # The first one is told of, as where tokens are counted, and runs behind the second.
    filled(prompts, [1, IMAGE], [photo(0)])
    written(model, filled(prompts, [1, IMAGE], [photo(1)]))
    found = written(model, filled(prompts, [2, IMAGE, 30, IMAGE, 40], [photo(1), photo(0)]))
    other, others = model_of(folder)
    assert found == written(other, filled(others, [2, IMAGE, 30, IMAGE, 40], [photo(1), photo(0)]))


def test_log_probabilities_of_a_prompt_leave_images_out(folder):
    model, prompts = model_of(folder)
    ids = filled(prompts, [1, 30, IMAGE, 40, 41], [photo(0)])
    found = prompt_logprobs(model, ids, 2)
    tokens = model.engine.images.tokens(ids)
    assert len(found) == len(ids) - 1
    scored = [(one, token_id) for one, token_id in zip(found, tokens[1:]) if not isinstance(one, int)]
    assert all(one.chosen.id == token_id for one, token_id in scored) and len(scored) == len(ids) - 1 - 3 * TOKENS
    assert {one for one in found if isinstance(one, int)} == {IMAGE}


def rows_before_tiles(model, prompts):
    """Return a list that gets how many tokens the driver has run before each tile that is computed."""
    compute, found = prompts._encoder.rows, []

    def rows(tile, grid):
        found.append(model.driver.rows)
        return compute(tile, grid)

    prompts._encoder.rows = rows
    return found


def test_others_get_their_tokens_between_two_tiles(folder):
    model, prompts = model_of(folder)
    found = rows_before_tiles(model, prompts)
    asked = [[1, 30, 31, 40], filled(prompts, [1, IMAGE, 2], [photo(0)])]
    model.generate_many(asked, parallel=2, **FIELDS)
    assert len(set(found)) == 3


def test_a_step_computes_one_tile_of_all_images(folder):
    def asked(prompts):
        return [[1, 30, 31, 40], *(filled(prompts, [1, IMAGE, 2], [photo(seed)]) for seed in range(5))]

    model, prompts = model_of(folder)
    alone = [written(model, ids) for ids in asked(prompts)[:3]]
    model, prompts = model_of(folder)
    found = rows_before_tiles(model, prompts)
    together = [[*result.token_ids] for result in model.generate_many(asked(prompts), parallel=6, **FIELDS)]
    assert together[:3] == alone
    assert len(found) == len(set(found)) == 15


def failing_once(model, prompts, error):
    """Return the ids of a prompt whose second tile fails, once."""
    compute, waiting = prompts._encoder.rows, [None, error]

    def rows(tile, grid):
        if waiting and (found := waiting.pop(0)) is not None:
            raise found
        return compute(tile, grid)

    prompts._encoder.rows = rows
    return filled(prompts, [1, 30, IMAGE, 2], [photo(0)])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModelFolderError("no tower"), "no tower"),
        (MemoryError(), "memory is full"),
        (OSError(5, "Bad"), "seen: .*Bad"),
        (ValueError("odd"), "seen: odd"),
        (KeyError(), "seen: KeyError"),
    ],
)
def test_an_image_that_fails_ends_its_reply_alone_and_may_come_again(folder, error, told):
    model, prompts = model_of(folder)
    text = [1, 30, 31, 40]
    expected = written(model, text)
    ids = failing_once(model, prompts, error)

    async def one(asked):
        return [one async for delta in model.astream(asked, **FIELDS) for one in delta.ids]

    async def both():
        async with asyncio.timeout(60):
            return await asyncio.gather(one(text), one(ids), return_exceptions=True)

    beside, failed = asyncio.run(both())
    assert beside == expected and re.search(told, str(failed)) and isinstance(failed, TinychatError)
    other, others = model_of(folder)
    again = written(other, filled(others, [1, 30, IMAGE, 2], [photo(0)]))
    assert asyncio.run(one(ids)) == again == written(model, ids)
    assert prompts._seen.popitem()[1].tiles[2].is_computed


JOINT = 100
SOFT = OneTile(4, 1, "bilinear", 1 / 255, (0.5,) * 3, (0.5,) * 3, 40)
SOFT_TEXT = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


SPELLED = f"{GUARD_START}<start_of_image>{GUARD_END}"


class SoftTokenizer(Tokenizer):
    special = {"<image_soft_token>": IMAGE, "<start_of_image>": FAKE, "<end_of_image>": GLOBAL}  # noqa: RUF012

    def encode_rendered(self, text):
        return super().encode_rendered(text.replace(SPELLED, "x"))


class JointEncoder(Encoder):
    def __init__(self, width):
        super().__init__(width)
        self.vision.preparation, self.vision.scale_factor = SOFT, 1

    def rows(self, tile, grid):
        self.encoded.append(tile)
        assert (tile.shape, grid) == ((JOINT, 48), (10, 10))
        wave = np.arange(JOINT * self.vision.row_size).reshape(JOINT, -1)
        return 9 * np.sin(wave * (1 + tile.mean())).astype(np.float32)


@pytest.fixture(scope="module")
def joint_folder(tmp_path_factory):
    found = engines.convert_variant("gemma3", "int8", tmp_path_factory.mktemp("joint") / "model")
    path = found / "config.json"
    text = {**json.loads(path.read_text()), "architectures": None, "model_type": "gemma3_text"}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "image_token_index": IMAGE}
    path.write_text(json.dumps(raw | {"mm_tokens_per_image": JOINT}))
    return found


def joint_model(folder, threads=1):
    model, _ = model_of(folder, threads)
    model.resize(512)
    return model, ImagePrompts(model.driver, SoftTokenizer(), JointEncoder(model.engine.config.hidden_size))


def test_what_a_template_writes_for_an_image_is_replaced_before_the_text_is_encoded(joint_folder):
    model, prompts = joint_model(joint_folder)
    messages = [{"role": "user", "content": [{"type": "image", "image": photo(0)}]}]
    ids = prompts.encode(f"a\n<start_of_image>b{SPELLED}", messages)
    text = SoftTokenizer().encode_rendered(f"a\n{SOFT_TEXT}bx")
    assert model.engine.images.tokens(ids) == [
        one for token in text for one in ([IMAGE] * JOINT if token == IMAGE else [token])
    ]
    with pytest.raises(TextError, match="writes 2 of 1 images"):
        prompts.encode("<start_of_image><start_of_image>", messages)


def test_images_that_run_as_a_whole_give_the_same_replies_in_any_company(joint_folder):
    model, prompts = joint_model(joint_folder)
    asked = [
        [1, 30, 31, 40],
        filled(prompts, [1, 30, IMAGE, 2], [photo(0)]),
        filled(prompts, [IMAGE, 40, IMAGE, IMAGE, 9], [photo(1), photo(0), photo(2)]),
        filled(prompts, [1, *[30] * 90, IMAGE], [photo(3)]),
    ]
    alone = [written(model, ids) for ids in asked]
    model.driver.recent.evict()
    together = [[*result.token_ids] for result in model.generate_many(asked, parallel=4, **FIELDS)]
    assert together == alone
    # With a budget that is less than an image, beside replies, on two threads, and nothing cached.
    other, others = joint_model(joint_folder, 2)
    again = [
        [1, 30, 31, 40],
        filled(others, [1, 30, IMAGE, 2], [photo(0)]),
        filled(others, [IMAGE, 40, IMAGE, IMAGE, 9], [photo(1), photo(0), photo(2)]),
        filled(others, [1, *[30] * 90, IMAGE], [photo(3)]),
    ]
    streams = [other.stream(ids, **FIELDS) for ids in again]
    found = [stream.to_end().token_ids for stream in streams]
    assert found == alone
    # Another turn finds the images, and goes on.
    more = [*asked[2], *alone[2], 50, 51]
    reply = model.stream(more, **FIELDS).to_end()
    assert reply.summary.reused_tokens >= len(asked[2])
    assert [*reply.token_ids] == written(other, [*again[2], *alone[2], 50, 51])
    assert len(set(map(tuple, alone))) == 4


def test_a_part_of_an_image_is_no_prompt(joint_folder):
    model, prompts = joint_model(joint_folder)
    ids = filled(prompts, [1, IMAGE, 2], [photo(0)])
    for part in (ids[:50], [*ids[:9], *ids[10:]], ids[5:]):
        with pytest.raises(SettingError, match="a part of an image: give the ids of all of it"):
            model.stream(part, **FIELDS)
