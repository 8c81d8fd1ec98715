"""The metadata of a GGUF file as values of a ``config.json``.

(github.com/ggml-org/llama.cpp: gguf-py/gguf/constants.py has the keys.)
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinychat.errors import CheckpointError

# Keys of config.json by those of the metadata, which begin with the architecture's name.
KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}
Config = Mapping[str, Any]
MOST = 1e30  # of any number that something is computed from
MAX_LAYERS = 4096
FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers


class GgufValues:
    """Metadata of a GGUF file by keys without the architecture's name, and the shapes of its tensors.

    Lists for more layers than a model has raise `CheckpointError`; `source` is the file, `vector` gives the numbers of
    a tensor of one axis. `config` collects the keys of ``config.json``.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        architecture: str,
        tensors: Mapping[str, tuple[int, ...]],
        source: str,
        vector: Callable[[str], list[float] | None] = lambda name: None,
    ) -> None:
        self._metadata, self._architecture = metadata, architecture
        self.tensors, self.source, self.vector = tensors, source, vector
        self.config: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; of a list with the same value for each layer, that value."""
        value = self.raw(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        return default if value is None else value

    def listed(self, key: str) -> list[int]:
        """Return a list of whole numbers, one for each layer; of one number, the same for all; empty without any."""
        value = self.raw(key)
        if type(value) is int:
            value = [value] * min(MAX_LAYERS, int(self.number("block_count", 0)))
        return value if isinstance(value, list) and all(type(each) is int for each in value) else []

    def raw(self, key: str) -> Any:
        """Return a value, an array as a list."""
        key = f"{self._architecture}.{key}"
        value = self._metadata.get(key)
        if isinstance(value, list | np.ndarray) and len(value) > MAX_LAYERS:
            raise CheckpointError(f"{self.source}: {key} is a list of {len(value)} values: download the file again")
        return value.tolist() if isinstance(value, np.ndarray) else value

    def number(self, key: str, default: float) -> float:
        """Return a positive number; `default` where there is none."""
        return positive(self.get(key), default)

    def has(self, tensor: str) -> bool:
        """Return whether the first layer has a tensor of this name."""
        return f"blk.0.{tensor}" in self.tensors

    def has_any(self, tensor: str) -> bool:
        """Return whether some layer has a tensor of this name."""
        return any(name.startswith("blk.") and name.split(".", 2)[2:] == [tensor] for name in self.tensors)

    def common(self) -> dict[str, Any]:
        """Return the values that all architectures have, by the keys of most families of transformers."""
        found = {key: self.get(theirs) for key, theirs in KEYS.items()}
        if found["rms_norm_eps"] is None:
            found["rms_norm_eps"] = self.get("attention.layer_norm_epsilon")
        size = positive(found["hidden_size"], 0) / positive(found["num_attention_heads"], 1)
        if found["head_dim"] is None and size and size < MOST and size == int(size):
            found["head_dim"] = int(size)
        found["attention_bias"] = self.has("attn_q.bias") or self.has("attn_qkv.bias")
        if self.get("attention.causal") is False:
            found["is_causal"] = False
        found["mlp_bias"] = self.has("ffn_down.bias")
        found["tie_word_embeddings"] = "output.weight" not in self.tensors
        if self.get("expert_count"):
            found |= {"num_experts": self.get("expert_count"), "num_experts_per_tok": self.get("expert_used_count")}
        return present(found)

    def layers(self) -> int:
        """Return the number of layers, among which a file counts blocks of multi-token prediction."""
        return int(self.number("block_count", 0) - self.number("nextn_predict_layers", 0))

    def layer_types(self, interval: int, full_first: bool = False) -> list[str]:
        """Return the type of each layer by the file's pattern, or with a full one at every `interval`.

        full_first : an interval begins with it, and does not end with it.
        """
        layers = min(MAX_LAYERS, int(self.number("block_count", 0)))
        # Not through `get`: a list with the same value for all layers is still a list.
        pattern = self.raw("attention.sliding_window_pattern")
        pattern = interval if pattern is None else pattern
        if type(pattern) is int and pattern > 0:
            pattern = [(layer + (not full_first)) % pattern != 0 for layer in range(layers)]
        found = pattern if isinstance(pattern, list) else []
        return [SLIDING if slides else FULL for slides in found]

    def windows(self, interval: int) -> dict[str, Any]:
        """Return the window, and the layers that have it, if there is one: a null is not the same as no key."""
        window = self.config.get("sliding_window")
        return {"sliding_window": window} | ({"layer_types": self.layer_types(interval)} if window else {})


def present(config: Config) -> dict[str, Any]:
    """Return the keys that have a value."""
    return {key: value for key, value in config.items() if value is not None}


def positive(value: object, default: float) -> float:
    """Return a value that is a positive finite number, else `default`."""
    return value if type(value) in (int, float) and 0 < value < MOST else default  # type: ignore[operator,return-value]
