"""Tiny random checkpoints of models that see images, made from a seed with numpy alone."""

import json
from typing import NamedTuple

import families
import gemma4_towers
import numpy as np

from tinychat.images.connector import joined_squares


class Seeing(NamedTuple):
    """A wrapper around a small text model: its vision tower's section, the squares of its connector, and stored type.

    grid : rows and columns of a tile's patches, where any are possible; projector : keys of such a model's connector.
    """

    name: str
    section: dict
    scale_factor: int
    wrapper: str = "SmolVLMForConditionalGeneration"
    dtype: str = "float32"
    any_grid: tuple = ()
    projector: dict = {}  # noqa: RUF012

    @property
    def is_qwen(self):
        return self.wrapper.startswith("Qwen")

    @property
    def is_gemma4(self):
        return self.wrapper == GEMMA4

    @property
    def stacked(self):
        """The layers of the tower that connectors of their own read."""
        return self.section.get("deepstack_visual_indexes", [])

    @property
    def is_pixtral(self):
        return self.wrapper in (MISTRAL3, LLAVA)

    @property
    def merges(self):
        return self.wrapper == MISTRAL3

    @property
    def run_section(self):
        """The section with as many layers as run: the connector of Pixtral may read those behind an earlier one."""
        layers = self.section.get("num_hidden_layers", 0) + 1 + self.projector.get("vision_feature_layer", -1)
        return self.section | {"num_hidden_layers": layers}

    @property
    def is_shaped(self):
        return self.wrapper == LFM2_VL

    @property
    def averages(self):
        return self.wrapper == GEMMA3

    @property
    def side(self):
        """Patches a side of the square that positions are learned for."""
        if self.any_grid:
            return round(self.section["num_position_embeddings" if self.is_qwen else "num_patches"] ** 0.5)
        return self.section["image_size"] // self.section["patch_size"]

    @property
    def grid(self):
        return self.any_grid or (self.side, self.side)

    @property
    def tokens(self):
        return self.grid[0] * self.grid[1] // self.scale_factor**2

    @property
    def text(self):
        if self.is_qwen:
            name = "qwen3.5" if "3_5" in self.wrapper else "qwen3"
            return families.BY_NAME[f"{name}-moe" if "Moe" in self.wrapper else name]
        if self.is_gemma4:
            return families.BY_NAME["gemma4-large" if self.section.get("standardize") else "gemma4"]
        if self.is_pixtral:
            return families.BY_NAME["ministral3" if self.name == "pixtral" else "mistral"]
        return families.BY_NAME["gemma3" if self.averages else "lfm2" if self.is_shaped else "llama3"]

    @property
    def stems(self):
        """The beginnings of names in the checkpoint: of the text model, the tower and the connector."""
        if self.is_qwen:
            return "model.language_model.", "model.visual.", "model.visual.merger."
        if self.is_gemma4:
            return "model.language_model.", "model.vision_tower.", "model.embed_vision."
        if self.is_shaped:
            # The first published files have the last part of the tower's.
            tower = "model.vision_tower." + ("vision_model." if self.name == "wide" else "")
            return "model.language_model.", tower, "model.multi_modal_projector."
        if self.averages or self.is_pixtral:
            # The first are those of published files.
            tower = "vision_tower.vision_model." if self.name == "means" else "model.vision_tower."
            tower = "vision_tower." if self.name == "pixtral" else tower
            model = "model.language_model." if tower.startswith("model.") else "language_model.model."
            return model, tower, tower.partition("vision")[0] + "multi_modal_projector."
        return "model.text_model.", "model.vision_model.", "model.connector.modality_projection."

    @property
    def columns(self):
        return 3 * self.section["patch_size"] ** 2


NO_HEAD = {"vision_use_head": False}


def section(hidden_size, heads, intermediate_size, layers, patch_size, image_size=0, num_patches=0):
    """Return a ``vision_config``."""
    size = {"num_patches": num_patches} | NO_HEAD if num_patches else {"image_size": image_size}
    return size | {
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "patch_size": patch_size,
        "layer_norm_eps": 1e-6,
    }


def pixtral_section(hidden_size, heads, intermediate_size, layers, patch_size, hidden_act):
    """Return the same of Pixtral."""
    return {
        "model_type": "pixtral",
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "patch_size": patch_size,
        "image_size": 20 * patch_size,
        "hidden_act": hidden_act,
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "axial"},
    }


def qwen_section(hidden_size, heads, intermediate_size, depth, patch_size, side, merged):
    """Return the same of Qwen3.5."""
    return {
        "hidden_size": hidden_size,
        "num_heads": heads,
        "intermediate_size": intermediate_size,
        "depth": depth,
        "patch_size": patch_size,
        "num_position_embeddings": side**2,
        "spatial_merge_size": merged,
        "temporal_patch_size": 2,
        "out_hidden_size": 96,
    }


GEMMA3, GEMMA4 = "Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration"
LFM2_VL = "Lfm2VlForConditionalGeneration"
LLAVA, MISTRAL3 = "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"
QWEN3_5, QWEN3_5_MOE = "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"
QWEN3_VL, QWEN3_VL_MOE = "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"
# The second has heads of the so400m tower, its grid, and pixels behind the last patch; the third the largest grid. The
# next two tiles are larger and smaller than the grid of their positions. The last have means of squares.
SEEING = [
    Seeing("odd", section(88, 4, 172, 3, 6, 36), 3, dtype="bfloat16"),
    Seeing("so400m", section(144, 2, 538, 2, 14, 384), 9, "Idefics3ForConditionalGeneration"),
    Seeing("whole", section(64, 1, 100, 2, 2, 64), 4, dtype="float16"),
    Seeing(
        "wide",
        section(88, 4, 172, 3, 6, num_patches=25),
        2,
        LFM2_VL,
        "bfloat16",
        (6, 10),
        {"projector_hidden_size": 300},
    ),
    Seeing(
        "tall",
        section(144, 2, 538, 2, 3, num_patches=121),
        3,
        LFM2_VL,
        "float32",
        (15, 6),
        {"projector_hidden_size": 172, "projector_bias": False, "projector_use_layernorm": False},
    ),
    # Heads of 44, 72 and 80 channels, of which some vectors and a rest are rotated.
    Seeing("rotated", qwen_section(88, 2, 172, 3, 6, 5, 2), 2, QWEN3_5, "bfloat16", (6, 10)),
    Seeing("line", qwen_section(144, 2, 538, 2, 4, 7, 2), 2, QWEN3_5_MOE, "float32", (2, 34)),
    Seeing("merged", qwen_section(160, 2, 300, 2, 3, 11, 3), 3, QWEN3_5, "float16", (15, 6)),
    # Behind the first layer and behind the last; their connectors in another order.
    Seeing(
        "stacked",
        qwen_section(96, 2, 172, 3, 4, 6, 2) | {"deepstack_visual_indexes": [2, 0]},
        2,
        QWEN3_VL,
        "float32",
        (10, 8),
    ),
    Seeing("means", section(88, 4, 172, 3, 6, 50) | NO_HEAD, 2, GEMMA3, "bfloat16"),
    Seeing("means-so400m", section(144, 2, 538, 2, 14, 180) | NO_HEAD, 3, GEMMA3),
    # As of the small models, and of the large ones.
    Seeing(
        "clipped",
        gemma4_towers.section(88, 4, 2, 20, 172, 3, 6, position_embedding_size=900, use_clipped_linears=True),
        3,
        GEMMA4,
        "bfloat16",
        (6, 15),
    ),
    Seeing(
        "standard",
        gemma4_towers.section(144, 2, 2, 72, 538, 2, 4, position_embedding_size=150, standardize=True),
        2,
        GEMMA4,
        "float32",
        (10, 8),
    ),
    # Heads of 44, 72 and 80 channels; behind the last layer but one.
    Seeing("pixtral", pixtral_section(88, 2, 172, 2, 6, "silu"), 2, MISTRAL3, "bfloat16", (6, 10)),
    Seeing(
        "pixtral-merged",
        pixtral_section(144, 2, 538, 3, 4, "gelu"),
        3,
        MISTRAL3,
        "float32",
        (3, 51),
        {"multimodal_projector_bias": True, "vision_feature_layer": -2},
    ),
    Seeing(
        "pixtral-llava",
        pixtral_section(160, 2, 300, 2, 3, "silu"),
        1,
        LLAVA,
        "float16",
        (11, 5),
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
]
BY_NAME = {each.name: each for each in SEEING}


def tower_shapes(seeing):
    """Return the shapes of a tower's tensors by their names behind the stem."""
    if seeing.is_qwen:
        return qwen_shapes(seeing)
    if seeing.is_gemma4:
        return gemma4_towers.shapes(seeing.section)
    if seeing.is_pixtral:
        return pixtral_shapes(seeing)
    parts = seeing.section
    D, F, p = parts["hidden_size"], parts["intermediate_size"], parts["patch_size"]
    shapes = {
        "embeddings.patch_embedding.weight": (D, 3 * p * p) if seeing.is_shaped else (D, 3, p, p),
        "embeddings.patch_embedding.bias": (D,),
        "embeddings.position_embedding.weight": (seeing.side**2, D),
        "post_layernorm.weight": (D,),
        "post_layernorm.bias": (D,),
    }
    for layer in range(parts["num_hidden_layers"]):
        name = f"encoder.layers.{layer}"
        linears = {f"self_attn.{part}": (D, D) for part in ("q_proj", "k_proj", "v_proj", "out_proj")}
        linears |= {"mlp.fc1": (F, D), "mlp.fc2": (D, F)}
        for part, shape in linears.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[:1]}
        shapes |= {f"{name}.layer_norm{i}.{part}": (D,) for i in (1, 2) for part in ("weight", "bias")}
    return shapes


def pixtral_shapes(seeing):
    """Return the same of Pixtral, which has neither biases nor a norm behind the last layer."""
    parts = seeing.section
    D, F, p = parts["hidden_size"], parts["intermediate_size"], parts["patch_size"]
    shapes = {"patch_conv.weight": (D, 3, p, p), "ln_pre.weight": (D,)}
    for layer in range(parts["num_hidden_layers"]):
        linears = {f"attention.{part}_proj": (D, D) for part in "qkvo"}
        linears |= {f"feed_forward.{part}_proj": (F, D) for part in ("gate", "up")}
        linears |= {"feed_forward.down_proj": (D, F), "attention_norm": (D,), "ffn_norm": (D,)}
        shapes |= {f"transformer.layers.{layer}.{part}.weight": shape for part, shape in linears.items()}
    return shapes


def qwen_shapes(seeing):
    """Return the same of Qwen3.5, whose last norm is in its connector, the merger."""
    parts = seeing.section
    D, F, p = parts["hidden_size"], parts["intermediate_size"], parts["patch_size"]
    shapes = {
        "patch_embed.proj.weight": (D, 3, 2, p, p),
        "patch_embed.proj.bias": (D,),
        "pos_embed.weight": (seeing.side**2, D),
        "merger.norm.weight": (D,),
        "merger.norm.bias": (D,),
    }
    for layer in range(parts["depth"]):
        linears = {"attn.qkv": (3 * D, D), "attn.proj": (D, D), "mlp.linear_fc1": (F, D), "mlp.linear_fc2": (D, F)}
        for part, shape in linears.items():
            shapes |= {f"blocks.{layer}.{part}.weight": shape, f"blocks.{layer}.{part}.bias": shape[:1]}
        shapes |= {f"blocks.{layer}.norm{i}.{part}": (D,) for i in (1, 2) for part in ("weight", "bias")}
    return shapes


def tower_tensors(seeing):
    """Draw the tensors of a tower, as they are stored: scores have a spread of about 2, norms gains of 0.5 to 1.5."""
    if seeing.is_gemma4:
        drawn = gemma4_towers.tensors(seeing.section)
        return {name: values.astype(families.DTYPES[seeing.dtype]) for name, values in drawn.items()}
    random, found = np.random.RandomState(7), {}
    for name, shape in tower_shapes(seeing).items():
        values = random.uniform(-1, 1, shape)
        if ("norm" in name or name.startswith("ln_")) and name.endswith("weight"):
            values = 1 + values / 2
        elif name.endswith("bias"):
            values = values / 3
        elif "pos" not in name:
            # The product of a gate and an input has the errors of both.
            factor = 1 if "gate_proj" in name else 2.5 if ".q" in name or "k_proj" in name else 2
            values *= factor / np.sqrt(np.prod(shape[1:]))
        found[name] = values.astype(families.DTYPES[seeing.dtype])
    return found


def connector_tensors(seeing):
    """Draw the connector's tensors, as they are stored, by their names behind the stem."""
    columns, rows = seeing.section["hidden_size"] * seeing.scale_factor**2, seeing.text.config["hidden_size"]
    random = np.random.RandomState(8)
    if seeing.is_pixtral:
        size, has_bias = (
            seeing.section["hidden_size"],
            seeing.projector.get("multimodal_projector_bias", not seeing.merges),
        )
        shapes = {"linear_1": (rows, size), "linear_2": (rows, rows)}
        shapes |= {"patch_merger.merging_layer": (size, columns)} if seeing.merges else {}
        found = {f"{name}.weight": random.uniform(-2, 2, shape) / np.sqrt(shape[1]) for name, shape in shapes.items()}
        if has_bias:
            found |= {f"linear_{number}.bias": random.uniform(-1, 1, rows) for number in (1, 2)}
        if seeing.merges:
            found["norm.weight"] = random.uniform(0.5, 1.5, size)
    elif seeing.is_qwen:
        sizes = {"linear_fc1": columns, "linear_fc2": rows}
        found = {
            f"{name}.weight": random.uniform(-2, 2, (size, columns)) / np.sqrt(columns) for name, size in sizes.items()
        }
        found |= {f"{name}.bias": random.uniform(-1, 1, size) for name, size in sizes.items()}
    elif seeing.is_gemma4:
        found = {"embedding_projection.weight": random.uniform(-1, 1, (rows, seeing.section["hidden_size"]))}
    elif seeing.averages:
        found = {
            "mm_input_projection_weight": random.uniform(-1, 1, (seeing.section["hidden_size"], rows)),
            "mm_soft_emb_norm.weight": random.uniform(-0.5, 0.5, seeing.section["hidden_size"]),
        }
    elif not seeing.is_shaped:
        found = {"proj.weight": random.uniform(-1, 1, (rows, columns)) / np.sqrt(columns)}
    else:
        inner = seeing.projector["projector_hidden_size"]
        found = {
            "linear_1.weight": random.uniform(-2, 2, (inner, columns)) / np.sqrt(columns),
            "linear_2.weight": random.uniform(-2, 2, (rows, inner)) / np.sqrt(inner),
        }
        if seeing.projector.get("projector_bias", True):
            found |= {"linear_1.bias": random.uniform(-1, 1, inner), "linear_2.bias": random.uniform(-1, 1, rows)}
        if seeing.projector.get("projector_use_layernorm", True):
            found["layer_norm.weight"] = random.uniform(0.5, 1.5, columns)
            found["layer_norm.bias"] = random.uniform(-0.3, 0.3, columns)
    return {name: values.astype(families.DTYPES[seeing.dtype]) for name, values in found.items()}


def stacked_tensors(seeing, number):
    """Draw the tensors of one of the connectors that read the tower's layers, by their names behind its stem."""
    columns, rows = seeing.section["hidden_size"] * seeing.scale_factor**2, seeing.text.config["hidden_size"]
    random = np.random.RandomState(20 + number)
    found = {"norm.weight": random.uniform(0.5, 1.5, columns), "norm.bias": random.uniform(-0.3, 0.3, columns)}
    for name, size in (("linear_fc1", columns), ("linear_fc2", rows)):
        found[f"{name}.weight"] = random.uniform(-2, 2, (size, columns)) / np.sqrt(columns)
        found[f"{name}.bias"] = random.uniform(-1, 1, size)
    return {name: values.astype(families.DTYPES[seeing.dtype]) for name, values in found.items()}


def tile_of(seeing, seed=9):
    """Draw the patches of a tile, float32 [patches, columns]."""
    patches = seeing.grid[0] * seeing.grid[1]
    return np.random.default_rng(seed).uniform(-1, 1, (patches, seeing.columns)).astype(np.float32)


def as_frames(patches, grid, size):
    """Return patches as Qwen's processors give them: square after square, each patch of two frames."""
    order = joined_squares(np.arange(len(patches))[:, None], grid, size).reshape(-1)
    pixels = patches[order].reshape(len(patches), 3, 1, -1)
    return np.repeat(pixels, 2, axis=2).reshape(len(patches), -1)


def write_checkpoint(seeing, folder, variant=None, **changes):
    """Write the checkpoint with a tokenizer; return the folder.

    variant : of the text model, if it is not `Seeing.text`; changes : of ``config.json``.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    variant = variant or seeing.text
    text = {**variant.config, "architectures": None}
    config = {"architectures": [seeing.wrapper], "text_config": text, "vision_config": seeing.section}
    if seeing.is_gemma4:
        config["vision_config"] = {**seeing.section, "pooling_kernel_size": seeing.scale_factor}
    if seeing.is_qwen or seeing.is_pixtral:
        config["tie_word_embeddings"] = text.get("tie_word_embeddings", False)
    if seeing.merges:
        config["spatial_merge_size"] = seeing.scale_factor
    elif not seeing.is_qwen and not seeing.is_gemma4:
        config["downsample_factor" if seeing.is_shaped else "scale_factor"] = seeing.scale_factor
    config |= {"image_token_id": 300, **seeing.projector}
    if seeing.averages:
        config |= {"image_token_id": None, "image_token_index": 300, "mm_tokens_per_image": seeing.tokens}
    if seeing.is_pixtral:
        config |= {"image_token_id": None, "image_token_index": 300}
    config |= changes
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor(seeing)))
    text, tower, connector = seeing.stems
    tensors = {
        name.replace("model.", text, 1) if name.startswith("model.") else name: values
        for name, values in families.stored(variant, families.make_weights(variant)).items()
    }
    tensors |= {f"{tower}{name}": values for name, values in tower_tensors(seeing).items()}
    tensors |= {f"{connector}{name}": values for name, values in connector_tensors(seeing).items()}
    for number in range(len(seeing.stacked)):
        stem = f"{tower}deepstack_merger_list.{number}."
        tensors |= {f"{stem}{name}": values for name, values in stacked_tensors(seeing, number).items()}
    save_file(tensors, folder / "model.safetensors")
    families.write_tokenizer(folder, seeing.text.config["vocab_size"])
    return folder


def processor(seeing):
    """Return a ``preprocessor_config.json``, with the keys that transformers writes."""
    if seeing.is_qwen:
        return qwen_processor(seeing)
    if seeing.is_gemma4:
        return gemma4_towers.processor(seeing.section, seeing.scale_factor)
    if seeing.is_shaped:
        return shaped_processor(seeing)
    if seeing.is_pixtral:
        return pixtral_processor(seeing)
    size = seeing.section["image_size"]
    if seeing.averages:
        return whole_processor(seeing, size)
    return {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Idefics3ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": size},
        "processor_class": "Idefics3Processor",
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 4 * size},
    }


def whole_processor(seeing, size):
    """Return the same of a model that sees an image as one square."""
    return {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": seeing.tokens,
        "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": None,
        "pan_and_scan_min_crop_size": None,
        "pan_and_scan_min_ratio_to_activate": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": size, "width": size},
    }


def shaped_processor(seeing):
    """Return the same of a model with tiles of any grid."""
    step = seeing.section["patch_size"] * seeing.scale_factor
    return {
        "do_image_splitting": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "downsample_factor": seeing.scale_factor,
        "encoder_patch_size": seeing.section["patch_size"],
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Lfm2VlImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_tokens": 32,
        "max_pixels_tolerance": 2.0,
        "max_tiles": 6,
        "min_image_tokens": 4,
        "min_tiles": 2,
        "resample": 2,
        "rescale_factor": 1 / 255,
        "tile_size": 4 * step,
        "use_thumbnail": True,
    }


def pixtral_processor(seeing):
    """Return the same of Pixtral."""
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "PixtralImageProcessorFast",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "patch_size": seeing.section["patch_size"],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 20 * seeing.section["patch_size"]},
    }


def qwen_processor(seeing):
    """Return the same of Qwen3.5."""
    parts, merged = seeing.section, seeing.scale_factor
    step = parts["patch_size"] * merged
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": merged,
        "patch_size": parts["patch_size"],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 32 * step**2, "shortest_edge": 4 * step**2},
        "temporal_patch_size": parts["temporal_patch_size"],
    }
