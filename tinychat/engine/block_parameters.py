"""The parameters of layers that read mixtures of blocks: see `models.block_mixtures`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinychat.engine.block_parts import (
    Convolutions,
    MessageGate,
    MixtureAttention,
    MixtureEnd,
    MixtureMixer,
    MixtureMlp,
    MixtureOutput,
    NoTaps,
)
from tinychat.engine.dims import LOG2_E, NO_WINDOW
from tinychat.engine.folder_tensors import Tensors
from tinychat.engine.mlp_parameters import per_layer
from tinychat.kernels.variants import QueryClips
from tinychat.kernels.weights import Looped
from tinychat.models.block_mixtures import READERS, TAPS, BlockMixtures, Visit
from tinychat.models.config import ModelConfig


def mixture_output(net: BlockMixtures, tensors: Tensors) -> MixtureOutput:
    """Return the mixture that the last norm reads."""
    return MixtureOutput(tensors.vector("output_query"), net.visits()[-1].mlp)


def mixture_layers(
    config: ModelConfig, net: BlockMixtures, tensors: Tensors, experts: Any
) -> tuple[MixtureMixer, MixtureMlp, MixtureEnd]:
    """Return attention, experts and ends of all runs of layers; experts : `ExpertMlp`, stacked over the layers."""
    runs, L = np.array(config.layer_runs, np.int64), net.layer_count
    visit = _stacked(net.visits())
    states = Convolutions._make(np.arange(len(runs)) * net.layer_floats + start for start in net.convolutions)
    windows = np.array([window or NO_WINDOW for window in config.sliding_windows], np.int64)
    bounds = net.clip, net.relative_clip, config.attention_scale * LOG2_E
    clips = QueryClips._make(
        [
            *map(tensors.vectors, ("query_scales", "relative_scales")),
            *(np.full(L, bound, np.float32) for bound in bounds),
            np.isin(range(L), net.whole),
        ]
    )
    of_query, of_key, of_value, of_mlp = (_gate(net, tensors, visit, reader) for reader in READERS)
    query_proj, key_proj, value_proj = (Looped(runs, tensors.weight(f"{part}_proj")) for part in READERS[:3])
    mixer = MixtureMixer(
        visit,
        states,
        Looped(runs, per_layer(L, net.windowed, _windowed(net, tensors), _whole(net, tensors))),
        of_query,
        of_key,
        of_value,
        query_proj,
        key_proj,
        value_proj,
        Looped(runs, clips),
        windows[runs],
        Looped(runs, tensors.weight("o_proj")),
        Looped(runs, tensors.by_tap("attention_taps", net.value_dim)),
    )
    mlp = MixtureMlp(visit, Looped(runs, tensors.vectors("mlp_query")), of_mlp, Looped(runs, experts))
    return mixer, mlp, MixtureEnd(visit, states, Looped(runs, tensors.by_tap("mlp_taps", net.value_dim)))


def _stacked(rows: Sequence[Any]) -> Any:
    """Return numbers, or tuples of them, one below the other."""
    if isinstance(rows[0], tuple):
        return type(rows[0])(*map(_stacked, zip(*rows)))
    return np.array(rows, np.int64)


def _gate(net: BlockMixtures, tensors: Tensors, visit: Visit, reader: str) -> MessageGate:
    at: Any = visit.loop_layer
    mixture, message, gates = (tensors.weight(f"{reader}_{part}_proj") for part in ("mixture", "message", "gates"))
    # A layer of the loop has two of its readers' queries in each of the two vectors of all.
    queries = "message_kv_queries" if reader in ("key", "value") else "message_queries"
    place = int(reader in ("value", "mlp"))
    return MessageGate(
        Looped(at, tensors.norm("message_norm", net.looped)),
        Looped(at, mixture),
        Looped(at, message),
        Looped(at, gates),
        Looped(np.zeros_like(at), tensors.once(queries)),
        (2 * at + place) * net.value_dim,
    )


def _queries(layers: tuple[int, ...], vectors: Any) -> Looped:
    """Return queries of layers; the model's first, which reads the embedding alone, has any."""
    return Looped(np.maximum(np.arange(len(layers)) - (layers[0] == 0), 0), vectors)


def _windowed(net: BlockMixtures, tensors: Tensors) -> MixtureAttention:
    """Return attention of the layers with a window."""
    norm = tensors.norm("input_layernorm", net.windowed)
    return MixtureAttention(
        _queries(net.windowed, tensors.vectors("window_query")),
        np.zeros(len(net.windowed), np.int64),
        norm,
        norm,
        norm,
        tensors.by_tap("window_key_taps", net.key_width),
        tensors.by_tap("window_value_taps", net.key_width),
        NoTaps(),
        NoTaps(),
        tensors.by_reach("window_profiles", net.relative_size, LOG2_E),
    )


def _whole(net: BlockMixtures, tensors: Tensors) -> MixtureAttention:
    """Return attention of the layers that see all positions."""
    query_norm, key_norm, value_norm = (tensors.norm(f"{part}_input_norm", net.whole) for part in READERS[:3])
    key_taps, value_taps = map(tensors.weight, TAPS)
    return MixtureAttention(
        _queries(net.whole, tensors.vectors("whole_queries")),
        np.full(len(net.whole), net.value_dim, np.int64),
        query_norm,
        key_norm,
        value_norm,
        tensors.vectors("whole_key_taps"),
        tensors.vectors("whole_value_taps"),
        key_taps,
        value_taps,
        tensors.by_reach("whole_profiles", net.relative_size, LOG2_E),
    )
