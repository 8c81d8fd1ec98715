"""mmproj files of the checkpoints of towers.py, written as llama.cpp's converter does, by the package `gguf`."""

import gguf
import numpy as np
import towers
from gguf_files import write

KINDS = gguf.VisionProjectorType
# As the converter takes them from a checkpoint.
STEMS = {
    KINDS.IDEFICS3: ("model.vision_model.", "model.connector.modality_projection."),
    KINDS.LFM2: ("vision_tower.vision_model.", "multi_modal_projector."),
    KINDS.GEMMA3: ("vision_tower.vision_model.", "multi_modal_projector."),
    KINDS.QWEN3VL: ("visual.", "visual.merger."),
    KINDS.GEMMA4V: ("model.vision_tower.", "model.embed_vision."),
}
# What the converter names itself.
MERGER = {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
STACKED = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def projector_of(seeing):
    if seeing.is_qwen:
        return KINDS.QWEN3VL
    if seeing.is_gemma4:
        return KINDS.GEMMA4V
    return KINDS.LFM2 if seeing.is_shaped else KINDS.GEMMA3 if seeing.averages else KINDS.IDEFICS3


def mmproj_tensors(seeing):
    """Return the tensors of tower and connector, float32, by llama.cpp's names, as the package `gguf` knows them."""
    # Of more layers than there are: parts of connectors have their numbers too.
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 40)
    tower, connector = STEMS[projector_of(seeing)]
    found = {f"{tower}{name}": values for name, values in towers.tower_tensors(seeing).items()}
    found |= {f"{connector}{name}": values for name, values in towers.connector_tensors(seeing).items()}
    for number, layer in enumerate(seeing.stacked):
        for name, values in towers.stacked_tensors(seeing, number).items():
            part, _, ending = name.rpartition(".")
            found[f"v.deepstack.{layer}.{STACKED[part]}.{ending}"] = values
    found = mapped_of_gemma4(found, seeing) if seeing.is_gemma4 else found
    renamed = {}
    for name, values in found.items():
        values = values.astype(np.float32)
        if seeing.is_shaped and "patch_embedding.weight" in name:
            side = seeing.section["patch_size"]
            values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        if "soft_emb_norm" in name:
            values = values + 1
        part, _, ending = name.replace("_weight", ".weight").rpartition(".")
        own = name.startswith("v.deepstack") and part
        theirs = own or MERGER.get(part.removeprefix(tower)) or known.get_name(part)
        frames = {f"{theirs}.{ending}": values} if theirs else {known.get_name(name): values}
        assert None not in frames, name
        if values.ndim == 5:
            frames = {f"{theirs}.weight": values[:, :, 0], f"{theirs}.weight.1": values[:, :, 1]}
        renamed |= {name: np.ascontiguousarray(each) for name, each in frames.items()}
    return renamed


def mapped_of_gemma4(tensors, seeing):
    """Return the tensors of Gemma 4 as the converter names and shapes them before it looks names up."""
    found, side = {}, seeing.section["patch_size"]
    for name, values in tensors.items():
        name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
        if name.endswith("position_embedding_table"):
            name += ".weight"
        if name.endswith("input_proj.weight"):
            values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        found[name] = values.reshape(1) if values.ndim == 0 else values
    return found


def write_mmproj(seeing, path, kind="F32", change=lambda tensors: None, eps=None, **values):
    """Write the file; return its path.

    kind : the type of matrices, but of patches and, unless they are Qwen's, positions; change : of the tensors; eps :
    1e-5 where the checkpoint has none, of Qwen's the text model's; values : others of the metadata, by their keys with
    "__" for dots, left out where they are None.
    """
    parts, projector = seeing.section, projector_of(seeing)
    eps = eps or parts.get("layer_norm_eps") or (1e-6 if seeing.is_gemma4 else 1e-5)
    layers = parts["depth" if seeing.is_qwen else "num_hidden_layers"]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "clip")
    keys = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        "clip.use_gelu": True,
        "clip.vision.projection_dim": seeing.text.config["hidden_size"],
        "clip.vision.image_size": parts.get("image_size", 256),
        "clip.vision.patch_size": parts["patch_size"],
        "clip.vision.embedding_length": parts["hidden_size"],
        "clip.vision.feed_forward_length": parts["intermediate_size"],
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": parts["num_heads" if seeing.is_qwen else "num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": eps,
        "clip.vision.image_mean": [0.0 if seeing.is_gemma4 else 0.5] * 3,
        "clip.vision.image_std": [1.0 if seeing.is_gemma4 else 0.5] * 3,
    }
    if seeing.is_qwen:
        keys["clip.vision.spatial_merge_size"] = parts["spatial_merge_size"]
        keys["clip.vision.is_deepstack_layers"] = [layer in seeing.stacked for layer in range(layers)]
    elif not seeing.is_gemma4 and (not seeing.averages or seeing.scale_factor != 4):
        keys["clip.vision.projector.scale_factor"] = seeing.scale_factor
    if projector == KINDS.IDEFICS3:
        keys["clip.vision.preproc_image_size"] = 4 * parts["image_size"]
    keys |= {key.replace("__", "."): value for key, value in values.items()}
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in keys.items():
        if value is not None:
            add.get(type(value), writer.add_string)(key, value)
    tensors = mmproj_tensors(seeing)
    change(tensors)
    for name, numbers in tensors.items():
        stored = gguf.GGMLQuantizationType[kind]
        # Those of a convolution are float16 in such files alone.
        is_kept = numbers.ndim == 2 or (numbers.ndim == 4 and kind == "F16")
        if projector != KINDS.QWEN3VL:
            is_kept = numbers.ndim == 2 and "position" not in name
        if not is_kept or numbers.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
            stored = gguf.GGMLQuantizationType.F32
        if "input_projection" in name:
            stored = gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
    write(writer)
    return path
