"""The parameters of MLPs and of mixtures of experts, as a configuration has them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinychat.engine.arguments import (
    EarlyExperts,
    ExpertLatent,
    ExpertMlp,
    MixedMlp,
    Mlp,
    NormedExperts,
    ParallelMlp,
    PlainExperts,
    RouterMlp,
    SparseMlp,
    StreamExperts,
)
from tinychat.engine.clipped_parameters import clipped_mlp
from tinychat.engine.dims import dims_of, stacked_dims
from tinychat.engine.folder_tensors import Tensors
from tinychat.kernels.variants import (
    BiasedRouter,
    CappedSwiglu,
    ChannelScale,
    ClampedSwiglu,
    Gelu,
    GeluTanh,
    Interpolation,
    LimitedSilu,
    LogitRouter,
    MixingRouter,
    NoLatent,
    NoMlp,
    NoNorm,
    NormedActivation,
    NoShared,
    Relu,
    Relu2,
    ResidualScale,
    ScaledRouter,
    Shared,
    SigmoidRouter,
    Silu,
    SoftmaxRouter,
    StreamNorm,
    Ungated,
    Xielu,
)
from tinychat.kernels.weights import PerLayer
from tinychat.models.altup import AltUp
from tinychat.models.config import ModelConfig
from tinychat.models.experts import EXPERTS_SCALE, EXPERTS_SHIFT, ROUTER, ROUTER_IN, ROUTER_INNER, Experts
from tinychat.models.normalized import RATES

ACTIVATIONS: dict[str, Any] = {
    "silu": Silu(),
    "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
    "relu": Relu(),
    "relu2": Relu2(),
}


def per_layer(L: int, layers: Sequence[int], first: Any, second: Any) -> Any:
    """Return the parts of L layers: `first` is stacked over some layers, `second` over the others."""
    others = sorted({*range(L)} - {*layers})
    if not others or not layers:
        return first if layers else second
    indices = np.empty(L, np.int64)
    indices[list(layers)] = np.arange(len(layers))
    indices[others] = -1 - np.arange(len(others))
    return PerLayer(indices, first, second)


def mlps_of(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the MLPs of all layers, of which some or all may have experts."""
    if config.clipped_linears:
        return clipped_mlp(config, tensors, activation_of(config, tensors, range(config.num_hidden_layers)))
    if config.varied is not None and config.varied.wide_mlps:
        narrow = _dense_mlp(config, tensors, config.varied.narrow_mlps)
        wide = _dense_mlp(config, tensors, config.varied.wide_mlps, "wide_", 2)
        return per_layer(config.num_hidden_layers, config.varied.narrow_mlps, narrow, wide)
    if config.experts is None:
        return _mlps_without_experts(config, tensors)
    if config.varied is not None:
        return _mixed_mlps(config, tensors, config.experts)
    return _mlps_with_experts(config, tensors, config.experts)


def _mlps_without_experts(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the MLPs of a model without experts; some layers may have none."""
    L = config.num_hidden_layers
    mlp = _dense_mlp(config, tensors, config.dense_layers)
    if config.altup:
        return _sparse_mlp(config.altup, mlp)
    if config.normed_after:
        is_before = [layer not in config.normed_after for layer in range(L)]
        before = mlp._replace(post_mlp_layernorm=NoNorm())
        return PerLayer(_own_indices(is_before), before, mlp._replace(post_attention_layernorm=NoNorm()))
    return per_layer(L, config.dense_layers, ParallelMlp(mlp) if config.parallel else mlp, NoMlp())


def _mixed_mlps(config: ModelConfig, tensors: Tensors, experts: Experts) -> MixedMlp:
    """Return the MLPs of a model in which each layer has a dense one beside its experts."""
    layers = range(config.num_hidden_layers)
    return MixedMlp(
        _dense_mlp(config, tensors, layers)._replace(post_mlp_layernorm=tensors.norm("mlp_norm", layers)),
        _expert_mlp(config, tensors, experts)._replace(
            post_attention_layernorm=tensors.norm("before_experts", layers),
            routing=ScaledRouter(tensors.vectors("expert_scale")),
        ),
        tensors.norm("router_norm", layers),
        tensors.norm("experts_norm", layers),
        tensors.norm("post_mlp_layernorm", layers),
    )


def _mlps_with_experts(config: ModelConfig, tensors: Tensors, experts: Experts) -> Any:
    """Return the MLPs of a model of which some or all have experts, and others are dense."""
    L = config.num_hidden_layers
    of_experts: Any = _expert_mlp(config, tensors, experts)
    if not config.gated:
        of_experts = PlainExperts(of_experts, _latent(tensors, experts))
    if experts.early:
        of_experts = EarlyExperts(of_experts)
    after = norm_behind(config, tensors, "post_mlp_layernorm", experts.layers)
    if isinstance(after, StreamNorm):
        shift = (
            ChannelScale(tensors.vectors(EXPERTS_SCALE), tensors.vectors(EXPERTS_SHIFT))
            if experts.shifted
            else NoNorm()
        )
        of_experts = StreamExperts(of_experts, shift, after)
    elif not isinstance(after, NoNorm):
        of_experts = NormedExperts(of_experts, after)
    dense = _dense_mlp(config, tensors, config.dense_layers) if config.dense_layers else None
    layers = config.mlp_alone or range(L)
    mlps = per_layer(len(layers), [layers.index(layer) for layer in experts.layers], of_experts, dense)
    return per_layer(L, layers, ParallelMlp(mlps) if config.parallel else mlps, NoMlp())


def _sparse_mlp(altup: AltUp, mlp: Mlp) -> Mlp | SparseMlp | PerLayer:
    """Return MLPs of which some or all have closed gates."""
    sparse = SparseMlp(mlp, np.array([cutoff or 0 for cutoff in altup.cutoffs], np.float32))
    is_closed = [cutoff is not None for cutoff in altup.cutoffs]
    if any(is_closed) and not all(is_closed):
        return PerLayer(_own_indices(is_closed), sparse, mlp)
    return sparse if any(is_closed) else mlp


def _own_indices(is_first: Sequence[bool]) -> np.ndarray:
    """Return `PerLayer.indices` where both kinds have the weights of all layers, of which each reads its own."""
    return np.array([layer if first else ~layer for layer, first in enumerate(is_first)], np.int64)


def _dense_mlp(config: ModelConfig, tensors: Tensors, layers: Sequence[int], kind: str = "", width: int = 1) -> Mlp:
    gates = "gate_" if config.gated else ""
    return Mlp(
        tensors.norm("post_attention_layernorm", layers),
        tensors.weight(f"{kind}{gates}up_proj"),
        activation_of(config, tensors, layers),
        np.full(len(layers), width * config.intermediate_size, np.int64),
        tensors.weight(f"{kind}down_proj"),
        norm_behind(config, tensors, "post_mlp_layernorm", layers),
    )


def _expert_mlp(config: ModelConfig, tensors: Tensors, experts: Experts) -> ExpertMlp:
    gates, activation = "gate_" if config.gated else "", activation_of(config, tensors, experts.layers)
    shared: Shared | NoShared = NoShared()
    if experts.shared_intermediate_size > 0:
        within = _within(experts.shared_limits, activation)
        shared = Shared(tensors.weight(f"shared_{gates}up_proj"), within, tensors.weight("shared_down_proj"))
    return ExpertMlp(
        tensors.norm("post_attention_layernorm", experts.layers),
        _router_mlp(config, tensors, experts) if experts.router_size else tensors.weight(ROUTER),
        _routing(tensors, experts),
        tensors.weight(f"expert_{gates}up_proj"),
        _within(experts.limits, activation),
        tensors.weight("expert_down_proj"),
        shared,
    )


def _within(limits: Sequence[float], activation: Any) -> Any:
    return LimitedSilu(np.array(limits, np.float32)) if limits else activation


def _latent(tensors: Tensors, experts: Experts) -> ExpertLatent | NoLatent:
    if not experts.latent_size:
        return NoLatent()
    return ExpertLatent(tensors.weight("experts_in_proj"), tensors.weight("experts_out_proj"))


def _router_mlp(config: ModelConfig, tensors: Tensors, experts: Experts) -> RouterMlp:
    L = len(experts.layers)
    carry = tensors.vectors("router_carry") if L > 1 else None
    fc1, fc2 = map(tensors.weight, ROUTER_INNER)
    return RouterMlp(
        tensors.weight(ROUTER_IN),
        per_layer(L, range(1, L), carry, NoNorm()),
        tensors.norm("router_mlp_norm", experts.layers),
        fc1,
        fc2,
        tensors.weight(ROUTER),
        Ungated(Gelu()),
        stacked_dims(dims_of(replace(config, hidden_size=experts.router_size)), L),
    )


def _routing(tensors: Tensors, experts: Experts) -> Any:
    if experts.mixing_reach:
        return MixingRouter(np.full((len(experts.layers), 1), experts.mixing_reach, np.float32))
    if not experts.biased and not experts.sigmoid:
        return SoftmaxRouter()
    no_biases = np.zeros((len(experts.layers), experts.choices), np.float32)
    biases = tensors.vectors("router_bias") if experts.biased else no_biases
    if experts.by_logits:
        return LogitRouter(biases)
    return SigmoidRouter(biases) if experts.sigmoid else BiasedRouter(biases)


def norm_behind(config: ModelConfig, tensors: Tensors, name: str, layers: Sequence[int]) -> Any:
    """Return the norms behind attention or MLP of some layers, or the scales or rates there."""
    if config.residual_scales:
        branch = {"post_self_attn_layernorm": "attention", "post_mlp_layernorm": "mlp"}[name]
        ends = f"{branch}_branch", f"{branch}_stream"
        return ResidualScale(
            *(ChannelScale(tensors.vectors(f"{end}_scale"), tensors.vectors(f"{end}_shift")) for end in ends)
        )
    found = tensors.norm(name, layers)
    if config.normalized:
        return Interpolation(found, tensors.vectors(RATES[name]))
    return StreamNorm(found) if config.stream_norms else found


def activation_of(config: ModelConfig, tensors: Tensors, layers: Sequence[int]) -> Any:
    """Return the activation of the MLPs of some layers."""
    found = _activation(config, tensors, layers)
    if config.sub_norms:
        eps = np.full(len(layers), config.rms_norm_eps, np.float32)
        return NormedActivation(found, tensors.vectors("ffn_sub_norm"), eps)
    return found if config.gated else Ungated(found)


def _activation(config: ModelConfig, tensors: Tensors, layers: Sequence[int]) -> Any:
    if config.hidden_act == "xielu":
        return Xielu(tensors.vectors("xielu_positive"), tensors.vectors("xielu_negative"))
    if config.swiglu_caps is not None:
        return CappedSwiglu(*(np.full(len(layers), cap, np.float32) for cap in config.swiglu_caps))
    if config.swiglu_limit is None:
        return ACTIVATIONS[config.hidden_act]
    numbers = (config.swiglu_alpha, config.swiglu_limit)
    return ClampedSwiglu(*(np.full(len(layers), number, np.float32) for number in numbers))
