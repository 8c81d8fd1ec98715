"""Layers that differ in the size of their heads, in where their keys and values come from, and in their MLPs."""

from dataclasses import dataclass

LAYER_INPUTS = "layer_inputs"  # the linear of the embeddings of tokens for each layer: a row for each of both


@dataclass(frozen=True, slots=True)
class VariedLayers:
    """The layers of Gemma 4 and EmbeddingGemma 2, which end in a factor of their own, and of Gemma 3n.

    Their values are normed.
    """

    wide: tuple[int, ...]  # the layers whose heads are of another size than `ModelConfig.head_dim`
    wide_head_dim: int
    wide_key_value_heads: int
    keys_as_values: bool  # the values of these layers are their keys before norm and rotation
    sources: tuple[int, ...]  # by layer, the layer whose keys and values it reads: itself, or an earlier one
    wide_mlps: tuple[int, ...]  # the layers whose MLP is twice as wide as `ModelConfig.intermediate_size`
    input_size: int = 0  # of a token's embedding for each layer; 0: there is none
    # How many ids have such embeddings, the others that of id 0; 0: it is a projection of the large embedding alone.
    input_ids: int = 0

    @property
    def narrow(self) -> tuple[int, ...]:
        """The layers whose heads are of the size `ModelConfig.head_dim`."""
        return tuple(layer for layer in range(len(self.sources)) if layer not in self.wide)

    @property
    def narrow_mlps(self) -> tuple[int, ...]:
        """The layers whose MLP is `ModelConfig.intermediate_size` wide."""
        return tuple(layer for layer in range(len(self.sources)) if layer not in self.wide_mlps)

    def owners(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of some layers that have keys and values of their own."""
        return tuple(layer for layer in layers if self.sources[layer] == layer)

    def readers(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of some layers that read the keys and values of others."""
        return tuple(layer for layer in layers if self.sources[layer] != layer)
