"""The MLPs of `engine.forward`: with gates and without, beside attention, of experts; and how results are added."""

from tinychat.engine import arguments, patch_parts
from tinychat.engine.expert_stages import (
    add_routed,
    carry_states,
    choose_experts,
    choose_mixed,
    choose_scored,
    clear_rows,
    group_rows,
    linear_routed,
    quantize_routed,
    quantize_routed_activated,
    scale_choices,
)
from tinychat.engine.stages import (
    add_normed,
    add_scaled,
    cut_gates,
    interpolate,
    linear,
    norm_rows,
    quantize_activated,
    quantize_normed,
    quantize_plain,
)
from tinychat.engine.stream_stages import clip_columns
from tinychat.engine.wiring import by_kind, unless
from tinychat.kernels.variants import (
    ClippedActivation,
    ClippedNorm,
    Interpolation,
    MixingRouter,
    NoLatent,
    NoMlp,
    NoNorm,
    NoShared,
    ResidualScale,
    ScaledRouter,
    SoftmaxRouter,
    StreamNorm,
)
from tinychat.kernels.weights import ADD, STORE, PerLayer


@by_kind
def add_branch(team, T, weight, norm, sizes, s):
    """Apply the last linear of attention or MLP, and add what it gives, normed, to the residual stream."""
    linear(team, T, weight, s, s.branch, STORE)
    add_result(team, T, s.branch, norm, sizes, s)


@add_branch.where(norm=NoNorm)
def _(team, T, weight, norm, sizes, s):
    linear(team, T, weight, s, s.hidden, ADD)


@add_branch.where(norm=StreamNorm)
def _(team, T, weight, norm, sizes, s):
    linear(team, T, weight, s, s.hidden, ADD)
    norm_rows(team, T, norm.norm, sizes, s.hidden)


@by_kind
def add_result(team, T, branch, norm, sizes, s):
    """Add what a branch gives, normed, to the residual stream."""
    add_normed(team, T, branch, norm, sizes, s.hidden)


@add_result.where(norm=ResidualScale)
def _(team, T, branch, norm, sizes, s):
    add_scaled(team, T, branch, norm, s.hidden)


@add_result.where(norm=Interpolation)
def _(team, T, branch, norm, sizes, s):
    interpolate(team, T, branch, norm, sizes, s.hidden)


@by_kind
def project_clipped(team, T, rows, norm, w, sizes, s, out):
    """Apply a linear to rows, normed and brought between bounds, and write what it gives, between others."""
    quantize_normed(team, T, rows, ClippedNorm(norm, w.bounds), sizes, w.weight, s)
    linear(team, T, w.weight, s, s.branch, STORE)
    clip_columns(team, T, s.branch, w, out)


@by_kind
def begin_mlp(team, T, mlp, sizes, s):
    """Run an MLP's norm and first linear."""
    quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.up_proj, s)
    linear(team, T, mlp.up_proj, s, s.gate_up, STORE)


@begin_mlp.where(mlp=arguments.ExpertMlp)
def _(team, T, mlp, sizes, s):
    clear_rows(team, T, s.hidden, s.last_hidden)
    run_experts(team, T, mlp, mlp.post_attention_layernorm, s.last_hidden, sizes, s)


@begin_mlp.where(mlp=patch_parts.ClippedMlp)
def _(team, T, mlp, sizes, s):
    project_clipped(team, T, s.hidden, mlp.post_attention_layernorm, mlp.gate, sizes, s, s.gate_up)
    project_clipped(team, T, s.hidden, mlp.post_attention_layernorm, mlp.up, sizes, s, s.gate_up)


@begin_mlp.where(mlp=PerLayer)
def _(team, T, mlp, sizes, s):
    if mlp.indices >= 0:
        begin_mlp(team, T, mlp.first, sizes, s)
    else:
        begin_mlp(team, T, mlp.second, sizes, s)


@by_kind
def end_mlp(team, T, mlp, sizes, s):
    """Run an MLP's activation and last linear, and add the result to the residual stream."""
    quantize_activated(team, T, s.gate_up, mlp.activation, mlp.size, mlp.down_proj, s)
    add_branch(team, T, mlp.down_proj, mlp.post_mlp_layernorm, sizes, s)


@end_mlp.where(mlp=arguments.ExpertMlp)
def _(team, T, mlp, sizes, s):
    add_result(team, T, s.last_hidden, NoNorm(), sizes, s)


@end_mlp.where(mlp=patch_parts.ClippedMlp)
def _(team, T, mlp, sizes, s):
    down = mlp.down
    quantize_activated(team, T, s.gate_up, ClippedActivation(mlp.activation, down.bounds), mlp.size, down.weight, s)
    linear(team, T, down.weight, s, s.branch, STORE)
    clip_columns(team, T, s.branch, down, s.branch)
    add_result(team, T, s.branch, mlp.post_mlp_layernorm, sizes, s)


@end_mlp.where(mlp=PerLayer)
def _(team, T, mlp, sizes, s):
    if mlp.indices >= 0:
        end_mlp(team, T, mlp.first, sizes, s)
    else:
        end_mlp(team, T, mlp.second, sizes, s)


@by_kind
def begin_parallel(team, T, mlp, sizes, s):
    """Begin an MLP beside attention, or choose its experts, before attention changes the residual stream."""


@begin_parallel.where(mlp=arguments.ParallelMlp)
def _(team, T, mlp, sizes, s):
    begin_mlp(team, T, mlp.mlp, sizes, s)


@begin_parallel.where(mlp=arguments.EarlyExperts)
def _(team, T, mlp, sizes, s):
    choose(team, T, mlp.experts, NoNorm(), sizes, s)


@by_kind
def run_mlp(team, T, mlp, sizes, s):
    """Run an MLP, or what remains of it."""
    begin_mlp(team, T, mlp, sizes, s)
    end_mlp(team, T, mlp, sizes, s)


@run_mlp.where(mlp=arguments.ParallelMlp)
def _(team, T, mlp, sizes, s):
    end_mlp(team, T, mlp.mlp, sizes, s)


@run_mlp.where(mlp=NoMlp)
def _(team, T, mlp, sizes, s):
    pass


@run_mlp.where(mlp=arguments.SparseMlp)
def _(team, T, mlp, sizes, s):
    begin_mlp(team, T, mlp.mlp, sizes, s)
    cut_gates(team, T, s.gate_up, mlp.cutoff, mlp.mlp.size)
    end_mlp(team, T, mlp.mlp, sizes, s)


@run_mlp.where(mlp=PerLayer)
def _(team, T, mlp, sizes, s):
    if mlp.indices >= 0:
        run_mlp(team, T, mlp.first, sizes, s)
    else:
        run_mlp(team, T, mlp.second, sizes, s)


@run_mlp.where(mlp=arguments.ExpertMlp)
def _(team, T, mlp, sizes, s):
    run_experts(team, T, mlp, mlp.post_attention_layernorm, s.hidden, sizes, s)


@run_mlp.where(mlp=arguments.EarlyExperts)
def _(team, T, mlp, sizes, s):
    run_chosen(team, T, mlp.experts, s.hidden, sizes, s)


@run_mlp.where(mlp=arguments.PlainExperts)
def _(team, T, mlp, sizes, s):
    experts = mlp.experts
    choose(team, T, experts, experts.post_attention_layernorm, sizes, s)
    read_routed(team, T, experts, mlp.latent, sizes, s)
    run_shared(team, T, experts, experts.shared, s.hidden, ADD, sizes, s)
    run_routed(team, T, experts, sizes, s)
    end_routed(team, T, mlp.latent, s)


@run_mlp.where(mlp=arguments.NormedExperts)
def _(team, T, mlp, sizes, s):
    clear_rows(team, T, s.hidden, s.last_hidden)
    run_experts(team, T, mlp.experts, mlp.experts.post_attention_layernorm, s.last_hidden, sizes, s)
    add_result(team, T, s.last_hidden, mlp.post_mlp_layernorm, sizes, s)


@run_mlp.where(mlp=arguments.StreamExperts)
def _(team, T, mlp, sizes, s):
    run_mlp(team, T, mlp.experts, sizes, s)
    shift_stream(team, T, mlp.shift, sizes, s)
    norm_rows(team, T, mlp.norm.norm, sizes, s.hidden)


@run_mlp.where(mlp=arguments.MixedMlp)
def _(team, T, mlp, sizes, s):
    begin_mlp(team, T, mlp.mlp, sizes, s)
    quantize_activated(team, T, s.gate_up, mlp.mlp.activation, mlp.mlp.size, mlp.mlp.down_proj, s)
    linear(team, T, mlp.mlp.down_proj, s, s.branch, STORE)
    norm_rows(team, T, mlp.mlp.post_mlp_layernorm, sizes, s.branch)
    clear_rows(team, T, s.hidden, s.last_hidden)
    run_experts(team, T, mlp.experts, mlp.router_norm, s.last_hidden, sizes, s)
    add_normed(team, T, s.last_hidden, mlp.experts_norm, sizes, s.branch)
    add_normed(team, T, s.branch, mlp.norm, sizes, s.hidden)


@unless(shift=NoNorm)
def shift_stream(team, T, shift, sizes, s):
    """Add a vector to the residual stream."""
    norm_rows(team, T, shift, sizes, s.hidden)


@by_kind
def run_experts(team, T, mlp, router_norm, out, sizes, s):
    """Add to rows what the experts give that the router chooses."""
    choose(team, T, mlp, router_norm, sizes, s)
    run_chosen(team, T, mlp, out, sizes, s)


def run_chosen(team, T, mlp, out, sizes, s):
    """Add to rows what the experts give that were chosen."""
    run_shared(team, T, mlp, mlp.shared, s.branch, STORE, sizes, s)
    quantize_routed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.up_proj, s.rows, s.experts)
    run_routed(team, T, mlp, sizes, s)
    add_routed(team, T, sizes.shared_intermediate_size > 0, s.branch, out, s.experts)


@by_kind
def run_routed(team, T, mlp, sizes, s):
    """Run the chosen experts on their inputs."""
    e = s.experts
    linear_routed(team, mlp.up_proj, e.gate_up, s.tiles, e)
    quantize_routed_activated(team, T, mlp.activation, sizes.expert_intermediate_size, mlp.down_proj, s.rows, e)
    linear_routed(team, mlp.down_proj, e.down, s.tiles, e)


@by_kind
def choose(team, T, mlp, norm, sizes, s):
    """Choose the experts of each token, and give each choice its slot."""
    e = s.experts
    run_router(team, T, mlp.router, norm, sizes, s)
    route(team, T, mlp.routing, sizes, e)
    group_rows(team, T, e)


@by_kind
def run_router(team, T, router, norm, sizes, s):
    """Compute the router's logits."""
    quantize_normed(team, T, s.hidden, norm, sizes, router, s.experts.routing)
    linear(team, T, router, s.experts.routing, s.experts.logits, STORE)


@run_router.where(router=arguments.RouterMlp)
def _(team, T, router, norm, sizes, s):
    e, R = s.experts, router.sizes.hidden_size
    begin_states(team, T, router.carry, e)
    quantize_normed(team, T, s.hidden, norm, sizes, router.in_proj, s)
    linear(team, T, router.in_proj, s, e.states, ADD)
    quantize_normed(team, T, e.states, router.norm, router.sizes, router.fc1, e.routing)
    linear(team, T, router.fc1, e.routing, e.inner, STORE)
    quantize_activated(team, T, e.inner, router.activation, R, router.fc2, e.routing)
    linear(team, T, router.fc2, e.routing, e.inner, STORE)
    quantize_activated(team, T, e.inner, router.activation, R, router.out_proj, e.routing)
    linear(team, T, router.out_proj, e.routing, e.logits, STORE)


@by_kind
def begin_states(team, T, carry, e):
    """Begin a router's vectors with those of the layer before."""
    carry_states(team, T, carry, e.states)


@begin_states.where(carry=NoNorm)
def _(team, T, carry, e):
    clear_rows(team, T, e.states, e.states)


@begin_states.where(carry=PerLayer)
def _(team, T, carry, e):
    if carry.indices >= 0:
        begin_states(team, T, carry.first, e)
    else:
        begin_states(team, T, carry.second, e)


@by_kind
def route(team, T, routing, sizes, e):
    """Choose the experts of each token, by probabilities and biases."""
    choose_scored(team, T, routing, sizes, e)


@route.where(routing=SoftmaxRouter)
def _(team, T, routing, sizes, e):
    choose_experts(team, T, sizes, e)


@route.where(routing=MixingRouter)
def _(team, T, routing, sizes, e):
    choose_mixed(team, T, routing, e)


@route.where(routing=ScaledRouter)
def _(team, T, routing, sizes, e):
    choose_experts(team, T, sizes, e)
    scale_choices(team, T, routing.scale, e)


@unless(shared=NoShared)
def run_shared(team, T, mlp, shared, out, add, sizes, s):
    """Write, or add, what the expert gives that all tokens pass."""
    quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, shared.up_proj, s)
    linear(team, T, shared.up_proj, s, s.gate_up, STORE)
    quantize_activated(team, T, s.gate_up, shared.activation, sizes.shared_intermediate_size, shared.down_proj, s)
    linear(team, T, shared.down_proj, s, out, add)


@by_kind
def read_routed(team, T, mlp, latent, sizes, s):
    """Write the inputs of chosen experts: a latent of the residual stream, which stays in `s.branch`."""
    quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, latent.in_proj, s)
    linear(team, T, latent.in_proj, s, s.branch, STORE)
    quantize_routed(team, T, s.branch, NoNorm(), sizes, mlp.up_proj, s.rows, s.experts)


@read_routed.where(latent=NoLatent)
def _(team, T, mlp, latent, sizes, s):
    quantize_routed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.up_proj, s.rows, s.experts)


@by_kind
def end_routed(team, T, latent, s):
    """Add what the chosen experts give to the residual stream."""
    clear_rows(team, T, s.branch, s.branch)
    add_routed(team, T, False, s.branch, s.branch, s.experts)
    quantize_plain(team, T, s.branch, latent.out_proj, s)
    linear(team, T, latent.out_proj, s, s.hidden, ADD)


@end_routed.where(latent=NoLatent)
def _(team, T, latent, s):
    add_routed(team, T, False, s.branch, s.hidden, s.experts)
