"""Good small models by short names: repositories, licences, and what of their ``config.json`` tells their sizes.

`tinychat.models.architectures` has the architectures that tinychat can run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tinychat.models.architectures import parse_config
from tinychat.models.config import ModelConfig

_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
)


@dataclass(frozen=True, eq=False)
class CatalogEntry:
    """A model that is worth trying: its short name and its repository on the hub, `context` in positions.

    `sizes` are the values of the keys `_SIZES`, and `more` other keys, of ``config.json``; what neither says is as the
    family has it by default. `abilities` are those that its chat template knows: "think" before it answers, call
    "tools", "see" images, with a vision tower and a connector of `vision` bytes; or "embed" or "rank", of a model that
    does that alone. `mxfp4` : whether its experts are published in that, which is kept.
    """

    name: str
    repository: str
    licence: str
    architecture: str
    context: int
    sizes: tuple[int, ...]
    abilities: str = ""
    mxfp4: bool = False
    vision: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether it writes text."""
        return self.abilities not in (_EMBED, _RANK)

    @property
    def values(self) -> dict[str, Any]:
        """The ``config.json``, as far as sizes follow from it."""
        sizes = dict(zip(_SIZES, self.sizes, strict=True))
        return {"architectures": [self.architecture], "max_position_embeddings": self.context, **sizes, **self.more}

    @cached_property
    def config(self) -> ModelConfig:
        """The same, as `tinychat.models` has it."""
        return parse_config(self.values, self.name)


def _types(kind: str, every: int, layers: int, others: str) -> list[str]:
    """Return the types of so many layers, of which one in `every` is of a kind."""
    return [others if layer % every else kind for layer in range(1, layers + 1)]


def _granite_h(every: int, layers: int, heads: int, shared: int, experts: int = 0, used: int = 0) -> dict[str, Any]:
    """Return the keys of Granite 4.0-H: one layer in `every` has attention, an MLP of all tokens the width `shared`."""
    found = {"mamba_n_heads": heads, "shared_intermediate_size": shared, "mamba_d_state": 128}
    mixture = {"num_local_experts": experts, "num_experts_per_tok": used}
    return {**found, **mixture, "layer_types": _types("attention", every, layers, "mamba")}


def _experts(experts: int, used: int, width: int) -> dict[str, Any]:
    """Return the keys of experts behind a first layer without them."""
    return {
        **dict.fromkeys(("num_experts", "n_routed_experts"), experts),
        "num_experts_per_tok": used,
        "moe_intermediate_size": width,
        "first_k_dense_replace": 1,
    }


_LLAMA, _QWEN2, _QWEN3, _QWEN3_5 = (f"{name}ForCausalLM" for name in ("Llama", "Qwen2", "Qwen3", "Qwen3_5"))
_GRANITE_H, _FALCON_H1 = (f"{name}ForCausalLM" for name in ("GraniteMoeHybrid", "FalconH1"))
_APACHE = "Apache-2.0"
_THINK, _TOOLS, _BOTH, _EMBED, _RANK, _SEE = "think", "tools", "think, tools", "embed", "rank", "see"
_ALL, _TOOLS_SEE = f"{_BOTH}, {_SEE}", f"{_TOOLS}, {_SEE}"
# Rows of a table.
# fmt: off
_ENTRIES = (
    CatalogEntry("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", _APACHE, _LLAMA, 8192,
        (30, 576, 9, 3, 64, 1536, 49152, True)),
    CatalogEntry("smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct", _APACHE, _LLAMA, 8192,
        (30, 576, 9, 3, 64, 1536, 49280, False), _SEE, vision=121_000_000),
    CatalogEntry("gemma3-270m", "google/gemma-3-270m-it", "Gemma", "Gemma3ForCausalLM", 32768,
        (18, 640, 4, 1, 256, 2048, 262144, True)),
    CatalogEntry("granite4-h-350m", "ibm-granite/granite-4.0-h-350m", _APACHE, _GRANITE_H, 32768,
        (32, 768, 12, 4, 64, 2048, 100352, True), _TOOLS, more=_granite_h(8, 32, 48, 2048)),
    CatalogEntry("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", _APACHE, _LLAMA, 8192,
        (32, 960, 15, 5, 64, 2560, 49152, True)),
    CatalogEntry("smolvlm-500m", "HuggingFaceTB/SmolVLM-500M-Instruct", _APACHE, _LLAMA, 8192,
        (32, 960, 15, 5, 64, 2560, 49280, False), _SEE, vision=139_000_000),
    CatalogEntry("falcon-h1-0.5b", "tiiuae/Falcon-H1-0.5B-Instruct", "Falcon", _FALCON_H1, 16384,
        (36, 1024, 8, 2, 64, 2048, 32784, False),
        more={"mamba_n_heads": 24, "mamba_d_ssm": 1536, "mamba_d_state": 128}),
    CatalogEntry("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", _APACHE, _QWEN2, 32768,
        (24, 896, 14, 2, 64, 4864, 151936, True), _TOOLS),
    CatalogEntry("qwen3-0.6b", "Qwen/Qwen3-0.6B", _APACHE, _QWEN3, 40960,
        (28, 1024, 16, 8, 128, 3072, 151936, True), _BOTH),
    CatalogEntry("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", _APACHE, _QWEN3_5, 262144,
        (24, 1024, 8, 2, 256, 3584, 248320, True), _ALL, vision=146_000_000, more={"linear_num_value_heads": 16}),
    CatalogEntry("gemma3-1b", "google/gemma-3-1b-it", "Gemma", "Gemma3ForCausalLM", 32768,
        (26, 1152, 4, 1, 256, 6912, 262144, True)),
    CatalogEntry("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", _APACHE, _LLAMA, 2048,
        (22, 2048, 32, 4, 64, 5632, 32000, False)),
    CatalogEntry("llama3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2", _LLAMA, 131072,
        (16, 2048, 32, 8, 64, 8192, 128256, True), _TOOLS),
    CatalogEntry("granite4-h-1b", "ibm-granite/granite-4.0-h-1b", _APACHE, _GRANITE_H, 131072,
        (40, 1536, 12, 4, 128, 4096, 100352, True), _TOOLS, more=_granite_h(10, 40, 48, 4096)),
    CatalogEntry("olmo2-1b", "allenai/OLMo-2-0425-1B-Instruct", _APACHE, "Olmo2ForCausalLM", 4096,
        (16, 2048, 16, 16, 128, 8192, 100352, False)),
    CatalogEntry("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", _APACHE, _QWEN2, 32768,
        (28, 1536, 12, 2, 128, 8960, 151936, True), _TOOLS),
    CatalogEntry("qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", _APACHE, _QWEN2, 32768,
        (28, 1536, 12, 2, 128, 8960, 151936, True), _TOOLS),
    CatalogEntry("deepseek-r1-1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "MIT", _QWEN2, 131072,
        (28, 1536, 12, 2, 128, 8960, 151936, False), _THINK),
    CatalogEntry("smolvlm-2.2b", "HuggingFaceTB/SmolVLM-Instruct", _APACHE, _LLAMA, 16384,
        (24, 2048, 32, 32, 64, 8192, 49155, False), _SEE, vision=520_000_000),
    CatalogEntry("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _APACHE, _LLAMA, 8192,
        (24, 2048, 32, 32, 64, 8192, 49152, True)),
    CatalogEntry("qwen3-1.7b", "Qwen/Qwen3-1.7B", _APACHE, _QWEN3, 40960,
        (28, 2048, 16, 8, 128, 6144, 151936, True), _BOTH),
    CatalogEntry("north-micro-vision", "CohereLabs/North-Micro-Vision-Instruct", _APACHE, "CohereCompassForCausalLM",
        500000, (28, 2048, 16, 8, 128, 6144, 262144, True), more={"sliding_window": 4096,
            "layer_types": _types("full_attention", 4, 28, "sliding_attention")}),
    CatalogEntry("granite3.2-2b", "ibm-granite/granite-3.2-2b-instruct", _APACHE, "GraniteForCausalLM", 131072,
        (40, 2048, 32, 8, 64, 8192, 49155, True), _BOTH),
    CatalogEntry("gemma2-2b", "google/gemma-2-2b-it", "Gemma", "Gemma2ForCausalLM", 8192,
        (26, 2304, 8, 4, 256, 9216, 256000, True)),
    CatalogEntry("smollm3-3b", "HuggingFaceTB/SmolLM3-3B", _APACHE, "SmolLM3ForCausalLM", 65536,
        (36, 2048, 16, 4, 128, 11008, 128256, True), _BOTH),
    CatalogEntry("gemma3n-e2b", "google/gemma-3n-E2B-it", "Gemma", "Gemma3nForCausalLM", 32768,
        (30, 2048, 8, 2, 256, 8192, 262400, True), more={"num_kv_shared_layers": 10}),
    CatalogEntry("gemma4-e2b", "google/gemma-4-E2B-it", _APACHE, "Gemma4ForCausalLM", 131072,
        (35, 1536, 8, 1, 256, 6144, 262144, True), _TOOLS_SEE, vision=167_000_000,
        more={"num_kv_shared_layers": 20, "use_double_wide_mlp": True,
            "layer_types": _types("full_attention", 5, 35, "sliding_attention")}),
    CatalogEntry("llama3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", "Llama 3.2", _LLAMA, 131072,
        (28, 3072, 24, 8, 128, 8192, 128256, True), _TOOLS),
    CatalogEntry("granite4-h-micro", "ibm-granite/granite-4.0-h-micro", _APACHE, _GRANITE_H, 131072,
        (40, 2048, 32, 8, 64, 8192, 100352, True), _TOOLS, more=_granite_h(10, 40, 64, 8192)),
    CatalogEntry("phi3.5-mini", "microsoft/Phi-3.5-mini-instruct", "MIT", "Phi3ForCausalLM", 131072,
        (32, 3072, 32, 32, 96, 8192, 32064, False)),
    CatalogEntry("phi4-mini", "microsoft/Phi-4-mini-instruct", "MIT", "Phi3ForCausalLM", 131072,
        (32, 3072, 24, 8, 128, 8192, 200064, True), _TOOLS),
    CatalogEntry("qwen3-4b", "Qwen/Qwen3-4B-Instruct-2507", _APACHE, _QWEN3, 262144,
        (36, 2560, 32, 8, 128, 9728, 151936, True), _TOOLS),
    CatalogEntry("gemma3n-e4b", "google/gemma-3n-E4B-it", "Gemma", "Gemma3nForCausalLM", 32768,
        (35, 2048, 8, 2, 256, 16384, 262400, True)),
    CatalogEntry("gemma4-e4b", "google/gemma-4-E4B-it", _APACHE, "Gemma4ForCausalLM", 131072,
        (42, 2560, 8, 2, 256, 10240, 262144, True), _TOOLS_SEE, vision=170_000_000, more={"num_kv_shared_layers": 18}),
    CatalogEntry("qwen3.5-4b", "Qwen/Qwen3.5-4B", _APACHE, _QWEN3_5, 262144,
        (32, 2560, 16, 4, 256, 9216, 248320, True), _ALL, vision=433_000_000),
    CatalogEntry("granite4-h-tiny", "ibm-granite/granite-4.0-h-tiny", _APACHE, _GRANITE_H, 131072,
        (40, 1536, 12, 4, 128, 512, 100352, True), _TOOLS, more=_granite_h(10, 40, 48, 1024, 64, 6)),
    CatalogEntry("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", _APACHE, "MistralForCausalLM", 32768,
        (32, 4096, 32, 8, 128, 14336, 32768, False), _TOOLS),
    CatalogEntry("falcon-h1-7b", "tiiuae/Falcon-H1-7B-Instruct", "Falcon", _FALCON_H1, 262144,
        (44, 3072, 12, 2, 128, 12288, 130048, False), more={"mamba_n_heads": 24, "mamba_d_ssm": 3072}),
    CatalogEntry("qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B-Instruct", _APACHE, _QWEN2, 32768,
        (28, 3584, 28, 4, 128, 18944, 152064, False), _TOOLS),
    CatalogEntry("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1", _LLAMA, 131072,
        (32, 4096, 32, 8, 128, 14336, 128256, False), _TOOLS),
    CatalogEntry("qwen3-8b", "Qwen/Qwen3-8B", _APACHE, _QWEN3, 40960,
        (36, 4096, 32, 8, 128, 12288, 151936, False), _BOTH),
    CatalogEntry("qwen3.5-9b", "Qwen/Qwen3.5-9B", _APACHE, _QWEN3_5, 262144,
        (32, 4096, 16, 4, 256, 12288, 248320, False), _ALL, vision=599_000_000),
    CatalogEntry("moonlight-16b-a3b", "moonshotai/Moonlight-16B-A3B-Instruct", "MIT", "DeepseekV3ForCausalLM", 8192,
        (27, 2048, 16, 16, 192, 11264, 163840, False),
        more=_experts(64, 6, 1408) | {"n_group": 1, "topk_group": 1, "n_shared_experts": 2, "q_lora_rank": None}),
    CatalogEntry("ling-mini-2.0", "inclusionAI/Ling-mini-2.0", "MIT", "BailingMoeV2ForCausalLM", 32768,
        (20, 2048, 16, 4, 128, 5120, 157184, False), _TOOLS, more=_experts(256, 8, 512)),
    CatalogEntry("gpt-oss-20b", "openai/gpt-oss-20b", _APACHE, "GptOssForCausalLM", 131072,
        (24, 2880, 64, 8, 64, 2880, 201088, False), _BOTH, mxfp4=True, more={"num_local_experts": 32}),
    CatalogEntry("muse-glimmer-30b", "meta-models/Muse-Glimmer-30B", _APACHE, "MuseGlimmerForCausalLM", 131072,
        (52, 6656, 32, 2, 128, 19968, 202048, False), _BOTH),
    CatalogEntry("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507", _APACHE, "Qwen3MoeForCausalLM", 262144,
        (48, 2048, 32, 4, 128, 768, 151936, False), _TOOLS),
    CatalogEntry("north-mini-code", "CohereLabs/North-Mini-Code-1.0", _APACHE, "Cohere2MoeForCausalLM", 500000,
        (49, 2048, 32, 4, 128, 768, 262144, True), more={"prefix_dense_intermediate_size": 3072,
            "expert_selection_fn": "sigmoid", **_experts(128, 8, 768)}),
    CatalogEntry("nemotron3-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NVIDIA Open Model",
        "NemotronHForCausalLM", 262144, (52, 2688, 32, 2, 128, 1856, 131072, False), _BOTH,
        more={"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mamba_num_heads": 64,
            "moe_shared_expert_intermediate_size": 3712, **_experts(128, 6, 1856)}),
    CatalogEntry("granite4-h-small", "ibm-granite/granite-4.0-h-small", _APACHE, _GRANITE_H, 131072,
        (40, 4096, 32, 8, 128, 768, 100352, True), _TOOLS, more=_granite_h(10, 40, 128, 1536, 72, 10)),
    CatalogEntry("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", _APACHE, "Qwen3_5MoeForCausalLM", 262144,
        (40, 2048, 16, 2, 256, 512, 248320, False), _ALL, vision=561_000_000),
    CatalogEntry("kimi-linear-48b-a3b", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "MIT", "KimiLinearForCausalLM",
        1048576, (27, 2304, 32, 32, 192, 9216, 163840, False), _TOOLS,
        more={"layer_types": [*_types("full_attention", 4, 26, "linear_attention"), "full_attention"]}),
    CatalogEntry("all-minilm", "sentence-transformers/all-MiniLM-L6-v2", _APACHE, "BertModel", 512,
        (6, 384, 12, 12, 32, 1536, 30522, True), _EMBED),
    CatalogEntry("nomic-embed-text", "nomic-ai/nomic-embed-text-v1.5", _APACHE, "NomicBertModel", 2048,
        (12, 768, 12, 12, 64, 3072, 30528, True), _EMBED),
    CatalogEntry("embeddinggemma", "google/embeddinggemma-300m", "Gemma", "Gemma3ForCausalLM", 2048,
        (24, 768, 3, 1, 256, 1152, 262144, True), _EMBED),
    CatalogEntry("embeddinggemma-2", "google/embeddinggemma-2", _APACHE, "EmbeddingGemma2TextModel", 8192,
        (24, 512, 4, 2, 256, 2048, 262144, True), _EMBED, more={"max_position_embeddings": 262144}),
    CatalogEntry("mxbai-embed-large", "mixedbread-ai/mxbai-embed-large-v1", _APACHE, "BertModel", 512,
        (24, 1024, 16, 16, 64, 4096, 30522, True), _EMBED),
    CatalogEntry("bge-m3", "BAAI/bge-m3", "MIT", "XLMRobertaModel", 8192,
        (24, 1024, 16, 16, 64, 4096, 250002, True), _EMBED, more={"max_position_embeddings": 8194}),
    CatalogEntry("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B", _APACHE, _QWEN3, 32768,
        (28, 1024, 16, 8, 128, 3072, 151669, True), _EMBED),
    CatalogEntry("ms-marco-minilm", "cross-encoder/ms-marco-MiniLM-L6-v2", _APACHE, "BertModel", 512,
        (6, 384, 12, 12, 32, 1536, 30522, True), _RANK),
    CatalogEntry("gte-reranker-modernbert", "Alibaba-NLP/gte-reranker-modernbert-base", _APACHE, "ModernBertModel",
        8192, (22, 768, 12, 12, 64, 1152, 50368, True), _RANK),
    CatalogEntry("bge-reranker-v2-m3", "BAAI/bge-reranker-v2-m3", _APACHE, "XLMRobertaModel", 8192,
        (24, 1024, 16, 16, 64, 4096, 250002, True), _RANK, more={"max_position_embeddings": 8194}),
)
# fmt: on
CATALOG: Mapping[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}
