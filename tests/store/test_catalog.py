"""The catalog's sizes against those of configurations and of conversions, and its names wherever MODEL is."""

import json

import pytest
from console import Console

from tinychat.conversion.pipeline import Recipe, fitted
from tinychat.engine.blocks import bytes_per_position, sequence_bytes
from tinychat.engine.states import state_bytes
from tinychat.models.architectures import linears, parse_config, supported_families, weight_count
from tinychat.models.layout import tensor_specs
from tinychat.models.shapes import config_of
from tinychat.store import estimates
from tinychat.store.catalog import CATALOG, CatalogEntry
from tinychat.store.estimates import PROGRAM_BYTES, disk_bytes, memory_bandwidth, memory_bytes_needed, tokens_per_second
from tinychat.store.local import store_folder
from tinychat.store.names import catalogued, find, known_names


def at(speed):
    """Return a bandwidth that is the same for any size."""
    return lambda size: speed


# Those of Llama's build.
DENSE = [f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")]


@pytest.mark.parametrize("name", ["smollm2-135m", "tinyllama-1.1b", "qwen3.5-0.8b", "gemma3n-e2b", "gemma4-e2b"])
def test_sizes_that_are_known_elsewhere_are_the_same(name):
    config = parse_config(config_of(name), name)
    assert weight_count(CATALOG[name].config) == weight_count(config)
    assert bytes_per_position(CATALOG[name].config, "bf16") == bytes_per_position(config, "bf16")


@pytest.mark.parametrize(
    "entry",
    [entry for entry in CATALOG.values() if entry.architecture in DENSE or not entry.writes],
    ids=lambda e: e.name,
)
def test_a_converted_model_has_the_size_that_is_estimated(entry):
    recipe = Recipe() if entry.writes else Recipe("int8", check=False)
    made = sum(spec.bytes for spec in tensor_specs(entry.config, fitted(entry.config, recipe)).values())
    assert made + entry.vision == pytest.approx(disk_bytes(entry), rel=0.06)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)
def test_memory_has_the_cache_of_a_full_context_and_its_states(entry):
    config, in_memory = entry.config, disk_bytes(entry)
    if config.varied and config.varied.input_ids:
        in_memory = memory_bytes_needed(entry) - sequence_bytes(config, "bf16", 8192) - PROGRAM_BYTES
        assert in_memory < disk_bytes(entry)
    cache = memory_bytes_needed(entry) - in_memory - PROGRAM_BYTES
    assert cache == sequence_bytes(config, "bf16", min(entry.context, 8192))


def billions(*names):
    """Return the weights of models, in 1e9."""
    return [round(weight_count(CATALOG[name].config) / 1e9, 1) for name in names]


def test_models_have_the_sizes_that_they_are_published_with():
    granite = [f"granite4-h-{size}" for size in ("350m", "1b", "micro", "tiny", "small")]
    assert billions(*granite) == [0.3, 1.5, 3.2, 6.9, 32.2]
    assert billions("falcon-h1-0.5b", "falcon-h1-7b", "nemotron3-nano") == [0.5, 7.6, 31.6]
    assert billions("qwen3.5-4b", "qwen3.5-9b", "qwen3.5-35b-a3b") == [4.2, 9.0, 34.7]
    assert billions("gemma3n-e2b", "gemma3n-e4b", "gemma4-e2b", "gemma4-e4b") == [4.4, 6.8, 4.6, 7.5]
    assert billions("moonlight-16b-a3b", "gpt-oss-20b", "qwen3-30b-a3b") == [16.0, 20.9, 30.5]
    assert billions("kimi-linear-48b-a3b") == [49.1]
    # Without what sees images.
    assert billions("north-micro-vision", "muse-glimmer-30b", "north-mini-code") == [1.9, 27.9, 30.5]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("north-mini-code", 3.3),
        ("nemotron3-nano", 3.2),
        ("moonlight-16b-a3b", 2.6),
        ("kimi-linear-48b-a3b", 3.1),
        ("qwen3-30b-a3b", 3.0),
    ],
)
def test_a_token_reads_the_experts_that_it_chooses(name, read):
    entry = CATALOG[name]
    states = 2 * state_bytes(entry.config)
    assert read_bytes(entry) == pytest.approx(4.5 / 8 * read * 1e9 + states, rel=0.03)


def read_bytes(entry):
    """Return the bytes that a token reads, by the rate at 40 GB/s."""
    experts = entry.config.experts
    parts = len(entry.config.layer_runs) + len(entry.config.state_layers) + len(experts.layers if experts else ())
    return 0.87 * 40e9 * (1 / tokens_per_second(entry, at(40)) - parts * 25e-6)


def test_layers_are_read_as_often_as_they_run():
    more = {"n_input_layers": 8, "n_output_layers": 8}
    sizes = (36, 2560, 16, 4, 256, 7168, 131072, False)
    once, twice, four_times = (
        CatalogEntry("looped", "a/b", "", "DoryForCausalLM", 8192, sizes, more={**more, "n_recurrent_loops": count})
        for count in (1, 2, 4)
    )
    assert disk_bytes(once) == disk_bytes(four_times)
    rates = [tokens_per_second(entry, at(40)) for entry in (once, twice, four_times)]
    assert 1 / rates[2] - 1 / rates[1] == pytest.approx(2 * (1 / rates[1] - 1 / rates[0]))
    layer = sum(linear.weights for linear in linears(once.config) if linear.layers) / 36
    assert read_bytes(twice) - read_bytes(once) == pytest.approx(20 * layer * 4.5 / 8, rel=0.001)
    cache = [sequence_bytes(entry.config, "bf16", 8192) for entry in (once, twice)]
    needed = memory_bytes_needed(twice) - memory_bytes_needed(once)
    assert needed == pytest.approx(cache[1] - cache[0]) and cache[1] / cache[0] == pytest.approx(56 / 36, rel=0.01)


def test_a_state_is_read_and_written():
    config = CATALOG["qwen3.5-0.8b"].config
    assert read_bytes(CATALOG["qwen3.5-0.8b"]) == pytest.approx(
        weight_count(config) * 4.5 / 8 + 2 * state_bytes(config)
    )


def test_experts_that_are_kept_beside_eight_bits_count_as_such():
    """As `tinychat bench --random gpt-oss-20b` makes them: 11,570 MiB, of which a token reads 2.58 GB."""
    entry = CATALOG["gpt-oss-20b"]
    assert disk_bytes(entry) == pytest.approx(11_570 * 2**20, rel=0.01)
    assert read_bytes(entry) == pytest.approx(2.58e9, rel=0.01)


def test_every_model_is_of_a_family_that_is_supported():
    assert {entry.architecture for entry in CATALOG.values()} <= set(supported_families())


def test_rates_follow_the_bytes_that_a_token_reads():
    small, large, own = (CATALOG[name] for name in ("smollm2-135m", "llama3.1-8b", "qwen3-8b"))
    # The measured rates of docs/benchmarks.md, on a machine that read 38.6 GB/s.
    assert tokens_per_second(small, at(38.6)) == pytest.approx(306, rel=0.15)
    assert tokens_per_second(CATALOG["tinyllama-1.1b"], at(38.6)) == pytest.approx(54, rel=0.15)
    assert tokens_per_second(large, at(20)) < 2 * tokens_per_second(large, at(10))
    # An embedding of its own is not read.
    embedding = own.config.vocab_size * own.config.hidden_size
    assert read_bytes(own) == pytest.approx(disk_bytes(own) - embedding * 4.5 / 8)


def test_what_a_cache_holds_is_read_faster():
    small, large = CATALOG["smollm2-135m"], CATALOG["tinyllama-1.1b"]
    cached = lambda size: 60 if size < 100e6 else 30  # noqa: E731
    assert tokens_per_second(small, cached) > 1.4 * tokens_per_second(small, at(30))
    assert tokens_per_second(large, cached) == tokens_per_second(large, at(30))


def test_the_memory_of_this_machine_is_measured():
    assert 0.1 < memory_bandwidth(8 << 20) < 10_000


def add_model(name):
    (store_folder() / name).mkdir(parents=True)
    (store_folder() / name / "tinychat.json").write_text("{}")


def test_a_short_name_is_a_repository_until_it_is_converted():
    reference = find("qwen3-0.6b")
    assert (reference.kind, reference.source) == ("repository", "Qwen/Qwen3-0.6B")
    assert reference.path.name == "qwen3-0.6b"
    add_model("Qwen--Qwen3-0.6B")
    assert catalogued("qwen3-0.6b").path.name == "Qwen--Qwen3-0.6B"
    add_model("qwen3-0.6b")
    assert find("qwen3-0.6b").path.name == "qwen3-0.6b"


def test_a_name_that_is_nearly_one_of_the_catalog_is_suggested():
    with pytest.raises(Exception, match=r"did you mean 'qwen3-0\.6b'"):
        find("qwen3-0.6")


def test_names_that_can_be_completed():
    add_model("mine")
    names = known_names()
    assert names[0] == "mine"
    assert "qwen3-0.6b" in names
    assert set(names) == {"mine", *CATALOG}


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(None, monkeypatch, capsys)


@pytest.fixture
def bandwidth(monkeypatch):
    monkeypatch.setattr(estimates, "memory_bandwidth", lambda size=0: 10.0)
    monkeypatch.setattr(estimates, "cores_become_free", lambda: True)


@pytest.mark.usefixtures("bandwidth")
def test_the_table(console, monkeypatch):
    monkeypatch.setattr("tinychat.machine.available_memory_bytes", lambda: 4 << 30)
    add_model("qwen3-0.6b")
    code, out, err = console.run("models", "--available")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines.keys() == {"NAME", *CATALOG}
    assert "Qwen/Qwen3-0.6B" in lines["qwen3-0.6b"]
    assert "~25 tok/s, stored" in lines["qwen3-0.6b"]
    assert "Apache-2.0" in lines["qwen3-0.6b"]
    assert "not enough free memory" in lines["llama3.1-8b"]
    assert err.startswith("estimates for int4, with 10.0 GB/s of memory bandwidth measured now; ")
    monkeypatch.setattr(estimates, "cores_become_free", lambda: False)
    err = console.run("models", "--available")[2]
    assert "measured while other programs used the cores: they are too low; " in err


@pytest.mark.usefixtures("bandwidth")
def test_the_same_as_json(console, monkeypatch):
    monkeypatch.setattr("tinychat.machine.available_memory_bytes", lambda: 4 << 30)
    add_model("qwen3-0.6b")
    code, out, err = console.run("models", "--available", "--json")
    offers = {offer["name"]: offer for offer in map(json.loads, out.splitlines())}
    assert (code, offers.keys(), err.startswith("estimates for int4")) == (0, CATALOG.keys(), True)
    small, large, encoder = (offers[name] for name in ("qwen3-0.6b", "llama3.1-8b", "bge-m3"))
    assert (small["fits"], small["stored"], small["tokens_per_second"]) == (True, True, 25)
    assert (small["abilities"], small["context"]) == (["think", "tools"], 40960)
    assert small["disk_bytes"] == estimates.disk_bytes(CATALOG["qwen3-0.6b"])
    assert (large["fits"], large["stored"], large["tokens_per_second"]) == (False, False, None)
    assert (encoder["abilities"], encoder["tokens_per_second"]) == (["embed"], None)


@pytest.mark.parametrize(
    ("seen", "are_free"), [([1], True), ([0, 0, 2], True), ([None], True), ([0, 0, 0, 0, 0, 1], False), ([0, 1], True)]
)
def test_free_cores_are_waited_for(seen, are_free, monkeypatch):
    now, free = iter(range(100)), iter(seen)
    monkeypatch.setattr(estimates, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(estimates, "free_cores", lambda: next(free))
    monkeypatch.setattr(estimates, "monotonic", lambda: next(now))
    monkeypatch.setattr(estimates, "sleep", lambda seconds: None)
    assert estimates.cores_become_free(3) is are_free


@pytest.mark.parametrize(
    ("words", "expected"), [("tinychat pull qwen3-0", "qwen3-0.6b"), ("tinychat chat my-o", "my-own")]
)
def test_a_shell_completes_names(words, expected, console, monkeypatch):
    add_model("my-own")
    for name, value in {"_TINYCHAT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    code, out, _ = console.run()
    assert (code, out) == (0, f"plain,{expected}\n")
