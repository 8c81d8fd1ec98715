"""What an instruction set computes, for another to compare: python tests/instruction_sets.py OUT.npz MODEL_FOLDER ...

The models' logits, and what those kernels give that these models do not use: of unquantized weights and of kept codes,
of other types of cache, norms and activations. A forward pass of each kind would take several times as long to compile.

"generic" has the tiles of "avx2", and its own way to multiply codes, to look them up and to convert float16
(`GENERIC_SOURCES`): it computes only what these are used in.
"""

import functools
import gc
import sys
from pathlib import Path

import engines
import numpy as np
from kernels import (
    test_affine,
    test_altup,
    test_attention,
    test_attention_gates,
    test_block_mixtures,
    test_clipped_heads,
    test_compressed,
    test_experts,
    test_inputs,
    test_latent,
    test_layer_inputs,
    test_linear,
    test_profile_bias,
    test_recurrence,
    test_residual_convolution,
    test_rope_append,
    test_short_convolution,
)
from kernels.cache_inputs import KVS, fill_cache
from kernels.kernel_inputs import decode_floats, on_threads, random_weight

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.attention_gates import gate_heads
from tinychat.kernels.clusters import scatter_logits, spread_logits
from tinychat.kernels.embedding import add_image_rows, embed
from tinychat.kernels.experts import choose_experts, choose_mixed, choose_scored
from tinychat.kernels.inputs import cut_gates, quantize_activated, quantize_normed
from tinychat.kernels.norms import interpolate, norm_heads, rejoin_rows, scale_queries
from tinychat.kernels.scores import cap_rows
from tinychat.kernels.setup import ISA
from tinychat.kernels.sizes import BLOCK
from tinychat.kernels.variants import (
    AlibiBothWays,
    Before,
    BiasedRouter,
    BothWays,
    CappedSwiglu,
    DistanceBias,
    Gelu,
    GeluTanh,
    HeadsNorm,
    Interpolation,
    JointImages,
    LayerNorm,
    LogitRouter,
    MixingRouter,
    NormedActivation,
    QueryScales,
    Relu2,
    RmsNorm,
    RotatedGains,
    SigmoidRouter,
    Silu,
    SoftCap,
    Xielu,
)
from tinychat.kernels.weights import SplitWeight
from tinychat.models.distance_biases import BUCKETS, REACH, by_distance

SEED = 11
# What asks whether the instruction set is "generic". Another file that does so needs a comparison in `of_generic`.
GENERIC_SOURCES = {"codes.py", "dot.py", "memory.py", "setup.py"}
# These models have all kinds of quantized weights.
METHOD, OTHER_KVS = "mixed", [kv for kv in KVS if kv not in ("f16", "int8", engines.KV_OF["mixed"])]


def unquantized():
    """Yield name and result of what only other models run: for one token, a few, and many."""
    rng = np.random.default_rng(SEED)
    N, K, size = 80, 576, 572
    sizes = test_inputs.dims_of(size)
    weight, _ = random_weight(rng, "f32", N, K, bias=True)
    gain, bias = np.pad(rng.uniform(-2, 2, (2, size)).astype(np.float32), ((0, 0), (0, K - size)))
    for T in (1, 6, 17):
        hidden = np.pad(rng.standard_normal((T, size)).astype(np.float32), ((0, 0), (0, K - size)))
        gate_up = 4 * rng.standard_normal((T, 2 * size + 24)).astype(np.float32)
        for norm in (RmsNorm(gain), LayerNorm(gain, bias)):
            x = written(quantize_normed, T, K, hidden, norm, sizes)
            yield f"{norm.__class__.__name__}, {T} tokens", test_linear.apply(weight, x, T, N)
        capped = CappedSwiglu(np.float32(4), np.float32(25))
        for activation in (Silu(), Gelu(), GeluTanh(), capped, Xielu(*np.array([[0.8], [1.3]], np.float32))):
            x = written(quantize_activated, T, K, gate_up, activation, size)
            # How many tokens stand together hangs on the instruction set.
            yield f"{activation.__class__.__name__}, {T} tokens", decode_floats(x, T, K)
        activation = NormedActivation(Relu2(), gain, np.float32(1e-5))
        x = written(quantize_activated, T, K, gate_up, activation, size)
        yield f"normed ReLU, {T} tokens", decode_floats(x, T, K)
        drawn = hidden.copy()
        on_threads(add_image_rows, 1, T, np.arange(T), np.tile(hidden, 2), 1, drawn)
        yield f"rows of images, {T} tokens", drawn
        drawn = hidden.copy()
        on_threads(interpolate, 1, T, hidden[::-1].copy(), Interpolation(RmsNorm(gain), bias), sizes, drawn)
        on_threads(rejoin_rows, 1, T, hidden, RmsNorm(gain), sizes, drawn)
        yield f"drawn and joined, {T} tokens", drawn
        on_threads(cap_rows, 1, T, hidden, SoftCap(np.float32(3)))
        yield f"capped, {T} tokens", hidden


def scored():
    """Yield name and result of attention whose scores depend on distances to both sides."""
    rng, heads = np.random.default_rng(SEED), 3
    q, cache, *_ = test_attention.draw(rng, 70, 17, heads, 1, 20, "f32")
    biases = rng.standard_normal(BUCKETS * heads).astype(np.float32)
    slopes = np.array([0.5, 0.25, 0.125], np.float32)
    for scoring in (DistanceBias(by_distance(biases, REACH + BLOCK)), AlibiBothWays(slopes)):
        window = BothWays(np.int64(test_attention.NO_WINDOW))
        yield scoring.__class__.__name__, test_attention.run("f32", q, cache, 53, window, scoring=scoring)


def kept():
    """Yield name and result of what only models of kept codes run."""
    rng = np.random.default_rng(SEED)
    shape = N, K, *_ = 80, 544, 32, 1
    # Between them all sizes of codes, scales of both types, activations of one part and of two.
    for kind in ("one", "two offset", "two fine", "four", "eight", "mixed fine"):
        weight, _, group = test_affine.random_kind(rng, kind, shape, bias=True)
        for T in (1, 6, 17):
            x = test_affine.prepare(kind, weight, rng.standard_normal((T, K)).astype(np.float32), group)
            yield f"linear of {kind}, {T} tokens", test_affine.apply(weight, x, T, N)
        hidden = np.zeros((N, K), np.float32)
        on_threads(embed, 1, N, weight, np.arange(N), test_affine.SIZES, hidden)
        yield f"embedding of {kind}", hidden


def routed():
    """Yield name and result of what only mixtures of experts run."""
    rng = np.random.default_rng(SEED)
    T, used, count = 40, 3, 7
    D, F = test_experts.D, test_experts.F
    e = test_experts.scratch_for(T, used, count)
    e.logits[:, : count + 1] = rng.standard_normal((T, count + 1))
    for norm_topk in (True, False):
        on_threads(choose_experts, 1, T, test_experts.dims_of(norm_topk, shared_gate=True), e)
        yield f"choices, normed: {norm_topk}", e.weights.copy()
    on_threads(choose_mixed, 1, T, MixingRouter(np.full(1, 0.3, np.float32)), e)
    yield "choices by near logits", e.weights.copy()
    on_threads(choose_experts, 1, T, test_experts.dims_of(False, shared_gate=True), e)
    logits = np.tile(rng.standard_normal((T, 16)).astype(np.float32), 2)
    for router in (SigmoidRouter, LogitRouter, BiasedRouter):
        scored, routing = e._replace(logits=logits.copy()), router(np.linspace(0, 1, count, dtype=np.float32))
        on_threads(choose_scored, 1, T, routing, test_experts.dims_of(True), scored)
        yield f"choices of {router.__name__}", scored.weights.copy()
    e.slots[:] = np.arange(T * used).reshape(T, used)
    # Of the other rows there are as many as a tile has tokens.
    e.gate_up[: T * used] = rng.standard_normal((T * used, e.gate_up.shape[1]))
    logits = np.zeros((T, 80), np.float32)
    on_threads(scatter_logits, 1, T, rng.permutation(10 * count).astype(np.float32), e, logits)
    yield "logits of clusters", logits
    on_threads(spread_logits, 1, T, rng.permutation(10 * count).astype(np.float32), logits.copy(), logits)
    yield "logits of frequent tokens", logits
    hidden = test_inputs.padded_rows(rng.standard_normal((T, D)).astype(np.float32), D)
    chosen = test_experts.draw_choices(rng, T, used, count)
    for method in ("f32", "int4"):
        weights = [test_experts.experts_of(method, rng, count, N, K)[0] for N, K in ((2 * F, D), (D, F))]
        shares = e.weights[:, :used].copy()
        yield f"mixture of {method}", test_experts.run_mixture(1, T, hidden, chosen, shares, *weights, method)


def written(stage, T, K, *arguments):
    return test_inputs.write(stage, "f32", T, K, 32, *arguments)


def cached(kv):
    """Yield name and result of what reads and writes a cache: near its beginning and past a border of chunks."""
    rng = np.random.default_rng(SEED)
    small = 12 if kv == "int8" else 6
    for (H, G, d), start, T in [
        ((9, 3, 24), 530, 1),
        ((4, 2, 40), 500, 30),
        ((8, 1, 80), 3, 200),
        ((3, 3, small), 64, 6),
    ]:
        place = f"{T} tokens at {start}, {H} heads of {d}"
        qkv, gains = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32), rng.uniform(-2, 2, (2, d))
        queries, cache = test_rope_append.run(kv, qkv, H, G, d, start, *gains.astype(np.float32))
        yield f"queries, {place}", queries
        yield from ((f"{name}, {place}", array) for name, array in cache.buffers._asdict().items())
        stored, _, _ = fill_cache(kv, *rng.standard_normal((2, start + T, G, d)).astype(np.float32))
        yield f"attention, {place}", test_attention.run(kv, queries, stored, start)
        both_ways = BothWays(np.int64(20))
        yield f"attention both ways, {place}", test_attention.run(kv, queries, stored, start, both_ways)
        joint, ends = JointImages(np.int64(20)), test_attention.ends_of(start, T, [(start + T // 2, start + T)])
        yield f"attention with an image, {place}", test_attention.run(kv, queries, stored, start, joint, ends=ends)
        if kv == "bf16":
            yield f"attention before, {place}", test_attention.run(kv, queries, stored, start, Before(np.int64(20)))
            scoring = test_profile_bias.Scores(rng, T, H, 5, 90).scoring()
            yield f"attention by profiles, {place}", test_attention.run(kv, queries, stored, start, scoring=scoring)


def convolved():
    """Return the result of a short convolution."""
    bcx, taps = test_short_convolution.draw(np.random.default_rng(SEED), 80, 3)
    return test_short_convolution.run(test_short_convolution.new_cache("bf16", 2, 80), bcx, taps, 0)


def of_mixtures():
    """Yield name and result of what only layers that read mixtures of blocks run."""
    yield "slots and messages", test_block_mixtures.results(range(40), 1)
    for by_token in (False, True):
        inputs = test_residual_convolution.Inputs(np.random.default_rng(SEED), 80, 4, 2, 48, by_token)
        yield f"convolution, by token: {by_token}", inputs.run([(0, 80, None, inputs.new_state(), None)])
    yield "clipped queries", test_clipped_heads.queries_of(np.random.default_rng(SEED), 17, 4, 48, 5)
    k, v = np.random.default_rng(SEED).standard_normal((2, 17, 2 * 48)).astype(np.float32)
    (pages,) = test_clipped_heads.append("bf16", k, v, [9], [17], 2, 48)
    yield from ((f"{name}, clipped", array) for name, array in pages.buffers._asdict().items())


def of_latents():
    """Yield name and result of the linears of heads, for one token, a few, and many."""
    for T in (1, 6, 17):
        yield f"queries, {T} tokens", test_latent.queries_of("int4", T)[-1]
        yield f"values, {T} tokens", test_latent.values_of("f32", T)[-1]


def of_layers():
    """Yield name and result of what only layers with inputs of their own run."""
    for method, size, T in (("int4", 40, 9), ("f32", 24, 1), (None, 40, 3)):
        inputs, *_ = test_layer_inputs.run_inputs(method, size, T, 1, np.random.default_rng(SEED))
        yield f"{T} inputs of layers, {method}", inputs
    yield "four streams", test_altup.results(range(7), 1)
    gate_up = np.random.default_rng(SEED).standard_normal((7, 360)).astype(np.float32)
    on_threads(cut_gates, 1, 7, gate_up, np.float32(1.2), 172)
    yield "largest gates", gate_up
    gates, attended = np.split(np.random.default_rng(SEED).standard_normal((7, 150)).astype(np.float32), [50], axis=1)
    for with_softplus in (False, True):
        sizes = test_attention_gates.dims(24)
        on_threads(gate_heads, 1, 7, gates.copy(), np.bool_(with_softplus), sizes, 24, found := attended.copy())
        yield f"gates of heads{', softplus' if with_softplus else ''}", found


def normed_heads():
    """Yield name and result of what norms each head of queries and keys."""
    rng = np.random.default_rng(SEED)
    for T, H, G, d in ((1, 9, 3, 24), (17, 4, 2, 40)):
        qkv = rng.standard_normal((T, (H + 2 * G) * d + 16)).astype(np.float32)
        gains = rng.uniform(-2, 2, (H + G) * d).astype(np.float32)
        kinds = HeadsNorm(gains[: H * d], gains[H * d :]), RotatedGains(gains[:d], gains[d : 2 * d])
        kinds += (QueryScales(gains[: H * d]),)
        for stage, kind in zip((norm_heads, scale_queries, scale_queries), kinds):
            out = qkv.copy()
            on_threads(stage, 1, T, out, kind, ModelDims(0, H, d, 0, 0, np.float32(1e-6)))
            yield f"{kind.__class__.__name__}, {T} tokens", out


def scanned(kind):
    """Return the results of a kind of layer with a state, and the state behind them."""
    inputs = kind(np.random.default_rng(SEED), 80, 64)
    state = inputs.new_state()
    return np.concatenate([inputs.run([(0, 80, None, state, None)]).reshape(-1), state.numbers])


def quantized():
    """Yield name and result of what runs on quantized weights, rows of both kinds in one."""
    rng = np.random.default_rng(SEED)
    (frequent, _), (rest, _) = (random_weight(rng, method, N, 544) for method, N in [("int8", 32), ("int4", 48)])
    weight = SplitWeight(frequent, rest)
    for T in (1, 6, 17):
        x = test_linear.prepare(rest, "int4", rng.standard_normal((T, 544)).astype(np.float32))
        yield f"head, {T} tokens", test_linear.apply_head(weight, x, T, 80, threads=1)
    hidden = np.zeros((80, 544), np.float32)
    on_threads(embed, 1, 80, weight, np.arange(80), test_affine.SIZES, hidden)
    yield "embedding", hidden


@functools.cache
def of_generic():
    """Return what may differ between "generic" and "avx2"."""
    found = {f"quantized: {name}": array for name, array in quantized()}
    found |= {f"kept: {name}": array for name, array in kept()}
    return found | {f"{kv}: {name}": array for kv in ("f16", "int8") for name, array in cached(kv)}


def results(folders):
    """Return all that is compared, arrays by name."""
    found = of_generic() | {folder.name: engines.fresh_logits(folder) for folder in folders}
    found |= {f"f32: {name}": array for name, array in unquantized()}
    found |= {f"scores: {name}": array for name, array in scored()}
    found |= {f"experts: {name}": array for name, array in routed()} | {"short convolution": convolved()}
    found |= dict(of_layers()) | dict(normed_heads()) | dict(of_mixtures())
    found |= {f"latents: {name}": array for name, array in of_latents()}
    compressed = test_compressed.Inputs(np.random.default_rng(SEED), 80, 6, 2, 32)
    found |= {"compressed attention": compressed.run([(0, 80, None, compressed.new_state(), None)])}
    states = test_recurrence
    kinds = states.Inputs, states.ChannelInputs, states.BoundedInputs, states.MambaInputs, states.SelectiveInputs
    found |= {f"states: {kind.__name__}": scanned(kind) for kind in kinds}
    return found | {f"{kv}: {name}": array for kv in OTHER_KVS for name, array in cached(kv)}


if __name__ == "__main__":
    # As in conftest.py.
    gc.set_threshold(50_000, 20, 100)
    np.savez(sys.argv[1], **of_generic() if ISA == "generic" else results(map(Path, sys.argv[2:])))
