"""EAGLE-3: a drafter of one layer that reads what a larger model has computed behind some of its layers.

Its input for a position is the embedding of the next token beside ``W (hidden states behind three layers)``, its output
a hidden state that stands there for the position after, and logits of the most frequent tokens. It has keys and values
of its own (Li et al., 2025, https://arxiv.org/abs/2503.01840; github.com/SafeAILab/EAGLE,
github.com/vllm-project/speculators).
"""

from collections.abc import Mapping
from dataclasses import dataclass

# The architecture, and the model type, of its files in the form that `one_form` gives them.
EAGLE3, MODEL_TYPE = "LlamaForCausalLMEagle3", "eagle3"
# The linear of the hidden states, and the norm before it; the linear of queries, keys and values of the embedding.
STATES, STATES_NORM, EMBEDDED = "states_proj", "states_norm", "embedding_qkv_proj"
# Of its output matrix: the ids of its rows, as differences to their numbers.
DRAFT_IDS = "draft_ids"
LAYERS_KEY = "eagle_aux_hidden_state_layer_ids"
# Layers whose hidden states are read, where a file names none.
USUAL_STATES = 3
# Keys that files have in a section of their own.
_SECTION = ("norm_before_fc", "norm_before_residual", "fc_norm", "norm_output", LAYERS_KEY)


@dataclass(frozen=True, slots=True)
class Eagle:
    """How EAGLE-3 reads a larger model's hidden states, and which tokens it writes."""

    layers: tuple[int, ...]  # of the larger model, before which they are read; none: the usual ones
    draft_vocab_size: int
    normed_parts: int = 0  # equal parts that the states are normed in; 0: they are not
    adds_to_normed: bool = False  # the residual stream begins behind the norm of the hidden state
    gives_normed: bool = False  # the hidden state for the next position is that behind the last norm

    @property
    def states(self) -> int:
        """Number of hidden states that are read for a position."""
        return len(self.layers) or USUAL_STATES

    def layers_of(self, count: int) -> tuple[int, ...]:
        """Return the layers of a larger model that has so many."""
        return self.layers or (2, count // 2, count - 3)


def is_eagle(raw: Mapping[str, object]) -> bool:
    """Return whether a parsed `config.json` is of EAGLE-3; most name their architecture as Llama does."""
    return raw.get("speculators_model_type", MODEL_TYPE) == MODEL_TYPE and raw.get("draft_vocab_size") is not None


def one_form(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return a `config.json` of EAGLE-3 with all keys side by side, whoever wrote it; others as they are."""
    if not is_eagle(raw) or raw.get("model_type") == MODEL_TYPE:
        return raw
    layer, section = raw.get("transformer_layer_config"), raw.get("eagle_config")
    found = {**layer, "norm_before_residual": True, **raw} if isinstance(layer, Mapping) else {**raw}
    if isinstance(layer, Mapping) and "model_type" in layer:
        found["model_type"] = layer["model_type"]
    if isinstance(section, Mapping):
        found |= {key: section[key] for key in _SECTION if key in section and raw.get(key) is None}
    return {**found, "architectures": [EAGLE3], "layer_type": found.get("model_type"), "model_type": MODEL_TYPE}
