"""What a decoder is opened with when nobody says otherwise."""

import subprocess
import sys

import pytest

import tinychat
from tinychat.engine.loading import default_kv, load_engine
from tinychat.errors import FieldError
from tinychat.machine import usable_cores
from tinychat.models.architectures import parse_config
from tinychat.models.layout import Quantization
from tinychat.models.shapes import config_of


@pytest.mark.parametrize(
    ("hidden_size", "method", "kv"),
    [(64, "int4", "f16"), (510, "int8", "f16"), (512, "int4", "bf16"), (2048, "int8", "bf16"), (2048, "f32", "f32")],
)
def test_the_type_of_the_cache_follows_the_model(hidden_size, method, kv):
    config = parse_config(
        config_of("smollm2-135m") | {"hidden_size": hidden_size, "num_attention_heads": 1, "num_key_value_heads": 1},
        "test",
    )
    assert default_kv(config, Quantization(method, 32)) == kv


@pytest.mark.parametrize("count", [0, 1025])
def test_a_number_of_threads_that_cannot_be_is_refused(count):
    with pytest.raises(FieldError, match=f"must be between 1 and 1024, not {count}") as caught:
        tinychat.load("demo", threads=count)
    assert caught.value.field == "threads"


ON_SOME_CORES = """
import os, sys
os.sched_setaffinity(0, eval(sys.argv.pop(1)))
from tinychat.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(not usable_cores(), reason="this system binds no threads")
def test_no_more_threads_compute_than_there_are_cores_to_use():
    def complete(cores, threads):
        command = [sys.executable, "-c", ON_SOME_CORES, f"{set(cores)}"]
        flags = ["complete", "demo", "Once", "--max-tokens", "20", "--seed", "1", "--threads", str(threads)]
        return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=True)

    cores = usable_cores()
    alone, four = complete(cores[:1], 1), complete(cores[:1], 4)
    assert four.stdout == alone.stdout
    assert four.stderr == "threads 4: this process may use 1 core; using 1\n"
    assert "this process" not in alone.stderr
    several = complete(cores, len(cores))
    assert several.stdout == alone.stdout
    assert "this process" not in several.stderr


@pytest.mark.skipif(not usable_cores(), reason="this system binds no threads")
def test_threads_are_at_most_the_usable_cores(folders):
    folder, cores = folders("tinyllama"), len(usable_cores())
    assert load_engine(folder, threads=1024, fewest_threads=9).threads <= cores
    assert load_engine(folder, threads=1).threads == 1
    assert load_engine(folder).threads <= cores
