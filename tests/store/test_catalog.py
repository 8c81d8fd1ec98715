"""The catalog's shapes against the formulas that real configurations go through, and its names wherever MODEL is."""

from dataclasses import replace

import pytest
from console import Console

from tinychat.conversion.pipeline import weight_count
from tinychat.engine.blocks import bytes_per_position
from tinychat.engine.states import sequence_state_bytes
from tinychat.models.architectures import parse_config, supported_families
from tinychat.models.shapes import config_of
from tinychat.store import estimates
from tinychat.store.catalog import CATALOG
from tinychat.store.estimates import PROGRAM_BYTES, disk_bytes, memory_bandwidth, memory_bytes_needed, tokens_per_second
from tinychat.store.local import store_folder
from tinychat.store.names import catalogued, find, known_names


def at(speed):
    """Return a bandwidth that is the same for any size."""
    return lambda size: speed


@pytest.mark.parametrize("name", ["smollm2-135m", "tinyllama-1.1b", "qwen3.5-0.8b", "gemma3n-e2b", "gemma4-e2b"])
def test_shapes_that_are_known_elsewhere_are_the_same(name):
    assert CATALOG[name].shape.weights == weight_count(parse_config(config_of(name), name))


def test_states_count_in_memory_and_rate():
    entry = CATALOG["qwen3.5-0.8b"]
    config = parse_config(config_of(entry.name), entry.name)
    cache = memory_bytes_needed(entry) - disk_bytes(entry) - PROGRAM_BYTES
    assert cache == 8192 * bytes_per_position(config, "bf16") + sequence_state_bytes(config, 8192)
    stateless = replace(entry, shape=replace(entry.shape, delta=None))
    assert tokens_per_second(entry, at(40)) < tokens_per_second(stateless, at(40)) * 1.05
    shapes = [CATALOG[f"qwen3.5-{size}"].shape for size in ("4b", "9b", "35b-a3b")]
    assert [round(shape.weights / 1e9, 1) for shape in shapes] == [4.2, 9.0, 34.6]


def test_models_with_mamba_have_the_sizes_that_they_are_published_with():
    entries = [entry for entry in CATALOG.values() if entry.shape.scan]
    assert {entry.name: round(entry.shape.weights / 1e8) / 10 for entry in entries} == {
        "granite4-h-350m": 0.3,
        "falcon-h1-0.5b": 0.5,
        "granite4-h-1b": 1.5,
        "granite4-h-micro": 3.2,
        "granite4-h-tiny": 6.9,
        "falcon-h1-7b": 7.6,
        "nemotron3-nano": 31.6,
        "granite4-h-small": 32.2,
    }
    assert round(CATALOG["nemotron3-nano"].shape.weights_per_token / 1e9, 1) == 3.2
    config = parse_config(config_of("granite-4.0-h-1b"), "test")
    entry = CATALOG["granite4-h-1b"]
    assert entry.shape.weights == weight_count(config)
    cache = memory_bytes_needed(entry) - disk_bytes(entry) - PROGRAM_BYTES
    assert cache == 8192 * bytes_per_position(config, "bf16") + sequence_state_bytes(config, 8192)


def test_what_is_looked_up_stays_on_the_disk():
    small, large = (CATALOG[f"gemma4-e{size}b"] for size in (2, 4))
    assert [round(entry.shape.weights / 1e9, 1) for entry in (small, large)] == [4.6, 7.5]
    assert [round((entry.shape.weights - entry.shape.looked_up) / 1e9, 1) for entry in (small, large)] == [2.3, 4.6]
    others = {"num_hidden_layers": 42, "hidden_size": 2560, "intermediate_size": 10240, "use_double_wide_mlp": False}
    others |= {"num_kv_shared_layers": 18, "num_key_value_heads": 2, "layer_types": None}
    for entry, changes in ((small, {}), (large, others)):
        config = parse_config(config_of("gemma4-e2b") | changes, "test")
        assert entry.shape.weights == weight_count(config)
        assert entry.shape.cache_numbers == bytes_per_position(config, "bf16") // 2
        assert memory_bytes_needed(entry) < disk_bytes(entry)


def test_the_larger_gemma_3n_has_the_weights_of_its_configuration():
    changes = {"num_hidden_layers": 35, "intermediate_size": 16384, "num_kv_shared_layers": 15}
    for name, others, billions in (("gemma3n-e2b", {}, 4.4), ("gemma3n-e4b", changes, 6.8)):
        shape, config = CATALOG[name].shape, parse_config(config_of("gemma3n-e2b") | others, "test")
        assert shape.weights == weight_count(config)
        assert round(shape.weights / 1e9, 1) == billions
        assert shape.cache_numbers == bytes_per_position(config, "bf16") // 2


# As their makers published them, but for what is the same in all of the family.
MOONLIGHT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "vocab_size": 163840,
}
KIMI_LINEAR = {
    "architectures": ["KimiLinearForCausalLM"],
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "mla_use_nope": True,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32},
    "tie_word_embeddings": False,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("name", "published", "experts"),
    [("moonlight-16b-a3b", MOONLIGHT, 64), ("kimi-linear-48b-a3b", KIMI_LINEAR, 256)],
)
def test_latent_attention_has_the_weights_and_the_cache_of_its_configuration(name, published, experts):
    entry, config = CATALOG[name], parse_config(published, name)
    routers = 26 * experts * entry.shape.hidden
    assert entry.shape.weights + routers == weight_count(config)
    assert entry.context == config.max_position_embeddings
    cache = memory_bytes_needed(entry) - disk_bytes(entry) - PROGRAM_BYTES
    assert cache == 8192 * bytes_per_position(config, "bf16") + sequence_state_bytes(config, 8192)
    assert round(entry.shape.weights_per_token / 1e9, 1) in (2.6, 3.1)


def test_the_weights_of_mixtures_are_those_that_they_are_named_for():
    shape = CATALOG["qwen3-30b-a3b"].shape
    assert (round(shape.weights / 1e9, 1), round(shape.weights_per_token / 1e9, 1)) == (30.5, 3.0)
    assert round(CATALOG["gpt-oss-20b"].shape.weights / 1e9, 1) == 20.9


def test_experts_that_are_kept_beside_eight_bits_count_as_such():
    """As `tinychat bench --random gpt-oss-20b` makes them: 11,570 MiB, of which a token reads 2.58 GB."""
    entry = CATALOG["gpt-oss-20b"]
    assert disk_bytes(entry) == pytest.approx(11_570 * 2**20, rel=0.01)
    read = 0.87 * 40e9 * (1 / tokens_per_second(entry, lambda _: 40.0) - entry.shape.parts * 25e-6)
    assert read == pytest.approx(2.58e9, rel=0.01)


def test_every_model_is_of_a_family_that_is_supported():
    assert {entry.architecture for entry in CATALOG.values()} <= set(supported_families())


def test_rates_follow_the_bytes_that_a_token_reads():
    small, large, tied = (CATALOG[name] for name in ("smollm2-135m", "llama3.1-8b", "qwen3-8b"))
    # The measured rates of docs/benchmarks.md, on a machine that read 38.6 GB/s.
    assert tokens_per_second(small, at(38.6)) == pytest.approx(306, rel=0.15)
    assert tokens_per_second(CATALOG["tinyllama-1.1b"], at(38.6)) == pytest.approx(54, rel=0.15)
    assert tokens_per_second(large, at(20)) < 2 * tokens_per_second(large, at(10))
    # An embedding of its own is not read.
    assert tied.shape.weights - tied.shape.weights_per_token == tied.shape.vocab * tied.shape.hidden


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
