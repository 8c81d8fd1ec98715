"""Estimates from counts and rates that are made up: the arithmetic, to the last digit."""

import sys
from dataclasses import replace

import pytest

from tinychat.bench.batch_rates import BatchRates
from tinychat.bench.row_plan import Costs, Machine, RowCount, count_rows, estimate
from tinychat.bench.work import Work
from tinychat.errors import SettingError
from tinychat.store.estimates import PROGRAM_BYTES

RATES = BatchRates(
    cores=2,
    memory=8 << 30,
    bandwidth_gb_s=20.0,
    prompt_tokens=90,
    new_tokens=20,
    prompt_tok_s={1: 100.0, 8: 400.0, 16: 400.0},
    new_tok_s={1: 10.0, 8: 50.0, 16: 80.0},
)
FREE = Costs(Work(weight_bytes=0, cache_bytes=0, state_bytes=0, multiply_adds=0, file_bytes=0), 0, 0)
LIKE_MEASURED = Machine(cores=2, memory=sys.maxsize, bandwidth_gb_s=20.0)
# 100 rows with prompts of 90 tokens, 40 of them cached.
COUNT = RowCount(rows=100, prompt_tokens=9000, cached_tokens=4000, most_new_tokens=2000, longest_prompt=90)


def test_time_is_that_of_the_tokens_that_are_read_and_of_those_that_are_written():
    found = estimate([COUNT], 20.0, RATES, FREE, LIKE_MEASURED)
    assert (found.at_once, found.limit) == (16, "cores")
    assert (found.prompt_tok_s, found.new_tok_s) == pytest.approx((400.0, 80.0))
    assert found.seconds == pytest.approx(5000 / 400 + 2000 / 80)
    assert found.machine_seconds == pytest.approx(found.seconds)


def test_cores_count_in_proportion():
    found = estimate([COUNT], 20.0, RATES, FREE, replace(LIKE_MEASURED, cores=8))
    assert found.seconds == pytest.approx((5000 / 400 + 2000 / 80) / 4)


def test_all_wait_for_the_machine_with_the_most_work():
    counts = [COUNT, RowCount(50, 4500, 2000, 1000, 90)]
    found = estimate(counts, 20.0, RATES, FREE, LIKE_MEASURED)
    assert found.seconds == pytest.approx(37.5)
    assert found.machine_seconds == pytest.approx(37.5 * 1.5)


def test_memory_is_read_no_faster_than_the_machine_can():
    work = replace(FREE.work, weight_bytes=800_000_000, cache_bytes=1000)
    costs = replace(FREE, work=work)
    # For each of 16 replies a sixteenth of the weights, and 100 positions.
    read = 800e6 / 16 + 100 * 1000
    found = estimate([COUNT], 20.0, RATES, costs, replace(LIKE_MEASURED, cores=200, bandwidth_gb_s=40.0))
    assert found.limit == "bandwidth"
    assert found.new_tok_s == pytest.approx(40e9 / read)


def test_longer_rows_than_those_measured_read_more_of_the_cache():
    costs = replace(FREE, work=replace(FREE.work, cache_bytes=100_000))
    longer = replace(COUNT, prompt_tokens=9000 + 100 * 1000)
    found = estimate([longer], 20.0, RATES, costs, LIKE_MEASURED)
    assert 1 / found.new_tok_s == pytest.approx(1 / 80 + 1000 * 100_000 / 20e9)


def test_a_model_in_the_caches_of_the_processor_is_not_bound_by_memory():
    costs = replace(FREE, work=replace(FREE.work, weight_bytes=100_000_000_000))
    assert estimate([COUNT], 20.0, RATES, costs, LIKE_MEASURED).new_tok_s == pytest.approx(80.0)


def test_replies_at_once_fit_into_the_memory():
    costs = replace(FREE, weight_bytes=1 << 30, reply_bytes=100 << 20)
    needed = PROGRAM_BYTES + (1 << 30) + 8 * (100 << 20)
    found = estimate([COUNT], 20.0, RATES, costs, replace(LIKE_MEASURED, memory=needed))
    assert (found.at_once, found.limit, found.memory_bytes) == (8, "memory", needed)
    with pytest.raises(SettingError, match=r"a machine has 1\.00 GB of memory and 1\.49 GB are needed: give more"):
        estimate([COUNT], 20.0, RATES, costs, replace(LIKE_MEASURED, memory=1_000_000_000))


def test_no_more_replies_at_once_than_rows():
    found = estimate([replace(COUNT, rows=9)], 20.0, RATES, FREE, LIKE_MEASURED)
    assert (found.at_once, found.limit) == (8, "rows")


def test_more_at_once_only_where_that_is_worth_while():
    rates = replace(RATES, new_tok_s={1: 10.0, 8: 50.0, 16: 51.0})
    found = estimate([COUNT], 20.0, rates, FREE, LIKE_MEASURED)
    assert (found.at_once, found.limit) == (8, "cores")


def test_rows_are_counted_for_their_machine_and_share_beginnings_with_earlier_ones():
    rows = [(0, [1, 2, 3], 5), (1, [1, 2, 3, 4], 5), (0, [1, 2, 9, 9], 5), (0, [7], 5), (0, [1, 2, 9, 9], None)]
    first, second = count_rows(rows, 2)
    assert first == RowCount(4, 12, 2 + 3, None, 4)
    assert second == RowCount(1, 4, 0, 5, 4)
    assert (first + second).read_tokens == 11


def test_of_many_prefixes_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr("tinychat.bench.row_plan._MOST_PREFIXES", 4)
    rows = [(0, [1, 2, 3], 5), (0, [4, 5], 5), (0, [1, 2, 3], 5)]
    assert count_rows(rows, 1)[0].cached_tokens == 0


def test_rates_are_read_as_they_were_written():
    assert BatchRates.from_json(RATES.as_json()) == RATES


@pytest.mark.parametrize(
    "wrong", [None, [], {}, {"cores": "two"}, {"new_tok_s": {}}, {"new_tok_s": {"1": 0}}, {"new_tok_s": {"4": 1.0}}]
)
def test_rates_that_are_none(wrong):
    found = RATES.as_json() | wrong if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(SettingError, match=r"has (no )?rates"):
        BatchRates.from_json(found)
