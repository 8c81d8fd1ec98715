"""Tiny random checkpoints of models that see images, made from a seed with numpy alone."""

import json
from typing import NamedTuple

import families
import numpy as np


class Seeing(NamedTuple):
    """A wrapper around a small Llama: its vision tower's section, the squares of its connector, and stored type."""

    name: str
    section: dict
    scale_factor: int
    wrapper: str = "SmolVLMForConditionalGeneration"
    dtype: str = "float32"

    @property
    def grid(self):
        return self.section["image_size"] // self.section["patch_size"]

    @property
    def columns(self):
        return 3 * self.section["patch_size"] ** 2


def section(hidden_size, heads, intermediate_size, layers, patch_size, image_size):
    """Return a ``vision_config``."""
    return {
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "patch_size": patch_size,
        "image_size": image_size,
        "layer_norm_eps": 1e-6,
    }


# The second has heads of the so400m tower, its grid, and pixels behind the last patch; the third the largest grid.
SEEING = [
    Seeing("odd", section(88, 4, 172, 3, 6, 36), 3, dtype="bfloat16"),
    Seeing("so400m", section(144, 2, 538, 2, 14, 384), 9, "Idefics3ForConditionalGeneration"),
    Seeing("whole", section(64, 1, 100, 2, 2, 64), 4, dtype="float16"),
]
BY_NAME = {each.name: each for each in SEEING}
TEXT = families.BY_NAME["llama3"]


def tower_shapes(seeing):
    """Return the shapes of a tower's tensors by their names behind ``vision_model.``."""
    parts = seeing.section
    D, F, p = parts["hidden_size"], parts["intermediate_size"], parts["patch_size"]
    shapes = {
        "embeddings.patch_embedding.weight": (D, 3, p, p),
        "embeddings.patch_embedding.bias": (D,),
        "embeddings.position_embedding.weight": (seeing.grid**2, D),
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


def tower_tensors(seeing):
    """Draw the tensors of a tower, as they are stored: scores have a spread of about 2, norms gains of 0.5 to 1.5."""
    random, found = np.random.RandomState(7), {}
    for name, shape in tower_shapes(seeing).items():
        values = random.uniform(-1, 1, shape)
        if "norm" in name and name.endswith("weight"):
            values = 1 + values / 2
        elif name.endswith("bias"):
            values = values / 3
        elif "embedding" not in name or len(shape) == 4:
            values *= (2.5 if "q_proj" in name or "k_proj" in name else 2) / np.sqrt(np.prod(shape[1:]))
        found[name] = values.astype(families.DTYPES[seeing.dtype])
    return found


def connector_tensor(seeing):
    """Draw the connector's weight, as it is stored."""
    columns = seeing.section["hidden_size"] * seeing.scale_factor**2
    values = np.random.RandomState(8).uniform(-1, 1, (TEXT.config["hidden_size"], columns)) / np.sqrt(columns)
    return values.astype(families.DTYPES[seeing.dtype])


def tile_of(seeing, seed=9):
    """Draw the patches of a tile, float32 [patches, columns]."""
    return np.random.default_rng(seed).uniform(-1, 1, (seeing.grid**2, seeing.columns)).astype(np.float32)


def write_checkpoint(seeing, folder, **changes):
    """Write the checkpoint with a tokenizer; return the folder. changes : of ``config.json``."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    text = {**TEXT.config, "architectures": None}
    config = {"architectures": [seeing.wrapper], "text_config": text, "vision_config": seeing.section}
    config |= {"image_token_id": 300, "scale_factor": seeing.scale_factor, **changes}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor(seeing)))
    tensors = {
        name.replace("model.", "model.text_model.", 1) if name.startswith("model.") else name: values
        for name, values in families.make_weights(TEXT).items()
    }
    tensors |= {f"model.vision_model.{name}": values for name, values in tower_tensors(seeing).items()}
    tensors["model.connector.modality_projection.proj.weight"] = connector_tensor(seeing)
    save_file(tensors, folder / "model.safetensors")
    families.write_tokenizer(folder, TEXT.config["vocab_size"])
    return folder


def processor(seeing):
    """Return a ``preprocessor_config.json``, with the keys that transformers writes."""
    size = seeing.section["image_size"]
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
