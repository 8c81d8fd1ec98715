"""The benchmark's parts on a tiny model: what it reports, never how fast that was."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from statistics import harmonic_mean

import embedders
import engines
import families
import numpy as np
import pytest

import tinychat
import tinychat.bench.measure as measuring
from tinychat.bench.actors import ActorRates, best_of, measure_actors
from tinychat.bench.batch_rates import Answered, measure_batches
from tinychat.bench.ceilings import Ceilings
from tinychat.bench.fresh_process import complete_once, load_once, peak_mib
from tinychat.bench.measure import Plan, decode_rate, medians, prefill_rate
from tinychat.bench.random_model import write_random_model
from tinychat.bench.report import bench
from tinychat.bench.row_sample import ReplyLength, RowSample, reply_length
from tinychat.bench.work import work_of
from tinychat.cli import main
from tinychat.commands.bench import hold
from tinychat.engine.counting import count_step
from tinychat.engine.sequence import new_sequence
from tinychat.errors import SettingError, TinychatError
from tinychat.generate.request import as_request
from tinychat.machine import available_cores
from tinychat.models.architectures import linears, parse_config
from tinychat.models.layout import Quantization
from tinychat.models.shapes import config_of

pytestmark = pytest.mark.slow

TINY = config_of("smollm2-135m") | {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 320,
}
ISSUE_KEYS = {
    "prefill_tok_s",
    "decode_tok_s",
    "first_token_s",
    "load_s",
    "peak_mib",
    "bandwidth_gb_s",
    "int8_peak_gmac_s",
}


def small_ceilings(threads):
    return Ceilings(threads, buffer_bytes=1 << 20, rounds=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_random_model(TINY, tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def model(folder):
    return tinychat.load(folder, context=100, threads=2)


def test_a_random_model_has_sane_activations(model):
    logits = model.logits(list(range(60)))
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    # Different tokens, different predictions: attention and residual stream are alive.
    assert len({row.tobytes() for row in logits}) == 60


def test_tokens_of_a_random_mixture_choose_several_experts(tmp_path):
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "moe_intermediate_size": 64, "vocab_size": 500}
    (tmp_path / "model").mkdir()
    folder = write_random_model(config_of("zaya1-8b") | sizes, tmp_path / "model")
    engine = engines.open_engine(folder)
    sequence = new_sequence(engine, 256)
    sequence.step(np.random.default_rng(1).integers(3, 500, 100).tolist())
    assert len({*engine._scratch.experts.chosen[:100, 0].tolist()}) >= 4


def test_a_random_model_encodes_any_text(model):
    assert model.decode(model.encode("Wörter ≠ words\n")) == "Wörter ≠ words\n"
    assert model.tokenizer.vocab_size == 320


def test_the_report_is_one_json_object_of_numbers(model):
    plan = Plan(prefill=(8, 40, 400), depths=(0, 20, 99), new_tokens=4, rounds=1)
    calls = []
    found = bench(model, plan, threads=2, progress=lambda *call: calls.append(call), make_ceilings=small_ceilings)
    assert json.loads(json.dumps(found)) == found
    assert set(found) >= ISSUE_KEYS
    assert set(found["prefill_tok_s"]) == set(found["prefill_peak_share"]) == {"8", "40"}
    assert set(found["decode_tok_s"]) == set(found["decode_bandwidth_share"]) == {"0", "20"}
    assert found["notes"] == [
        "prefill of 400 left out: the context holds 100 tokens",
        "decode at depth 99 left out: the context holds 100 tokens",
    ]
    numbers = [found[key] for key in ISSUE_KEYS - {"prefill_tok_s", "decode_tok_s"}]
    numbers += [rate for key in ("prefill_tok_s", "decode_tok_s") for rate in found[key].values()]
    assert all(number > 0 for number in numbers)
    assert found["threads"] == min(2, available_cores())
    assert calls[0] == (0, 4)
    assert calls[-1] == (4, 4)


def test_rates_leave_the_cache_as_they_say(model):
    ids, limits = list(range(90)), iter([2.0, 6.0, 3.0] * 10)
    rate, limit = prefill_rate(model.sequence, ids[:20], lambda: next(limits))
    assert rate > 0
    assert limit == 2.0
    assert model.sequence.ids == ids[:20]
    _, limit = decode_rate(model.sequence, ids, 30, 33, lambda: next(limits))
    assert limit == harmonic_mean([6.0, 3.0, 2.0]), "one limit before each 16 tokens"
    assert model.sequence.ids == ids[:63]
    decode_rate(model.sequence, ids, 10, 5, lambda: next(limits))
    assert model.sequence.ids == ids[:15]


class SlowSequence:
    """A sequence that takes a second for a token, by a clock of its own."""

    chunk_size, vocab_size = 10, 2

    def __init__(self):
        self.ids, self.seconds = [], 0

    def rewind(self, length):
        del self.ids[length:]

    def new_logits(self, rows):
        return None

    def step(self, ids, sequence_length=None, out=None):
        self.ids += ids
        self.seconds += len(ids)


def test_what_a_limit_takes_is_not_counted(monkeypatch):
    sequence, ids, limits = SlowSequence(), list(range(60)), iter(range(1, 99))
    monkeypatch.setattr(measuring, "perf_counter", lambda: sequence.seconds)

    def limit():
        sequence.seconds += 1000
        return next(limits)

    assert decode_rate(sequence, ids, 20, 33, limit) == (1, harmonic_mean([1, 2, 3]))
    assert sequence.ids == ids[:53]
    assert prefill_rate(sequence, ids[:25], limit) == (1, harmonic_mean([4, 5, 6]))
    assert sequence.ids == ids[:25]


def test_medians_of_each_key():
    assert medians({512: [1.0, 9.0, 2.0], 2048: [4.0]}) == {"512": 2.0, "2048": 4.0}


def test_the_plan_asks_for_the_context_it_needs():
    assert Plan().context_size == 4096 + 64
    assert Plan().fitted(4160) == (Plan(), [])
    with pytest.raises(SettingError, match=r"^context must be larger: 63 tokens hold none"):
        Plan().fitted(63)


def test_work_counts_what_one_token_needs():
    config, int4 = parse_config(config_of("tinyllama-1.1b"), "test"), Quantization("int4", 32)
    work = work_of(config, int4, cache_bytes=7)
    layers = 22 * (2048 * (2048 + 2 * 256) + 2048 * 2048 + 3 * 2048 * 5632)
    assert work.multiply_adds == layers
    # Half a byte and a 32nd of one for each weight, four for each row and each gain, 16 for each table.
    rows, gains = 22 * (2048 + 2 * 256 + 2048 + 2 * 5632 + 2048), (2 * 22 + 1) * 2048
    head = 32000 * 2048 * 17 // 32 + 32000 * 4 + 16
    assert work.weight_bytes == layers * 17 // 32 + (rows + gains) * 4 + 22 * 4 * 16 + head
    assert work.file_bytes == work.weight_bytes + head
    tied = work_of(parse_config(TINY, "test"), int4, cache_bytes=7)
    assert tied.weight_bytes == tied.file_bytes
    assert tied.state_bytes == 0


def test_a_table_of_which_a_token_looks_up_a_row_is_not_read():
    config, int4 = parse_config(config_of("gemma4-e2b"), "test"), Quantization("int4", 32)
    work = work_of(config, int4, cache_bytes=7)
    # Half a byte and a 32nd of one for each of its weights, and four for each row of 256.
    assert work.file_bytes - work.weight_bytes == 262144 * 35 * (256 * 17 // 32 + 4) + 16
    assert 0.9e9 < work.weight_bytes < 1.3e9 and 1.8e9 < work.multiply_adds < 2e9


def test_weights_are_read_as_often_as_their_layers_run():
    config, int4 = parse_config(config_of("dory-4b"), "test"), Quantization("int4", 32)
    work, plain = (work_of(each, int4, cache_bytes=7) for each in (config, replace(config, loops=None)))
    assert (work.multiply_adds, work.file_bytes) == (plain.multiply_adds * 56 // 36, plain.file_bytes)
    inside = [linear for linear in linears(config) if linear.layers]
    weights, rows = sum(linear.weights for linear in inside) // 36, sum(sum(linear.rows) for linear in inside)
    # Half a byte and a 32nd of one for each weight, four for each row, 16 for each table.
    assert work.weight_bytes - plain.weight_bytes == 20 * (weights * 17 // 32 + rows * 4 + 4 * 16)
    counted = sum(cost.bytes for cost in count_step(config, int4, 1).costs if cost.kind.endswith("proj"))
    assert counted == pytest.approx(work.weight_bytes - 131072 * 2560 * 17 / 32, rel=0.002)


def test_chosen_experts_are_read_as_often_as_their_layers_run():
    config, int4 = parse_config(config_of("inkling-2-mini-16-experts"), "test"), Quantization("int4", 32)
    work, counted = work_of(config, int4, cache_bytes=7), count_step(config, int4, 1).costs
    read = sum(cost.bytes for cost in counted if cost.kind.endswith(("_proj", "router", "lm_head")))
    # All but the linears of messages, which the first loop does not run, and vectors.
    assert read == pytest.approx(work.weight_bytes, rel=0.02)
    all_chosen = replace(config, experts=replace(config.experts, num_experts_per_tok=16))
    experts = sum(linear.weights for linear in linears(config) if linear.experts)
    more = work_of(all_chosen, int4, cache_bytes=7).weight_bytes - work.weight_bytes
    assert more == pytest.approx(experts / 2 * 2 * 17 / 32, rel=0.01)


def test_states_are_read_and_written():
    config = parse_config(config_of("qwen3.5-0.8b"), "test")
    matrices, taps, channels = 16 * 128 * 128, 3, 3 * 16 * 128
    work = work_of(config, Quantization("int4", 32), cache_bytes=7)
    assert work.state_bytes == 2 * 4 * 18 * (matrices + taps * channels)
    granite = work_of(parse_config(config_of("granite-4.0-h-1b"), "test"), Quantization("int4", 32), cache_bytes=7)
    assert granite.state_bytes == 2 * 4 * 36 * (48 * 64 * 128 + 3 * (48 * 64 + 2 * 128))


def test_processes_of_their_own(folder, tmp_path):
    first = complete_once(folder, ["--threads=1"])
    assert 0 < first.seconds
    assert 20 < first.peak_mib < 4000
    assert 0 < load_once(folder, threads=1, kv=None)
    assert 20 < peak_mib()
    with pytest.raises(TinychatError, match="there is no file or folder"):
        complete_once(tmp_path / "nothing")


def test_the_command_tells_of_what_it_cannot_do(folder, capsys):
    assert main(["bench", str(folder), "--random", "smollm2-135m"]) == 2
    assert "MODEL and --random exclude each other" in capsys.readouterr().err
    assert main(["bench", "--random", "gpt-5"]) == 2
    assert main(["bench", "no-such-model"]) == 1


def test_a_model_that_gives_embeddings_has_no_replies_to_measure(tmp_path, capsys):
    embedders.write_embedder(tmp_path / "checkpoint")
    folder = tinychat.convert(tmp_path / "checkpoint", tmp_path / "model")
    assert main(["bench", str(folder)]) == 1
    assert "gives embeddings, not text" in capsys.readouterr().err


def test_a_model_with_few_positions_is_measured_within_them(tmp_path):
    families.write_checkpoint(families.BY_NAME["gpt2"], tmp_path / "checkpoint")
    model = tinychat.load(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model"))
    hold(model, 1 << 19)
    assert model.context_size == model.engine.config.max_position_embeddings


def test_the_command_prints_a_table_and_one_json_line(folder):
    # A context that leaves out all but decoding at depth 0.
    command = [sys.executable, "-m", "tinychat", "bench", str(folder), "--rounds", "1", "--context", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *_, last = done.stdout.splitlines()
    assert set(json.loads(last)) >= ISSUE_KEYS
    assert "decode at depth 0" in done.stderr
    assert "prefill of 512 left out" in done.stderr


def test_replies_at_once_are_measured_until_more_bring_nothing(model, monkeypatch):
    # 8 at once are five times as fast as one, 16 hardly faster.
    seconds = {1: 1.0, 8: 1.6, 16: 3.1, 32: 9.9}
    asked = []

    def answer(rows, at_once, prompt_tokens, new_tokens):
        asked.append((at_once, prompt_tokens))
        return Answered(seconds[at_once] * (1 + prompt_tokens / 100), prompt_tokens * at_once, 10 * at_once)

    monkeypatch.setattr("tinychat.bench.batch_rates._RandomRows.answer", answer)
    found = measure_batches(model, as_request(), prompt_tokens=50, new_tokens=9.6, make_ceilings=small_ceilings)
    assert [level for level, _ in asked] == [1, 1, 8, 8, 16, 16]
    assert (found.prompt_tokens, found.new_tokens, found.cores) == (50, 10, model.engine.threads)
    assert found.new_tok_s == pytest.approx({1: 10, 8: 50, 16: 16 * 10 / 3.1})
    assert found.prompt_tok_s == pytest.approx({1: 100, 8: 500, 16: 1600 / 3.1})


def test_rows_are_answered_with_all_places_taken(model):
    seconds = measure_batches(model, as_request(), levels=[4], seconds=0.1, make_ceilings=small_ceilings)
    assert seconds.new_tok_s[4] > 0 and seconds.prompt_tok_s[4] > 0
    assert (seconds.prompt_tokens, seconds.new_tokens) == (50, 25), "both fit into the context of 100"
    assert len(model.driver) == 0


def test_a_sample_tells_the_length_of_the_replies(model):
    sample = RowSample(4)
    for length in range(1, 7):
        sample.add(model.text_prompt("word", as_chat=False), as_request(max_tokens=length, ignore_eos=True))
    found = reply_length(model, sample, seconds=60)
    assert (found.rows, found.cut) == (4, 0)
    assert found.tokens == sum(request.max_tokens for _, request in sample.rows) / 4
    assert reply_length(model, sample, seconds=0) == ReplyLength(tokens=1.0, rows=1, cut=1), (
        "one token, then time is up"
    )


def test_a_sample_is_from_all_rows():
    sample = RowSample(100)
    for row in range(1000):
        sample.add(row, None)
    found = Counter(row // 250 for row, _ in sample.rows)
    assert sum(found.values()) == 100 and all(15 <= found[part] <= 35 for part in range(4))


def test_processes_beside_each_other(folder):
    calls = []
    found = measure_actors(folder, [1, 2], 1, threads=2, seconds=0.2, progress=lambda *call: calls.append(call))
    assert [(each.actors, each.threads) for each in found] == [(1, 2), (2, 1)]
    assert all(each.tok_s > 0 for each in found)
    assert calls == [(0, 2), (1, 2)]
    if sys.platform == "linux":
        assert 20 < found[0].memory_mib < found[1].memory_mib


def test_the_error_of_a_process_is_that_of_the_measurement(tmp_path):
    with pytest.raises(TinychatError, match="nothing"):
        measure_actors(tmp_path / "nothing", [1], 1)


def test_the_best_number_of_processes_is_the_smallest_of_the_fastest():
    rates = [ActorRates(1, 4, 90.0, None), ActorRates(2, 2, 99.0, None), ActorRates(4, 1, 100.0, None)]
    assert best_of(rates).actors == 2


@pytest.mark.parametrize("numbers", [["2", "1"], ["2,1"], ["1 2"]])
def test_the_command_measures_processes(folder, numbers, capsys, monkeypatch):
    asked = []

    def measured(*arguments, **options):
        asked.append((arguments, options["threads"]))
        return [ActorRates(1, 2, 50.0, 100.0), ActorRates(2, 1, 70.0, None)]

    monkeypatch.setattr("tinychat.bench.actors.measure_actors", measured)
    assert main(["bench", str(folder), "--threads", "2", "--actors", *numbers]) == 0
    out, err = capsys.readouterr()
    assert asked == [((folder, [1, 2], 3), 2)]
    assert (json.loads(out)["best"], json.loads(out)["actors"][1]["tok_s"]) == (2, 70.0)
    assert "70.0" in err and "best" in err and "unknown" in err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--actors", "0"], "are not numbers from 1 to 256"),
        (["--actors", "two"], "are not numbers from 1 to 256"),
        (["--actors", "1" * 5000], "are not numbers from 1 to 256"),
        (["--actors", "1", "--batches"], "--actors measures nothing else"),
    ],
)
def test_processes_that_cannot_be_measured(folder, flags, problem, capsys):
    assert main(["bench", str(folder), *flags]) == 2
    assert problem in capsys.readouterr().err
