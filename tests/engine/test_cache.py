"""The KV cache of a sequence: prefixes, rewinding, sharing, and rewrites that turn keys to where they now stand."""

import gc
from dataclasses import replace

import families
import numpy as np
import pytest
from kernels.cache_inputs import HALF_ULP, Pages, kvs, read_keys, read_values
from kernels.kernel_inputs import assert_within

from tinychat.engine.blocks import BlockPool, bytes_per_position
from tinychat.engine.cache import KVCache
from tinychat.errors import CacheFullError, SettingError
from tinychat.kernels.sizes import PER_LANE
from tinychat.models.architectures import parse_config
from tinychat.models.folder import open_model_folder
from tinychat.models.rope import inverse_frequencies, sliding_rope


@pytest.fixture(scope="module", params=["qwen3-window", "llama-yarn", "llama3.1", "laguna"])
def config(request, folders):
    return open_model_folder(folders(request.param)).config


def pool_of(config, kv="f16", blocks=40):
    """Return a pool whose memory is that of so many blocks, full of NaN."""
    pool = BlockPool(config, kv, blocks * 64 * bytes_per_position(config, kv))
    pool.reserve(64)
    for buffer in pool.buffers:
        buffer.view(np.uint8)[:] = 0xFF
    return pool


def pages(cache):
    return Pages(cache.pool.buffers, np.array(cache.table, np.int32))


def keys_of(cache):
    """Return keys [L, G, length, d] as float64."""
    L, d = len(cache.config.cache_layers), cache.config.head_dim
    return np.stack([read_keys(cache.kv, pages(cache), d, i)[:, : cache.length] for i in range(L)])


def values_of(cache):
    """Return values [L, G, length, d padded] as float64."""
    L = len(cache.config.cache_layers)
    return np.stack([read_values(cache.kv, pages(cache), i)[:, : cache.length] for i in range(L)])


def extend(cache, ids):
    cache.make_room(len(ids))
    cache.append(list(ids))


def filled(config, kv, length, rng):
    """Return a cache of random keys and values for ids 0, 1, 2 ..., rounded to its type from float32."""
    cache = KVCache(pool_of(config, "f32"), 100)
    for buffer in cache.pool.buffers[:2]:
        buffer[:] = rng.standard_normal(buffer.shape)
    cache.pool.buffers.values[..., config.head_dim :] = 0
    extend(cache, range(length))
    if kv != "f32":
        cache = cache.copy(pool_of(config, kv))
        # As if they had been computed so.
        cache._altered_from = None
    return cache


def turned(config, keys, moves):
    """Rotate keys [layers with attention, ..., n, d] by ``moves [n]`` positions: those channels that are rotated."""
    found = keys.copy()
    for i, layer in enumerate(config.attention_layers):
        dim = config.rotary_dims[layer]
        frequencies = inverse_frequencies(sliding_rope(config) if config.angle_sets[layer] else config)
        angles = np.asarray(moves)[:, None] * frequencies
        first, second = np.split(keys[i, ..., :dim], 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        found[i, ..., :dim] = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return found


@kvs
def test_a_new_cache_is_empty(config, kv):
    cache = KVCache(pool_of(config, kv), 100)
    assert (cache.length, cache.ids, cache.table, cache.context_size, cache.kv) == (0, [], [], 100, kv)
    L, G, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    shared = PER_LANE.get(kv, 1)
    assert cache.pool.buffers.keys.shape == (40, L, G, 4, d // shared, 16)
    assert cache.pool.buffers.values.shape == (40, L, G, 64 // shared, -(-d // 16) * 16)
    size = {"bf16": 2, "f16": 2, "int8": 1, "f32": 4}[kv]
    scales = 2 * 4 if kv == "int8" else 0
    assert bytes_per_position(config, kv) == L * G * ((d + -(-d // 16) * 16) * size + scales)


def test_an_unknown_type_is_refused(config):
    with pytest.raises(SettingError, match=r"^kv must be one of bf16, f16, int8, f32, not 'int3'$"):
        BlockPool(config, "int3")


def test_heads_that_codes_do_not_fill_are_refused(config):
    odd = replace(config, head_dim=6)
    with pytest.raises(SettingError, match=r"^kv int8 stores 4 channels together, and heads of this model have 6$"):
        BlockPool(odd, "int8")
    BlockPool(odd, "bf16")


def test_common_prefix_counts_equal_leading_ids(config):
    cache = KVCache(pool_of(config), 100)
    extend(cache, [5, 6, 7, 8])
    for ids, common in [([], 0), ([5], 1), ([5, 6, 7, 8], 4), ([5, 6, 7, 8, 9], 4), ([5, 6, 9, 8], 2), ([6, 5], 0)]:
        assert cache.common_prefix(ids) == common
    cache.rewind(2)
    assert cache.common_prefix([5, 6, 7, 8]) == 2


def test_rewinding_keeps_the_beginning_and_gives_blocks_back(config):
    cache = KVCache(pool_of(config), 300)
    extend(cache, range(63))
    assert len(cache.table) == 1
    extend(cache, range(63, 70))
    assert len(cache.table) == 2
    for length, blocks in [(70, 2), (65, 2), (64, 1), (2, 1), (0, 0)]:
        cache.rewind(length)
        assert cache.ids == list(range(length))
        assert len(cache.table) == blocks
    # The first block was full once: it stays for others.
    assert cache.pool.used == len(cache.pool.prefixes) == 1


@kvs
@pytest.mark.parametrize(("start", "stop"), [(0, 10), (20, 33), (60, 70), (64, 69), (0, 69), (15, 15)])
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


@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_what_convolutions_keep_moves_unturned(kv, rng):
    variant = families.BY_NAME["lfm2"]
    config = parse_config(variant.config, variant.name)
    assert config.cache_layers == (0, 0, 1, 2, 2, 3, 3)
    cache = filled(config, kv, 70, rng)
    keys, values = keys_of(cache), values_of(cache)
    cache.drop(20, 33)
    sources = np.r_[0:20, 33:70]
    of_attention = [2]
    np.testing.assert_array_equal(values_of(cache), values[:, :, sources])
    moved, expected = (np.delete(array, of_attention, axis=0) for array in (keys_of(cache), keys[:, :, sources]))
    np.testing.assert_array_equal(moved, expected)
    expected = turned(config, keys[of_attention][:, :, sources], np.arange(57) - sources)
    length = np.linalg.norm(expected, axis=-1, keepdims=True)
    unit = max(HALF_ULP[kv], 2.0**-21)
    assert_within(keys_of(cache)[of_attention], expected, unit * length * np.ones_like(expected))


def test_another_capacity_moves_nothing(config, rng):
    cache = filled(config, "f16", 70, rng)
    table = cache.table.copy()
    cache.resize(1000)
    assert (cache.context_size, cache.table, cache.ids) == (1000, table, list(range(70)))
    with pytest.raises(SettingError, match="less than the 70 tokens in use"):
        cache.resize(69)
    assert cache.context_size == 1000


@kvs
def test_widening_and_narrowing_again_is_exact(config, kv, rng):
    cache = filled(config, kv, 70, rng)
    keys, values = keys_of(cache), values_of(cache)
    wide = cache.copy(pool_of(config, "f32"))
    assert wide.kv == "f32"
    np.testing.assert_array_equal(keys_of(wide), keys)
    narrow = wide.copy(cache.pool)
    np.testing.assert_array_equal(keys_of(narrow), keys)
    np.testing.assert_array_equal(values_of(narrow), values)
    np.testing.assert_array_equal(keys_of(cache), keys)


def test_a_rewrite_that_fails_leaves_the_old_cache(config, rng, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    cache = filled(config, "f16", 70, rng)
    table, keys, used = cache.table.copy(), keys_of(cache), cache.pool.used
    monkeypatch.setattr("tinychat.kernels.rope.rewrite", fail)
    with pytest.raises(MemoryError):
        cache.drop(10, 20)
    assert (cache.ids, cache.table) == (list(range(70)), table)
    np.testing.assert_array_equal(keys_of(cache), keys)
    assert cache.pool.used == used


def test_blocks_of_a_step_that_failed_are_not_shared(config):
    cache = KVCache(pool_of(config), 300)
    extend(cache, range(64))
    cache.make_room(1)
    other = cache.fork()
    other.make_room(1)
    cache.make_room(1)
    assert cache.table[0] == other.table[0]
    assert cache.table[1] != other.table[1]


def test_a_fork_shares_blocks_until_one_writes(config, rng):
    cache = filled(config, "f16", 70, rng)
    keys = keys_of(cache)
    other = cache.fork()
    assert other.table == cache.table
    other.make_room(1)
    assert other.table[0] == cache.table[0]
    assert other.table[1] != cache.table[1], "the block that is written next is its own"
    np.testing.assert_array_equal(keys_of(other), keys)
    cache.make_room(1)
    assert cache.table[1] != other.table[1]
    shared = cache.table[0]
    cache.rewind(0)
    assert shared not in cache.pool._free
    np.testing.assert_array_equal(keys_of(other), keys)


def test_what_one_sequence_had_another_finds(config):
    pool = pool_of(config)
    first = KVCache(pool, 300)
    extend(first, range(200))
    second = KVCache(pool, 300)
    second.match_prefix([*range(130), 7, 8], 132)
    assert second.ids == list(range(130)), "two blocks, and the beginning of a third"
    assert second.table == first.table[:3]
    second.make_room(2)
    assert second.table[:2] == first.table[:2]
    assert second.table[2] != first.table[2], "it is written next, and another one's"
    first.rewind(0)
    third = KVCache(pool, 300)
    third.match_prefix(range(100, 200), 100)
    assert third.ids == []
    third.match_prefix(range(195), 200)
    assert third.ids == list(range(192)), "blocks that were never full are kept only if that is asked"


def test_the_same_tokens_are_kept_once(config):
    pool = pool_of(config)
    caches = [KVCache(pool, 300) for _ in range(3)]
    for cache in caches:
        extend(cache, range(130))
    assert caches[0].table[:2] == caches[1].table[:2] == caches[2].table[:2]
    assert pool.used == 2 + 3


def test_a_partly_filled_block_is_kept_and_replaced_by_a_longer_one(config):
    pool = pool_of(config)
    cache = KVCache(pool, 300)
    extend(cache, range(90))
    cache.insert_prefix(90)
    found = KVCache(pool, 300)
    found.match_prefix(range(100), 100)
    assert found.ids == list(range(90))
    extend(cache, range(90, 140))
    assert len(pool.prefixes) == 2
    found.match_prefix(range(100), 100)
    assert found.ids == list(range(100))


def test_a_sequence_goes_on_in_the_block_that_it_lets_others_find(config):
    cache = KVCache(pool_of(config), 300)
    extend(cache, range(30))
    cache.insert_prefix(30)
    block = cache.table[0]
    extend(cache, range(30, 40))
    assert cache.table == [block]
    found = KVCache(cache.pool, 300)
    found.match_prefix(range(30), 30)
    assert (found.table, found.ids) == ([block], list(range(30)))
    found.make_room(1)
    assert found.table != [block], "what others find is copied before it is gone on from"
    cache.rewind(20)
    cache.make_room(1)
    assert cache.table != [block], "others find what stood there"


def test_what_follows_a_drop_is_not_kept(config, rng):
    cache = filled(config, "f16", 70, rng)
    cache.resize(300)
    cache.drop(5, 9)
    extend(cache, range(100, 200))
    other = KVCache(cache.pool, 300)
    other.match_prefix(cache.ids, 300)
    assert other.ids == []
    cache.rewind(5)
    extend(cache, range(100, 200))
    other.match_prefix(cache.ids, 300)
    assert other.ids == cache.ids[:64], "after a rewind to before it all is as if fresh"


def test_the_least_recently_used_beginnings_go_first(config):
    pool = pool_of(config, blocks=6)
    cache = KVCache(pool, 1000)
    for start in (0, 1000):
        extend(cache, range(start, start + 128))
        cache.rewind(0)
    cache.match_prefix(range(128), 128)
    cache.rewind(0)
    extend(cache, range(2000, 2000 + 256))
    found = KVCache(pool, 1000)
    found.match_prefix(range(128), 128)
    assert found.length == 128
    found.rewind(0)
    found.match_prefix(range(1000, 1128), 128)
    assert found.length == 0


def test_memory_that_is_full_is_told_and_given_back(config):
    pool = pool_of(config, blocks=4)
    one, two = KVCache(pool, 1000), KVCache(pool, 1000)
    extend(one, range(130))
    extend(two, range(1000, 1060))
    with pytest.raises(CacheFullError, match=r"^the cache memory of 0 MiB is full"):
        two.make_room(70)
    assert two.ids == list(range(1000, 1060))
    del one
    gc.collect()
    two.make_room(70)
    with pytest.raises(
        SettingError, match=r"^a context of 257 tokens is too large: 256 fit into a cache memory of 0 MiB$"
    ):
        pool.reserve(257)


def test_the_last_token_of_a_cache_that_fills_the_memory_can_be_taken_back(config):
    pool = pool_of(config, blocks=4)
    cache = KVCache(pool, 256)
    extend(cache, range(256))
    cache.rewind(255)
    extend(cache, [1])
    assert cache.ids == [*range(255), 1]
    other = KVCache(pool, 256)
    other.match_prefix(range(256), 256)
    assert other.ids == list(range(255))
    # What another sequence uses is not taken from it.
    cache.rewind(191)
    with pytest.raises(CacheFullError):
        cache.make_room(1)


def test_blocks_of_a_forgotten_sequence_are_given_back_once(config):
    pool = pool_of(config, blocks=4)
    one, two = KVCache(pool, 1000), KVCache(pool, 1000)
    extend(one, range(60))
    extend(two, range(1000, 1060))
    del one
    gc.collect()
    assert pool.used == 1
    extend(two, range(2000, 2196))
    assert sorted(two.table) == [0, 1, 2, 3]
    with pytest.raises(CacheFullError):
        two.make_room(1)


def test_a_model_of_learned_positions_takes_no_more_than_it_has():
    pool = BlockPool(parse_config(families.BY_NAME["gpt2"].config, "gpt2"), "f16")
    pool.reserve(256)
    with pytest.raises(SettingError, match="257 tokens is too large for this model: it has vectors for 256"):
        pool.reserve(257)
