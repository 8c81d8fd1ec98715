"""Ctrl-C at any line of the code that moves blocks of the cache: each stays its owners'."""

import sys
from collections import Counter

import families
import numpy as np
import pytest

from tinychat.engine.blocks import BlockPool, bytes_per_position
from tinychat.engine.cache import KVCache
from tinychat.errors import CacheFullError
from tinychat.kernels.sizes import BLOCK
from tinychat.models.architectures import parse_config

BLOCKS = 14


class Interruption:
    """Raises KeyboardInterrupt before line `place` of all that run in the engine's files inside the block."""

    def __init__(self, place):
        self.left = place

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, kind, *rest):
        sys.settrace(self.before)
        return kind is KeyboardInterrupt

    def trace(self, frame, event, argument):
        if "/tinychat/engine/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


def pool_of(config):
    return BlockPool(config, "f32", BLOCKS * BLOCK * bytes_per_position(config, "f32"))


def run(cache, ids):
    """Do as a step does; each value in the cache is its id, so that it shows whose it is."""
    with cache.pool.lock:
        cache.make_room(len(ids))
        blocks, places = pointers_of(cache, cache.length, cache.length + len(ids))
        cache.pool.buffers.values[blocks, :, :, places] = np.reshape(ids, (-1, 1, 1, 1))
        cache.append(ids)


def pointers_of(cache, start, stop):
    """Return the block of each position, and its place in it."""
    positions = np.arange(start, stop)
    return np.array(cache.table, int)[positions // BLOCK], positions % BLOCK


def values_of(cache):
    blocks, places = pointers_of(cache, 0, cache.length)
    return cache.pool.buffers.values[blocks, 0, 0, places, 0]


def converse(caches, pools):
    """Do with two caches of a pool all that moves blocks."""
    one, two = caches
    run(one, list(range(150)))
    two.match_prefix(range(140), 140)
    run(two, [7] * 80)
    two.rewind(130)
    two.fork()  # which nobody keeps
    caches.append(two.fork())
    run(caches[2], [8] * 3)
    two.drop(10, 80)
    one.clear()
    one.match_prefix(range(100), 100)
    run(one, [9])
    caches[2].move(pools[1])
    run(caches[2], [10] * 100)


def assert_sound(caches, pools):
    for pool in pools:
        named = Counter(pool.prefixes.blocks())
        for cache in caches:
            if cache.pool is pool:
                named.update(cache.table)
        assert all(pool._owners[block] >= count for block, count in named.items()), "a block lacks an owner"
        assert not named.keys() & set(pool._free)
        assert len(set(pool._free)) == len(pool._free)
        assert all(block in range(pool.capacity) for block in [*named, *pool._free])
    for cache in caches:
        np.testing.assert_array_equal(values_of(cache), cache.ids)


def fill(pool):
    """Write blocks until there are no more: those of others must not be among them."""
    other = KVCache(pool, 10_000)
    with pytest.raises(CacheFullError):
        for _ in range(BLOCKS):
            run(other, [99] * 4 * BLOCK)
    other.clear()


def test_blocks_of_the_cache_stay_their_owners():
    config = parse_config(families.BY_NAME["llama3.1"].config, "llama3.1")
    place, is_interrupted = 0, True
    while is_interrupted:
        place += 3  # not every one: some seconds less
        pools = [pool_of(config), pool_of(config)]
        for pool in pools:
            pool.reserve(BLOCKS * BLOCK)
        caches = [KVCache(pools[0], 1000) for _ in range(2)]
        with Interruption(place) as interruption:
            converse(caches, pools)
        is_interrupted = interruption.left == 0
        assert_sound(caches, pools)
        for cache in caches:
            run(cache, [11] * 5)
        assert_sound(caches, pools)
        for ids in (range(150), [*range(130), *[7] * 50]):
            found = KVCache(pools[0], 1000)
            found.match_prefix(ids, 200)
            np.testing.assert_array_equal(values_of(found), found.ids)
        del found
        for pool in pools:
            fill(pool)
        assert_sound(caches, pools)
    assert place > 1000
