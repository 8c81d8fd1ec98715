"""Models that see images, from the pixels to the logits, as transformers runs them."""

import json

import families
import numpy as np
import pytest
import towers
from test_multimodal import GEMMA4, MINISTRAL, MROPE, QWEN3_5, QWEN3_5_MOE, SIZES

import tinychat
from tinychat.images.image import Image
from tinychat.images.preparation import prepare

NAMES = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"]
PLACES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
TILE, PATCH = 24, 4
VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": TILE,
    "patch_size": PATCH,
    "hidden_act": "gelu_pytorch_tanh",
}
PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "size": {"longest_edge": 3 * TILE},
    "max_image_size": {"longest_edge": TILE},
    "resample": 1,
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}"
    "{% endfor %}<end_of_utterance>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


SHAPED_NAMES = ["<image>", "<|image_start|>", "<|img_thumbnail|>", "<|image_end|>", "<end_of_utterance>"]
SHAPED_PLACES = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7)]
# A tile of 3 by 3 tokens; images of more than 32 tokens are split.
SHAPED_PROCESSOR = {
    "image_processor_type": "Lfm2VlImageProcessor",
    "downsample_factor": 2,
    "encoder_patch_size": PATCH,
    "tile_size": TILE,
    "min_tiles": 2,
    "max_tiles": 6,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
}


def write_processor(folder, tokenizer_size, tokens=(*NAMES, *PLACES), processor=PROCESSOR, template=TEMPLATE):
    """Write the tokenizer with the tokens around images behind others, a template, and the processor's files."""
    families.write_tokenizer(folder, tokenizer_size)
    path = folder / "tokenizer.json"
    tokenizer, ids = json.loads(path.read_text()), {}
    taken = max([*tokenizer["model"]["vocab"].values(), *(one["id"] for one in tokenizer.get("added_tokens", []))])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    for number, name in enumerate(tokens, taken + 1):
        tokenizer.setdefault("added_tokens", []).append({"id": number, "content": name, **flags})
        ids[name] = number
    path.write_text(json.dumps(tokenizer))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | {"chat_template": template}))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return ids


def converted(theirs, folder, quant, factor):
    """Make the weights of transformers' model larger; return the model that it is converted to."""
    with pytest.importorskip("torch").no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(factor if parameter.ndim > 1 else 1.5)
    return saved(theirs, folder, quant)


def saved(theirs, folder, quant):
    """Save transformers' model beside its processor; return the model that it is converted to."""
    theirs.save_pretrained(folder)
    return tinychat.load(tinychat.convert(folder, folder.parent / "model", quant=quant, method="plain"), context=512)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("architecture", "model_type"), [("SmolVLM", "smolvlm"), ("Idefics3", "idefics3")])
@pytest.mark.parametrize(("quant", "most"), [("f32", 1e-3), ("int8", 0.2)])
def test_images_are_seen_as_in_transformers(architecture, model_type, quant, most, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    ids = write_processor(folder, SIZES["vocab_size"])
    text = {**SIZES, "model_type": "llama", "vocab_size": max(ids.values()) + 3}
    config = transformers.AutoConfig.for_model(
        model_type, text_config=text, vision_config=VISION, scale_factor=2, image_token_id=ids["<image>"]
    )
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{architecture}ForConditionalGeneration")(config).eval()
    model = converted(theirs, folder, quant, 4)
    rng = np.random.default_rng(3)
    images = [Image(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in ((31, 50), (24, 24))]
    content = [{"type": "image", "image": images[0]}, {"type": "text", "text": "and"}]
    content += [{"type": "image", "image": images[1]}, {"type": "text", "text": "What is it?"}]
    found_ids = model.render_ids([{"role": "user", "content": content}])
    tokens = model.engine.images.tokens(found_ids)
    tiles = [tile for image in images for tile in prepare(image, model._images._encoder.vision.preparation).tiles]
    grid = TILE // PATCH
    pixels = np.stack(tiles).reshape(-1, grid, grid, 3, PATCH, PATCH).transpose(0, 3, 1, 4, 2, 5)
    pixels = torch.tensor(pixels.reshape(1, -1, 3, TILE, TILE))
    assert tokens.count(ids["<image>"]) == len(tiles) * (grid // 2) ** 2 == 9 * (2 * 3 + 1 + 3 * 3 + 1)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([tokens]), pixel_values=pixels).logits[0].numpy()
    found = model.logits(found_ids)
    first = found_ids.index(next(one for one in found_ids if one >= model.vocab_size))
    worst = np.abs(found - expected).max(axis=1) / expected.std()
    assert worst[first:].max() < most, worst
    # The images count: other pixels give other logits.
    with torch.no_grad():
        grey = theirs(input_ids=torch.tensor([tokens]), pixel_values=torch.full_like(pixels, 0.3)).logits[0].numpy()
    assert np.abs(grey - expected)[-1].max() / expected.std() > 3 * most


# Square, wide and tall ones, that are enlarged, kept or shrunk; and ones that are split, with an overview or without.
SIZES_OF_IMAGES = {
    "whole": (True, [(8, 8), (40, 40), (15, 61), (70, 24), (9, 90)]),
    "split": (True, [(60, 90), (24, 24), (95, 33)]),
    "no overview": (False, [(24, 150), (50, 50)]),
}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SIZES_OF_IMAGES)
# With larger weights the gates of convolutions make much of what rounding changes: of text alone, half as much.
@pytest.mark.parametrize(("quant", "factor", "most"), [("f32", 4, 1e-3), ("int8", 1, 0.3)])
def test_images_of_any_shape_are_seen_as_in_transformers(case, quant, factor, most, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    has_overview, sizes = SIZES_OF_IMAGES[case]
    processor = SHAPED_PROCESSOR | {"use_thumbnail": has_overview}
    ids = write_processor(folder, SIZES["vocab_size"], (*SHAPED_NAMES, *SHAPED_PLACES), processor)
    text = {**SIZES, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    vision = {key: value for key, value in VISION.items() if key != "image_size"}
    config = transformers.AutoConfig.for_model(
        "lfm2_vl",
        text_config={**text, "vocab_size": max(ids.values()) + 3},
        vision_config={**vision, "model_type": "siglip2_vision_model", "num_patches": 25, "vision_use_head": False},
        projector_hidden_size=100,
        image_token_id=ids["<image>"],
    )
    torch.manual_seed(1)
    theirs = transformers.Lfm2VlForConditionalGeneration(config).eval()
    model = converted(theirs, folder, quant, factor)
    rng = np.random.default_rng(3)
    images = [Image(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in sizes]
    content = [
        part for image in images for part in ({"type": "image", "image": image}, {"type": "text", "text": "and"})
    ]
    found_ids = model.render_ids([{"role": "user", "content": content}])
    tokens = model.engine.images.tokens(found_ids)
    prepared = [prepare(image, model._images._encoder.vision.preparation) for image in images]
    tiles = [tile for each in prepared for tile in each.tiles]
    grids = [grid for each in prepared for grid in each.plan.grids]
    assert (len(tiles) == len(images)) == (case == "whole")
    assert tokens.count(ids["<image>"]) == sum(rows * columns // 4 for rows, columns in grids)
    pixels = np.zeros((len(tiles), max(map(len, tiles)), 3 * PATCH**2), np.float32)
    for row, tile in zip(pixels, tiles):
        row[: len(tile)] = tile
    seen = {
        "spatial_shapes": torch.tensor(grids),
        "pixel_attention_mask": torch.tensor([[i < len(tile) for i in range(pixels.shape[1])] for tile in tiles]),
    }
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([tokens]), pixel_values=torch.from_numpy(pixels), **seen).logits[0]
        grey = theirs(input_ids=torch.tensor([tokens]), pixel_values=torch.full(pixels.shape, 0.3), **seen).logits[0]
    found = model.logits(found_ids)
    first = found_ids.index(next(one for one in found_ids if one >= model.vocab_size))
    worst = np.abs(found - expected.numpy()).max(axis=1) / float(expected.std())
    assert worst[first:].max() < most, worst
    # The images count: other pixels give other logits.
    assert float((grey - expected)[-1].abs().max() / expected.std()) > 3 * most


QWEN_TEMPLATE = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
QWEN_NAMES = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<end_of_utterance>"]
# 4 to 36 tokens of 8 by 8 pixels.
QWEN_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": PATCH,
    "merge_size": 2,
    "size": {"shortest_edge": 4 * 64, "longest_edge": 36 * 64},
}
QWEN_VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "depth": 3,
    "num_heads": 3,
    "patch_size": PATCH,
    "num_position_embeddings": 25,
    "out_hidden_size": SIZES["hidden_size"],
}
QWENS = {
    "qwen3_5": ("Qwen3_5", QWEN3_5, {}),
    "qwen3_5_moe": ("Qwen3_5Moe", QWEN3_5_MOE, {}),
    "qwen3_vl": ("Qwen3VL", {"rope_parameters": MROPE}, {"deepstack_visual_indexes": [0, 2]}),
}
SOFT_NAMES = [
    "<start_of_image>",
    "<image_soft_token>",
    "<end_of_image>",
    "<end_of_utterance>",
    "\n\n",
    "\n\n\n",
    "\n\n\n\n",
]
SOFT_PROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor",
    "processor_class": "Gemma3Processor",
    "size": {"height": TILE, "width": TILE},
    "image_seq_length": 9,
    "do_pan_and_scan": None,
}
SOFT_TEMPLATE = TEMPLATE.replace("<image>", "<start_of_image>").replace("role }}:", "role }}\n")


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", QWENS)
@pytest.mark.parametrize(("quant", "factor", "most"), [("f32", 4, 2e-3), ("int8", 1, 0.3)])
def test_images_are_seen_by_qwen_as_in_transformers(model_type, quant, factor, most, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    ids = write_processor(folder, SIZES["vocab_size"], QWEN_NAMES, QWEN_PROCESSOR, QWEN_TEMPLATE)
    architecture, text, vision = QWENS[model_type]
    config = transformers.AutoConfig.for_model(
        model_type,
        text_config={**SIZES, **text, "vocab_size": max(ids.values()) + 3},
        vision_config={**QWEN_VISION, **vision},
        image_token_id=ids["<|image_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{architecture}ForConditionalGeneration")(config).eval()
    model = converted(theirs, folder, quant, factor)
    rng = np.random.default_rng(3)
    images = [Image(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in ((31, 50), (70, 24), (9, 400))]
    content = [
        part for each in images for part in ({"type": "image", "image": each}, {"type": "text", "text": "and then"})
    ]
    found_ids = model.render_ids([{"role": "user", "content": content}])
    tokens = model.engine.images.tokens(found_ids)
    prepared = [prepare(each, model._images._encoder.vision.preparation) for each in images]
    grids = [grid for each in prepared for grid in each.plan.grids]
    tiles = [tile for each in prepared for tile in each.tiles]
    of_images = [token == ids["<|image_pad|>"] for token in tokens]
    assert len(tiles) == 3 and sum(of_images) == sum(rows * columns // 4 for rows, columns in grids)
    pixels = np.concatenate([towers.as_frames(tile, grid, 2) for tile, grid in zip(tiles, grids)])
    seen = {
        "input_ids": torch.tensor([tokens]),
        "image_grid_thw": torch.tensor([[1, *grid] for grid in grids]),
        "mm_token_type_ids": torch.tensor([of_images]).int(),
    }
    with torch.no_grad():
        expected = theirs(pixel_values=torch.from_numpy(pixels), **seen).logits[0]
        grey = theirs(pixel_values=torch.full(pixels.shape, 0.3), **seen).logits[0]
    found = model.logits(found_ids)
    worst = np.abs(found - expected.numpy()).max(axis=1) / float(expected.std())
    assert worst.max() < most, worst
    # The images count: other pixels give other logits.
    assert float((grey - expected)[-1].abs().max() / expected.std()) > 3 * most


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
# Windows within an image, and beyond.
@pytest.mark.parametrize("window", [5, 30])
# With larger weights little is left of numbers in eight bits, of text alone, too.
@pytest.mark.parametrize(("quant", "factor", "most"), [("f32", 4, 1e-3), ("int8", 1, 0.3)])
def test_images_are_seen_as_a_whole_as_in_transformers(window, quant, factor, most, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    ids = write_processor(folder, SIZES["vocab_size"], SOFT_NAMES, SOFT_PROCESSOR, SOFT_TEMPLATE)
    text = {**SIZES, "sliding_window": window, "layer_types": ["sliding_attention", "full_attention"]}
    config = transformers.Gemma3Config(
        text_config={**text, "vocab_size": max(ids.values()) + 3, "query_pre_attn_scalar": 24},
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=9,
        image_token_index=ids["<image_soft_token>"],
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
    )
    torch.manual_seed(1)
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim < 2 and "vision" not in name:
                parameter.uniform_(-0.5, 0.5)
            elif "mm_input" in name:
                parameter.normal_()
            else:
                parameter.mul_(factor if parameter.ndim > 1 else 1.5)
    model = saved(theirs, folder, quant)
    rng = np.random.default_rng(3)
    pixels = [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in ((31, 50), (24, 24), (90, 13))]
    seen = [{"type": "image", "image": Image(each)} for each in pixels]
    messages = [
        {"role": "user", "content": [seen[0], {"type": "text", "text": "and"}, *seen[1:]]},
        {"role": "assistant", "content": "Why?"},
        {"role": "user", "content": "What is it?"},
    ]
    found_ids = model.render_ids(messages)
    tokens = model.engine.images.tokens(found_ids)
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, extra_special_tokens=names)
    pil = transformers.models.gemma3.image_processing_pil_gemma3.Gemma3ImageProcessorPil
    processor = transformers.Gemma3Processor(pil.from_pretrained(folder), tokenizer, image_seq_length=9)
    images = [[pillow.fromarray(each) for each in pixels]]
    given = processor(text=model.render(messages), images=images, return_tensors="pt")
    assert given.input_ids[0].tolist() == tokens and tokens.count(ids["<image_soft_token>"]) == 27
    assert ids["\n\n\n"] in tokens and ids["\n\n\n\n"] in tokens
    preparation = model._images._encoder.vision.preparation
    tiles = np.stack([tile for one in seen for tile in prepare(one["image"], preparation).tiles])
    grid = TILE // PATCH
    ours = tiles.reshape(3, grid, grid, 3, PATCH, PATCH).transpose(0, 3, 1, 4, 2, 5).reshape(3, 3, TILE, TILE)
    # Versions of Pillow differ in the order of resizing.
    assert np.abs(ours - given.pixel_values.numpy()).max() < 0.01
    given["pixel_values"] = torch.from_numpy(ours)
    with torch.no_grad():
        expected = theirs(**{key: value for key, value in given.items() if key != "num_crops"}).logits[0].numpy()
        causal = theirs(input_ids=given.input_ids, pixel_values=given.pixel_values).logits[0].numpy()
    found = model.logits(found_ids)
    worst = np.abs(found - expected).max(axis=1) / expected.std()
    assert worst[8:].max() < most, worst
    # That images are seen as a whole counts.
    assert quant != "f32" or np.abs(causal - expected)[-1].max() / expected.std() > 10 * most


GEMMA4_NAMES = ["<|image|>", "<|image>", "<image|>", "<end_of_utterance>"]
# Up to 70 tokens of 12 by 12 pixels.
GEMMA4_PROCESSOR = {
    "image_processor_type": "Gemma4ImageProcessor",
    "patch_size": PATCH,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 70,
}
GEMMA4_TOWER = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "patch_size": PATCH,
    "position_embedding_size": 300,
}
# Of the small models, of the large ones, and of both.
GEMMA4S = {
    "clipped": (GEMMA4 | {"pad_token_id": 3}, {"use_clipped_linears": True}),
    "standard": (GEMMA4 | {"hidden_size_per_layer_input": 0}, {"standardize": True}),
    "joint": (GEMMA4 | {"use_bidirectional_attention": "vision", "sliding_window": 30}, {"standardize": True}),
    "joint beyond the window": (GEMMA4 | {"use_bidirectional_attention": "vision", "sliding_window": 9}, {}),
}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", GEMMA4S)
def test_images_are_seen_by_gemma4_as_in_transformers(case, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    template = TEMPLATE.replace("<image>", "<|image|>")
    ids = write_processor(folder, SIZES["vocab_size"], GEMMA4_NAMES, GEMMA4_PROCESSOR, template)
    text, vision = GEMMA4S[case]
    vocab_size = max(ids.values()) + 3
    config = transformers.Gemma4Config(
        text_config={**SIZES, **text, "vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size},
        vision_config={**GEMMA4_TOWER, **vision},
        image_token_id=ids["<|image|>"],
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
    )
    torch.manual_seed(1)
    theirs = transformers.Gemma4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim < 2 or "position" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(4)
        for name, numbers in theirs.named_buffers():
            if name.endswith(("_min", "_max")):
                numbers.uniform_(0.2, 1)
                numbers.mul_(-1 if name.endswith("_min") else 1)
            elif "std_" in name:
                numbers.uniform_(0.5, 1.5)
    model = saved(theirs, folder, "f32")
    rng = np.random.default_rng(3)
    pixels = [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in ((31, 50), (70, 24), (9, 1200))]
    images = [Image(each) for each in pixels]
    content = [
        part for each in images for part in ({"type": "image", "image": each}, {"type": "text", "text": "and then"})
    ]
    found_ids = model.render_ids([{"role": "user", "content": content}])
    tokens = model.engine.images.tokens(found_ids)
    pil = transformers.models.gemma4.image_processing_pil_gemma4.Gemma4ImageProcessorPil
    given = pil.from_pretrained(folder)([each.transpose(2, 0, 1) for each in pixels], return_tensors="pt")
    prepared = [prepare(each, model._images._encoder.vision.preparation) for each in images]
    counts = [rows * columns // 9 for each in prepared for rows, columns in each.plan.grids]
    assert counts == given["num_soft_tokens_per_image"].tolist() and 40 < min(counts[:2])
    assert tokens.count(ids["<|image|>"]) == sum(counts) and tokens.count(ids["<|image>"]) == 3
    for row, each in zip(given["pixel_values"].numpy(), prepared):
        (tile,) = each.tiles
        # Versions of Pillow differ in the order of resizing.
        assert np.abs((tile + 1) / 2 - row[: len(tile)]).max() < 0.01
        row[: len(tile)] = (tile + 1) / 2
    seen = {
        "input_ids": torch.tensor([tokens]),
        "image_position_ids": given["image_position_ids"],
        "mm_token_type_ids": torch.tensor([[token == ids["<|image|>"] for token in tokens]]).int(),
    }
    with torch.no_grad():
        expected = theirs(pixel_values=given["pixel_values"], **seen).logits[0]
        grey = theirs(pixel_values=torch.full_like(given["pixel_values"], 0.3), **seen).logits[0]
    found = model.logits(found_ids)
    worst = np.abs(found - expected.numpy()).max(axis=1) / float(expected.std())
    assert worst.max() < 1e-3, worst
    # The images count: other pixels give other logits.
    assert float((grey - expected)[-1].abs().max() / expected.std()) > 0.05


MISTRAL_NAMES = ["[IMG]", "[IMG_BREAK]", "[IMG_END]", "<end_of_utterance>"]
MISTRAL_PROCESSOR = {
    "image_processor_type": "PixtralImageProcessorFast",
    "patch_size": {"height": PATCH, "width": PATCH},
    "size": {"longest_edge": 60},
}
PIXTRAL_VISION = {key: value for key, value in VISION.items() if key != "hidden_act"} | {"model_type": "pixtral"}
ONE_TOKEN = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
# The wrapper, its text model, what differs in it, patches a side of an image token, and what sees.
MISTRALS = {
    "mistral": ("mistral3", {"model_type": "mistral", "rope_theta": 1e5}, {}, 2, {"hidden_act": "silu"}),
    "ministral3": ("mistral3", MINISTRAL, {"vision_feature_layer": 1, "multimodal_projector_bias": True}, 2, {}),
    "pixtral": ("llava", {"model_type": "mistral"}, ONE_TOKEN, 1, {"rope_theta": 500.0, "hidden_act": "silu"}),
}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MISTRALS)
@pytest.mark.parametrize(("quant", "factor", "most"), [("f32", 4, 1e-3), ("int8", 1, 0.3)])
def test_images_are_seen_by_mistral_as_in_transformers(case, quant, factor, most, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    template = TEMPLATE.replace("<image>", "[IMG]")
    ids = write_processor(folder, SIZES["vocab_size"], MISTRAL_NAMES, MISTRAL_PROCESSOR, template)
    model_type, text, more, side, vision = MISTRALS[case]
    values = {"processor_class": "PixtralProcessor", "patch_size": PATCH, "spatial_merge_size": side}
    (folder / "processor_config.json").write_text(json.dumps(values))
    config = transformers.AutoConfig.for_model(
        model_type,
        text_config={**SIZES, **text, "vocab_size": max(ids.values()) + 3},
        vision_config={**PIXTRAL_VISION, **vision},
        image_token_index=ids["[IMG]"],
        **more,
    )
    torch.manual_seed(1)
    kind = {"llava": "Llava", "mistral3": "Mistral3"}[model_type]
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model = converted(theirs, folder, quant, factor)
    rng = np.random.default_rng(3)
    # A small one, a tall one, a very narrow one, and ones with a side that is too long.
    sizes = ((31, 50), (5, 3), (70, 24), (9, 400), (90, 61))
    pixels = [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in sizes]
    images = [Image(each) for each in pixels]
    content = [part for each in images for part in ({"type": "image", "image": each}, {"type": "text", "text": "and"})]
    messages = [{"role": "user", "content": content}]
    found_ids = model.render_ids(messages)
    tokens = model.engine.images.tokens(found_ids)
    pil = transformers.models.pixtral.image_processing_pil_pixtral.PixtralImageProcessorPil
    pictures = [pillow.fromarray(each) for each in pixels]
    step = PATCH * side
    seen = pil.from_pretrained(folder)(pictures, patch_size=step, return_tensors="pt")
    written = model.render(messages).split("[IMG]")
    assert len(written) == 6
    texts = []
    for height, width in seen["image_sizes"].tolist():
        rows = ["[IMG]" * (width // step)] * (height // step)
        texts.append("[IMG_BREAK]".join(rows) + "[IMG_END]")
    whole = "".join(part for pair in zip(written, [*texts, ""], strict=True) for part in pair)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer(whole, add_special_tokens=False).input_ids == tokens
    assert tokens.count(ids["[IMG_BREAK]"]) > 10
    for image, theirs_of_it, size in zip(images, seen["pixel_values"].numpy(), seen["image_sizes"].tolist()):
        prepared = prepare(image, model._images._encoder.vision.preparation)
        (tile,), ((rows, columns),) = prepared.tiles, prepared.plan.grids
        ours = tile.reshape(rows, columns, 3, PATCH, PATCH).transpose(2, 0, 3, 1, 4).reshape(3, *size)
        # Versions of Pillow differ in the order of resizing, which counts where cubics leave the range of a pixel.
        assert np.abs(ours - theirs_of_it[:, : size[0], : size[1]]).mean() < 0.01
        theirs_of_it[:, : size[0], : size[1]] = ours
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([tokens]), **seen).logits[0].numpy()
        seen["pixel_values"] = torch.full_like(seen["pixel_values"], 0.3)
        grey = theirs(input_ids=torch.tensor([tokens]), **seen).logits[0].numpy()
    found = model.logits(found_ids)
    worst = np.abs(found - expected).max(axis=1) / expected.std()
    assert worst.max() < most, worst
    # The images count: other pixels give other logits.
    assert np.abs(grey - expected)[-1].max() / expected.std() > 3 * most
