"""UltraBERT: EuroBERT with windows in two of three layers, which have a rotation of their own.

(github.com/huggingface/transformers, models/ultrabert)
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.families.llama import read_eurobert
from tinychat.models.family import Family
from tinychat.models.rope_scaling import FULL, SLIDING, read_sliding_theta, split_rope


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with kinds of layers where published files have a window and a base for each."""
    found = dict(raw)
    windows, bases = found.pop("attention_windows", None), found.get("rope_theta")
    if isinstance(windows, list):
        found["sliding_window"] = next((window for window in windows if window), found.get("sliding_window"))
        if found.get("layer_types") is None:
            found["layer_types"] = [SLIDING if window else FULL for window in windows]
    kinds = found.get("layer_types")
    if isinstance(bases, list) and isinstance(kinds, list):
        del found["rope_theta"]
        if found.get("rope_parameters") is None:
            found["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in zip(map(str, kinds), bases)}
    return split_rope(found)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every third layer have the window, unless the file names them."""
    windows = read_windows(values, config.num_hidden_layers, lambda layer: (layer + 1) % 3 != 0)
    return replace(
        read_eurobert(values, config),
        # The file counts positions beside the query itself.
        sliding_windows=tuple(window and window + 1 for window in windows),
        sliding_rope_theta=read_sliding_theta(values, 1e4),
    )


ULTRABERT = Family(
    "UltrabertModel",
    "ultrabert",
    "UltraBERT",
    "an encoder of Llama's layers with windows: embeddings alone",
    {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "sliding_window": 128, "rope_theta": 2560000.0},
    read,
    prepared=prepared,
    also_written=("UltrabertForMaskedLM",),
    renamed=lambda name: f"model.{name.removeprefix('ultrabert.')}" if name.startswith("ultrabert.") else name,
)
