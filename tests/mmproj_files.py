"""mmproj files of the checkpoints of towers.py, written as llama.cpp's converter does, by the package `gguf`."""

import gguf
import numpy as np
import towers
from gguf_files import write

IDEFICS3, LFM2 = gguf.VisionProjectorType.IDEFICS3, gguf.VisionProjectorType.LFM2
# As the converter takes them from a checkpoint.
STEMS = {
    IDEFICS3: ("model.vision_model.", "model.connector.modality_projection."),
    LFM2: ("vision_tower.vision_model.", "multi_modal_projector."),
}


def projector_of(seeing):
    return LFM2 if seeing.is_shaped else IDEFICS3


def mmproj_tensors(seeing):
    """Return the tensors of tower and connector, float32, by llama.cpp's names, as the package `gguf` knows them."""
    # Of more layers than there are: parts of connectors have their numbers too.
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 40)
    tower, connector = STEMS[projector_of(seeing)]
    found = {f"{tower}{name}": values for name, values in towers.tower_tensors(seeing).items()}
    found |= {f"{connector}{name}": values for name, values in towers.connector_tensors(seeing).items()}
    renamed = {}
    for name, values in found.items():
        if seeing.is_shaped and "patch_embedding.weight" in name:
            side = seeing.section["patch_size"]
            values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        theirs = known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        renamed[theirs] = np.ascontiguousarray(values.astype(np.float32))
    return renamed


def write_mmproj(seeing, path, kind="F32", change=lambda tensors: None, eps=None, **values):
    """Write the file; return its path.

    kind : the type of matrices, but of patches and positions; change : of the tensors; eps : 1e-5 where the checkpoint
    has none; values : others of the metadata, by their keys with "__" for dots, left out where they are None.
    """
    parts, projector = seeing.section, projector_of(seeing)
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
        "clip.vision.block_count": parts["num_hidden_layers"],
        "clip.vision.attention.head_count": parts["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": parts.get("layer_norm_eps", 1e-5) if eps is None else eps,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.projector.scale_factor": seeing.scale_factor,
    }
    if not seeing.is_shaped:
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
        whole = numbers.ndim == 2 and "position" not in name
        if not whole or numbers.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
            stored = gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
    write(writer)
    return path
