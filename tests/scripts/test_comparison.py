"""The comparison's own parts: processes, turns, medians and the table."""

import json
import subprocess
import sys

import pytest
from comparison.measuring import Rate, in_turns, planned_rates
from comparison.processes import (
    SCRIPTS,
    EngineError,
    EngineProcess,
    Finished,
    clean_environment,
    run_measured,
    running,
    work_folder,
)
from comparison.report import Row, as_json, table
from comparison.serving import token_ids

COLUMNS = {"tinychat": ["tinychat"], "other": ["other fast", "other slow"]}
FAKE_ENGINE = """
from comparison.serving import serve
class Fake:
    version = "fake 1"
    def prefill(self, tokens): return tokens / 100
    def decode(self, depth, tokens): return depth + tokens
    def logits(self, tokens, context_size): return [0.5] * tokens
serve(Fake())
"""


def python(code):
    return [sys.executable, "-c", code]


def test_settings_of_engines_do_not_leak(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    monkeypatch.setenv("TINYCHAT_CACHE", "kept")
    environment = clean_environment()
    assert not {"OMP_WAIT_POLICY", "NUMBA_NUM_THREADS"} & environment.keys()
    assert environment["TINYCHAT_CACHE"] == "kept"


def test_a_process_is_measured_from_outside():
    # From a small process: the memory of the one that runs all tests would count towards the peak.
    program = f"""
import dataclasses, json, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from comparison.processes import run_measured
code = "print('first', flush=True); b = bytearray(100 << 20); print('second')"
print(json.dumps(dataclasses.asdict(run_measured([sys.executable, "-c", code]))))
"""
    done = subprocess.run(python(program), capture_output=True, text=True, timeout=60, check=True)
    finished = Finished(**json.loads(done.stdout))
    assert finished.first_line == "first\n"
    assert 0 < finished.first_line_seconds <= finished.seconds
    assert 100 < finished.peak_mib < 200


def test_a_failing_process_is_an_error():
    with pytest.raises(EngineError, match="exit code 3"):
        run_measured(python("raise SystemExit(3)"))


def test_an_engine_answers_commands_until_it_ends():
    engine = EngineProcess("fake", python(FAKE_ENGINE))
    try:
        assert engine.version == "fake 1"
        assert Rate("prefill", 50).of(engine) == 100
        assert Rate("decode", 10, depth=10).of(engine) == 0.5
        assert engine.ask(do="logits", tokens=2) == {"logits": [0.5, 0.5]}
    finally:
        engine.close()


def test_an_engine_that_dies_is_an_error_and_ends_the_others(monkeypatch):
    ended = []
    close = EngineProcess.close
    monkeypatch.setattr(EngineProcess, "close", lambda engine: ended.append(engine.name) or close(engine))
    commands = {"fake": python(FAKE_ENGINE), "broken": python("raise SystemExit(7)")}
    with pytest.raises(EngineError, match="broken has ended with exit code 7"), running(commands):
        pytest.fail("it is started")
    assert ended == ["broken", "fake"]


def test_converted_models_stay_where_that_is_wanted(tmp_path):
    with work_folder(tmp_path / "a" / "b") as kept, work_folder(None) as gone:
        assert kept.is_dir() and gone.is_dir()
    assert (tmp_path / "a" / "b").is_dir()
    assert not gone.exists()


def test_every_engine_gets_the_same_ids_within_its_vocabulary():
    assert token_ids(5, 512) == token_ids(9, 512)[:5]
    assert all(300 <= token < 512 for token in token_ids(100, 512))


def test_turns_go_forwards_and_backwards():
    assert [in_turns(["a", "b"], run) for run in (0, 1)] == [["a", "b"], ["b", "a"]]
    assert [rate.label for rate in planned_rates([512], [0])] == ["prefill 512, tok/s", "decode at depth 0, tok/s"]


def test_the_fastest_variant_counts_and_ratios_are_paired():
    rate = Row("prefill 512, tok/s", {"tinychat": [30, 60, 90], "other fast": [10, 30, 90], "other slow": [1, 2, 3]})
    assert rate.figure(COLUMNS["other"]) == ("other fast", 30)
    assert rate.ratio(COLUMNS["other"]) == 2
    seconds = Row("start, s", {"tinychat": [0.5], "other fast": [0.4], "other slow": [0.8]})
    assert seconds.figure(COLUMNS["other"]) == ("other fast", 0.4)


def test_the_table_leaves_out_what_was_not_measured():
    rows = [
        Row("prefill 512, tok/s", {"tinychat": [718.4], "other fast": [259.2], "other slow": [200]}),
        Row("conversion, s", {"tinychat": [5.25]}),
    ]
    assert table(rows, COLUMNS).splitlines() == [
        "| | tinychat | other | tinychat / other |",
        "|---|---:|---:|---:|",
        "| prefill 512, tok/s | 718 | 259 (fast) | 2.77 x |",
        "| conversion, s | 5.25 |  |  |",
    ]
    assert [row["ratio"]["other"] for row in as_json(rows, COLUMNS)] == [718.4 / 259.2, None]
