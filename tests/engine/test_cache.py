"""The KV cache: prefixes, rewinding, and rewrites that turn keys to where they now stand."""

import engines
import numpy as np
import pytest
from kernels.cache_inputs import HALF_ULP, kvs, layer, read_keys, read_values
from kernels.kernel_inputs import assert_within

from tinychat.engine.cache import KVCache
from tinychat.errors import SettingError
from tinychat.models.folder import open_model_folder
from tinychat.models.rope import inverse_frequencies


@pytest.fixture(scope="module", params=["qwen3-window", "llama-yarn", "llama3.1"])
def config(request, tmp_path_factory):
    folder = engines.convert_variant(request.param, "int4", tmp_path_factory.mktemp("models") / "model")
    return open_model_folder(folder).config


def keys_of(cache):
    """Return keys [L, G, length, d] as float64."""
    L, d = cache.config.num_hidden_layers, cache.config.head_dim
    return np.stack([read_keys(cache.kv, layer(cache.front, i), d)[:, : cache.length] for i in range(L)])


def values_of(cache):
    """Return values [L, G, length, d padded] as float64."""
    L = cache.config.num_hidden_layers
    return np.stack([read_values(cache.kv, layer(cache.front, i))[:, : cache.length] for i in range(L)])


def filled(config, kv, length, rng, context_size=100):
    """Return a cache of random keys and values for ids 0, 1, 2 ..., rounded to its type from float32."""
    cache = KVCache(config, context_size, "f32")
    for buffer in cache.front[:2]:
        buffer[:] = rng.standard_normal(buffer.shape)
    cache.front.values[..., config.head_dim :] = 0
    cache.append(list(range(length)))
    if kv != "f32":
        cache.resize(context_size, kv)
    return cache


def turned(config, keys, moves):
    """Rotate keys [..., n, d] by ``moves [n]`` positions."""
    angles = np.asarray(moves)[:, None] * inverse_frequencies(config)
    half = keys.shape[-1] // 2
    first, second = keys[..., :half], keys[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@kvs
def test_a_new_cache_is_empty(config, kv):
    cache = KVCache(config, 100, kv)
    assert (cache.length, cache.ids, cache.context_size, cache.kv) == (0, [], 100, kv)
    L, G, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    shared = 2 if kv == "bf16" else 1
    assert cache.front.keys.shape == (L, G, 128 // 16, d // shared, 16), "rounded up to blocks of 64"
    assert cache.front.values.shape == (L, G, 128 // shared, -(-d // 16) * 16)
    size = {"bf16": 2, "f16": 2, "int8": 1, "f32": 4}[kv]
    scales = 2 * 4 if kv == "int8" else 0
    assert cache.bytes_per_position == L * G * ((d + -(-d // 16) * 16) * size + scales)


def test_an_unknown_type_is_refused(config):
    with pytest.raises(SettingError, match=r"^kv must be one of bf16, f16, int8, f32, not 'int3'$"):
        KVCache(config, 100, "int3")


def test_common_prefix_counts_equal_leading_ids(config):
    cache = KVCache(config, 100)
    cache.append([5, 6, 7, 8])
    for ids, common in [([], 0), ([5], 1), ([5, 6, 7, 8], 4), ([5, 6, 7, 8, 9], 4), ([5, 6, 9, 8], 2), ([6, 5], 0)]:
        assert cache.common_prefix(ids) == common
    cache.rewind(2)
    assert cache.common_prefix([5, 6, 7, 8]) == 2


def test_rewinding_keeps_the_beginning(config):
    cache = KVCache(config, 100)
    cache.append([5, 6, 7])
    cache.append([8])
    for length, kept in [(9, [5, 6, 7, 8]), (4, [5, 6, 7, 8]), (2, [5, 6]), (0, [])]:
        cache.rewind(length)
        assert cache.ids == kept
        assert cache.length == len(kept)


@kvs
@pytest.mark.parametrize(("start", "stop"), [(0, 10), (20, 33), (60, 70), (0, 69), (15, 15)])
def test_dropping_turns_later_keys_back(config, kv, start, stop, rng):
    cache = filled(config, kv, 70, rng)
    keys, values = keys_of(cache), values_of(cache)
    cache.drop(start, stop)
    sources = np.r_[0:start, stop:70]
    assert cache.ids == sources.tolist()
    expected = turned(config, keys[:, :, sources], np.arange(len(sources)) - sources)
    length = np.linalg.norm(expected, axis=-1, keepdims=True)
    unit = max(HALF_ULP[kv], 2.0**-21)
    assert_within(keys_of(cache), expected, unit * length * np.ones_like(expected))
    np.testing.assert_array_equal(values_of(cache), values[:, :, sources])
    np.testing.assert_array_equal(keys_of(cache)[:, :, :start], keys[:, :, :start])


@kvs
@pytest.mark.parametrize("context_size", [70, 71, 300, 5000])
def test_resizing_is_exact(config, kv, context_size, rng):
    cache = filled(config, kv, 70, rng)
    keys, values = keys_of(cache), values_of(cache)
    cache.resize(context_size)
    assert (cache.context_size, cache.kv, cache.ids) == (context_size, kv, list(range(70)))
    assert cache.front.keys.shape[2] * 16 >= context_size
    np.testing.assert_array_equal(keys_of(cache), keys)
    np.testing.assert_array_equal(values_of(cache), values)


@kvs
def test_widening_and_narrowing_again_is_exact(config, kv, rng):
    cache = filled(config, kv, 70, rng)
    keys, values = keys_of(cache), values_of(cache)
    cache.resize(100, "f32")
    assert cache.front.keys.dtype == np.float32
    np.testing.assert_array_equal(keys_of(cache), keys)
    cache.resize(100, kv)
    np.testing.assert_array_equal(keys_of(cache), keys)
    np.testing.assert_array_equal(values_of(cache), values)


def test_a_context_below_what_is_stored_is_refused(config, rng):
    cache = filled(config, "f16", 70, rng)
    front = cache.front
    with pytest.raises(SettingError, match="less than the 70 tokens in use"):
        cache.resize(69)
    assert cache.front is front
    assert cache.context_size == 100


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_rewrite_leaves_the_old_cache(config, error, rng, monkeypatch):
    def interrupted(*arguments):
        raise error

    cache = filled(config, "f16", 70, rng)
    front, before = cache.front, [buffer.tobytes() for buffer in cache.front]
    monkeypatch.setattr("tinychat.engine.cache.rewrite", interrupted)
    with pytest.raises(error):
        cache.drop(10, 20)
    assert cache.front is front
    assert [buffer.tobytes() for buffer in front] == before
    assert (cache.ids, cache.context_size) == (list(range(70)), 100)
