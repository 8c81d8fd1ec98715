"""Good small models by short names: their repositories, licences and shapes, as their own ``config.json`` says.

`tinychat.models.architectures` has the architectures that tinychat can run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Width of the heads of Gated DeltaNet.
_DELTA_WIDTH = 128


@dataclass(frozen=True, slots=True)
class Scan:
    """The numbers that the weights of Mamba-2 follow from: how many layers have it, and its heads, groups and state."""

    layers: int
    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def channels(self) -> int:
        """Number of channels of values, keys and queries."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    def weights(self, hidden: int) -> int:
        """Number of weights of all layers."""
        values = self.heads * self.head_dim
        return self.layers * hidden * (self.channels + 2 * values + self.heads)

    @property
    def state_numbers(self) -> int:
        """Numbers of a state of a sequence."""
        return self.layers * (self.heads * self.head_dim * self.state + 3 * self.channels)


@dataclass(frozen=True, slots=True)
class Latent:
    """The numbers that the weights of latent attention follow from: the latent, and a head's keys, rotated and not."""

    size: int
    plain: int
    rotated: int
    values: int

    def weights(self, hidden: int, heads: int) -> int:
        """Number of weights of a layer: queries, latents, keys and values of them, and the output."""
        queries = heads * (self.plain + self.rotated) * hidden
        inputs = queries + (self.size + self.rotated) * hidden
        return inputs + heads * (self.plain + self.values) * self.size + heads * self.values * hidden


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that a transformer's weights follow from.

    `mlp` is the width of one expert, `tied` models have no output matrix. `experts` is 1 where all of a layer's MLP is
    always used; a token goes through `used_experts` of each layer, and one that all tokens pass, `shared_mlp` wide. Of
    Qwen3.5, `delta` are the heads of keys and of values of layers with Gated DeltaNet; each fourth layer has attention,
    whose output has gates. Of Gemma 4, each layer of number `period` has heads of twice the size, the last `readers`
    layers read keys and values of others, with an MLP `reader_mlp` wide, and `inputs` is the size of a token's
    embedding for each layer. Gemma 3n has embeddings of `input_ids` ids, LAuReL of `laurel` columns, and four residual
    streams. Where layers differ in kind, `attending` is how many have attention, and `mlps` how many an MLP, of so many
    `matrices`. Of DeepSeek-V3, attention is by `latent`; with `delta` besides, it is Kimi Linear, and these are its
    heads of Kimi Delta Attention. With `first_mlp`, the first layer has an MLP of that width, no experts.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied: bool
    experts: int = 1
    used_experts: int = 1
    shared_mlp: int = 0
    delta: tuple[int, int] | None = None
    period: int = 0
    readers: int = 0
    reader_mlp: int = 0
    inputs: int = 0
    scan: Scan | None = None
    attending: int = 0
    mlps: int = 0
    matrices: int = 3
    input_ids: int = 0
    laurel: int = 0
    latent: Latent | None = None
    first_mlp: int = 0

    @property
    def weights(self) -> int:
        """Number of weights, without those of norms and biases."""
        return self._inside(self.experts) + self._table * (1 if self.tied else 2) + self.looked_up

    @property
    def weights_per_token(self) -> int:
        """Number of weights that one more token needs: one row of the embedding counts for nothing."""
        return self._inside(self.used_experts) + self._table

    def expert_weights(self, experts: int) -> int:
        """Return the weights of so many experts of each layer."""
        return self._inside(experts) - self._inside(0)

    @property
    def looked_up(self) -> int:
        """Number of weights of the embeddings for each layer, which stay on the disk."""
        return (self.input_ids or self.vocab) * self.layers * self.inputs

    @property
    def cache_numbers(self) -> int:
        """Number of keys and values of a position of the KV cache."""
        owners = self._attending - self.readers
        if self.latent:
            # The latent is in both.
            return owners * (2 * self.latent.size + self.latent.rotated)
        return 2 * (owners + self._wide(owners)) * self.kv_heads * self.head_dim

    @property
    def state_numbers(self) -> int:
        """Numbers of a state of a sequence: matrices of the heads of values, and the last inputs of convolutions."""
        if self.scan:
            return self.scan.state_numbers
        keys, values = self.delta or (0, 0)
        return self._delta_layers * (values * _DELTA_WIDTH**2 + 3 * (2 * keys + values) * _DELTA_WIDTH)

    @property
    def parts(self) -> int:
        """Number of layers; those with a state or experts count twice, those with both three times."""
        states = self.scan.layers if self.scan else self._delta_layers
        return self.layers + states + (0 if self.experts == 1 else self.mlps or self.layers)

    @property
    def _table(self) -> int:
        return self.vocab * self.hidden

    @property
    def _attending(self) -> int:
        return self.attending or self.layers - self._delta_layers

    @property
    def _delta_layers(self) -> int:
        return self.layers - (self.attending or self.layers // 4) if self.delta else 0

    @property
    def _mixers(self) -> int:
        """Number of weights of attention, Gated DeltaNet and Mamba-2 in all layers."""
        keys, values = self.delta or (0, 0)
        gates = self.heads * self.head_dim * self.hidden if self.delta else 0
        queries, keys_and_values = (2 * heads * self.head_dim * self.hidden for heads in (self.heads, self.kv_heads))
        # Queries, keys, values, gates and output; two numbers of each head of values.
        delta = (2 * keys + 3 * values) * _DELTA_WIDTH * self.hidden + 2 * values * self.hidden
        layers = self._attending
        if self.latent:
            # Gates and decays are of short vectors; one number of each head.
            short = 2 * _DELTA_WIDTH * (self.hidden + values * _DELTA_WIDTH)
            delta = (2 * keys + 2 * values) * _DELTA_WIDTH * self.hidden + values * self.hidden + short
            return layers * self.latent.weights(self.hidden, self.heads) + delta * self._delta_layers
        owners = layers - self.readers
        attention = (queries + gates) * (layers + self._wide(layers)) + keys_and_values * (owners + self._wide(owners))
        return attention + delta * self._delta_layers + (self.scan.weights(self.hidden) if self.scan else 0)

    def _wide(self, layers: int) -> int:
        """Return how many of the first layers have heads of twice the size."""
        return layers // self.period if self.period else 0

    def _inside(self, experts: int) -> int:
        """Return the weights of all layers, of so many experts of each."""
        layers = (self.mlps or self.layers) - self.readers - bool(self.first_mlp)
        mlp = layers * (self.mlp * experts + self.shared_mlp) + self.readers * self.reader_mlp + self.first_mlp
        # The projection of embeddings, and a gate and a projection of each layer.
        inputs = 3 * self.layers * self.inputs * self.hidden
        return self._mixers + self.matrices * self.hidden * mlp + inputs + self._streams

    @property
    def _streams(self) -> int:
        """Number of weights of LAuReL, and of the linears between one residual stream and three others."""
        return 2 * self.layers * self.laurel * self.hidden + 6 * self.hidden**2 if self.laurel else 0


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that is worth trying: its short name and its repository on the hub, `context` in positions.

    `abilities` are those that its chat template knows: "think" before it answers, call "tools"; or "embed" or "rank",
    of a model that does that alone. `mxfp4` : whether its experts are published in that, which is kept.
    """

    name: str
    repository: str
    licence: str
    architecture: str
    context: int
    shape: Shape
    abilities: str = ""
    mxfp4: bool = False

    @property
    def writes(self) -> bool:
        """Whether it writes text."""
        return self.abilities not in (_EMBED, _RANK)


_LLAMA, _QWEN2, _QWEN3, _QWEN3_5 = (f"{name}ForCausalLM" for name in ("Llama", "Qwen2", "Qwen3", "Qwen3_5"))
_GRANITE_H, _FALCON_H1 = (f"{name}ForCausalLM" for name in ("GraniteMoeHybrid", "FalconH1"))
_APACHE = "Apache-2.0"
_LATENT = Latent(512, 128, 64, 128)
_THINK, _TOOLS, _BOTH, _EMBED, _RANK = "think", "tools", "think, tools", "embed", "rank"
# Rows of a table: two lines each.
# fmt: off
_ENTRIES = (
    CatalogEntry("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", _APACHE, _LLAMA, 8192,
        Shape(30, 576, 9, 3, 64, 1536, 49152, True)),
    CatalogEntry("gemma3-270m", "google/gemma-3-270m-it", "Gemma", "Gemma3ForCausalLM", 32768,
        Shape(18, 640, 4, 1, 256, 2048, 262144, True)),
    CatalogEntry("granite4-h-350m", "ibm-granite/granite-4.0-h-350m", _APACHE, _GRANITE_H, 32768,
        Shape(32, 768, 12, 4, 64, 2048, 100352, True, scan=Scan(28, 48, 32, 1, 128), attending=4), _TOOLS),
    CatalogEntry("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", _APACHE, _LLAMA, 8192,
        Shape(32, 960, 15, 5, 64, 2560, 49152, True)),
    CatalogEntry("falcon-h1-0.5b", "tiiuae/Falcon-H1-0.5B-Instruct", "Falcon", _FALCON_H1, 16384,
        Shape(36, 1024, 8, 2, 64, 2048, 32784, False, scan=Scan(36, 24, 64, 1, 128))),
    CatalogEntry("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", _APACHE, _QWEN2, 32768,
        Shape(24, 896, 14, 2, 64, 4864, 151936, True), _TOOLS),
    CatalogEntry("qwen3-0.6b", "Qwen/Qwen3-0.6B", _APACHE, _QWEN3, 40960,
        Shape(28, 1024, 16, 8, 128, 3072, 151936, True), _BOTH),
    CatalogEntry("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", _APACHE, _QWEN3_5, 262144,
        Shape(24, 1024, 8, 2, 256, 3584, 248320, True, delta=(16, 16)), _BOTH),
    CatalogEntry("gemma3-1b", "google/gemma-3-1b-it", "Gemma", "Gemma3ForCausalLM", 32768,
        Shape(26, 1152, 4, 1, 256, 6912, 262144, True)),
    CatalogEntry("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", _APACHE, _LLAMA, 2048,
        Shape(22, 2048, 32, 4, 64, 5632, 32000, False)),
    CatalogEntry("llama3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2", _LLAMA, 131072,
        Shape(16, 2048, 32, 8, 64, 8192, 128256, True), _TOOLS),
    CatalogEntry("granite4-h-1b", "ibm-granite/granite-4.0-h-1b", _APACHE, _GRANITE_H, 131072,
        Shape(40, 1536, 12, 4, 128, 4096, 100352, True, scan=Scan(36, 48, 64, 1, 128), attending=4), _TOOLS),
    CatalogEntry("olmo2-1b", "allenai/OLMo-2-0425-1B-Instruct", _APACHE, "Olmo2ForCausalLM", 4096,
        Shape(16, 2048, 16, 16, 128, 8192, 100352, False)),
    CatalogEntry("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", _APACHE, _QWEN2, 32768,
        Shape(28, 1536, 12, 2, 128, 8960, 151936, True), _TOOLS),
    CatalogEntry("qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", _APACHE, _QWEN2, 32768,
        Shape(28, 1536, 12, 2, 128, 8960, 151936, True), _TOOLS),
    CatalogEntry("deepseek-r1-1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "MIT", _QWEN2, 131072,
        Shape(28, 1536, 12, 2, 128, 8960, 151936, False), _THINK),
    CatalogEntry("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _APACHE, _LLAMA, 8192,
        Shape(24, 2048, 32, 32, 64, 8192, 49152, True)),
    CatalogEntry("qwen3-1.7b", "Qwen/Qwen3-1.7B", _APACHE, _QWEN3, 40960,
        Shape(28, 2048, 16, 8, 128, 6144, 151936, True), _BOTH),
    CatalogEntry("granite3.2-2b", "ibm-granite/granite-3.2-2b-instruct", _APACHE, "GraniteForCausalLM", 131072,
        Shape(40, 2048, 32, 8, 64, 8192, 49155, True), _BOTH),
    CatalogEntry("gemma2-2b", "google/gemma-2-2b-it", "Gemma", "Gemma2ForCausalLM", 8192,
        Shape(26, 2304, 8, 4, 256, 9216, 256000, True)),
    CatalogEntry("smollm3-3b", "HuggingFaceTB/SmolLM3-3B", _APACHE, "SmolLM3ForCausalLM", 65536,
        Shape(36, 2048, 16, 4, 128, 11008, 128256, True), _BOTH),
    CatalogEntry("gemma3n-e2b", "google/gemma-3n-E2B-it", "Gemma", "Gemma3nForCausalLM", 32768,
        Shape(30, 2048, 8, 2, 256, 8192, 262400, True, readers=10, reader_mlp=8192, inputs=256, input_ids=262144,
            laurel=64)),
    CatalogEntry("gemma4-e2b", "google/gemma-4-E2B-it", _APACHE, "Gemma4ForCausalLM", 131072,
        Shape(35, 1536, 8, 1, 256, 6144, 262144, True, period=5, readers=20, reader_mlp=12288, inputs=256), _TOOLS),
    CatalogEntry("llama3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", "Llama 3.2", _LLAMA, 131072,
        Shape(28, 3072, 24, 8, 128, 8192, 128256, True), _TOOLS),
    CatalogEntry("granite4-h-micro", "ibm-granite/granite-4.0-h-micro", _APACHE, _GRANITE_H, 131072,
        Shape(40, 2048, 32, 8, 64, 8192, 100352, True, scan=Scan(36, 64, 64, 1, 128), attending=4), _TOOLS),
    CatalogEntry("phi3.5-mini", "microsoft/Phi-3.5-mini-instruct", "MIT", "Phi3ForCausalLM", 131072,
        Shape(32, 3072, 32, 32, 96, 8192, 32064, False)),
    CatalogEntry("phi4-mini", "microsoft/Phi-4-mini-instruct", "MIT", "Phi3ForCausalLM", 131072,
        Shape(32, 3072, 24, 8, 128, 8192, 200064, True), _TOOLS),
    CatalogEntry("qwen3-4b", "Qwen/Qwen3-4B-Instruct-2507", _APACHE, _QWEN3, 262144,
        Shape(36, 2560, 32, 8, 128, 9728, 151936, True), _TOOLS),
    CatalogEntry("gemma3n-e4b", "google/gemma-3n-E4B-it", "Gemma", "Gemma3nForCausalLM", 32768,
        Shape(35, 2048, 8, 2, 256, 16384, 262400, True, readers=15, reader_mlp=16384, inputs=256, input_ids=262144,
            laurel=64)),
    CatalogEntry("gemma4-e4b", "google/gemma-4-E4B-it", _APACHE, "Gemma4ForCausalLM", 131072,
        Shape(42, 2560, 8, 2, 256, 10240, 262144, True, period=6, readers=18, reader_mlp=10240, inputs=256), _TOOLS),
    CatalogEntry("qwen3.5-4b", "Qwen/Qwen3.5-4B", _APACHE, _QWEN3_5, 262144,
        Shape(32, 2560, 16, 4, 256, 9216, 248320, True, delta=(16, 32)), _BOTH),
    CatalogEntry("granite4-h-tiny", "ibm-granite/granite-4.0-h-tiny", _APACHE, _GRANITE_H, 131072,
        Shape(40, 1536, 12, 4, 128, 512, 100352, True, 64, 6, 1024, scan=Scan(36, 48, 64, 1, 128), attending=4),
        _TOOLS),
    CatalogEntry("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", _APACHE, "MistralForCausalLM", 32768,
        Shape(32, 4096, 32, 8, 128, 14336, 32768, False), _TOOLS),
    CatalogEntry("falcon-h1-7b", "tiiuae/Falcon-H1-7B-Instruct", "Falcon", _FALCON_H1, 262144,
        Shape(44, 3072, 12, 2, 128, 12288, 130048, False, scan=Scan(44, 24, 128, 1, 256))),
    CatalogEntry("qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B-Instruct", _APACHE, _QWEN2, 32768,
        Shape(28, 3584, 28, 4, 128, 18944, 152064, False), _TOOLS),
    CatalogEntry("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1", _LLAMA, 131072,
        Shape(32, 4096, 32, 8, 128, 14336, 128256, False), _TOOLS),
    CatalogEntry("qwen3-8b", "Qwen/Qwen3-8B", _APACHE, _QWEN3, 40960,
        Shape(36, 4096, 32, 8, 128, 12288, 151936, False), _BOTH),
    CatalogEntry("qwen3.5-9b", "Qwen/Qwen3.5-9B", _APACHE, _QWEN3_5, 262144,
        Shape(32, 4096, 16, 4, 256, 12288, 248320, False, delta=(16, 32)), _BOTH),
    CatalogEntry("moonlight-16b-a3b", "moonshotai/Moonlight-16B-A3B-Instruct", "MIT", "DeepseekV3ForCausalLM", 8192,
        Shape(27, 2048, 16, 16, 192, 1408, 163840, False, 64, 6, 2816, latent=_LATENT, first_mlp=11264)),
    CatalogEntry("ling-mini-2.0", "inclusionAI/Ling-mini-2.0", "MIT", "BailingMoeV2ForCausalLM", 32768,
        Shape(20, 2048, 16, 4, 128, 512, 157184, False, 256, 8, 512, first_mlp=5120), _TOOLS),
    CatalogEntry("gpt-oss-20b", "openai/gpt-oss-20b", _APACHE, "GptOssForCausalLM", 131072,
        Shape(24, 2880, 64, 8, 64, 2880, 201088, False, 32, 4), _BOTH, mxfp4=True),
    CatalogEntry("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507", _APACHE, "Qwen3MoeForCausalLM", 262144,
        Shape(48, 2048, 32, 4, 128, 768, 151936, False, 128, 8), _TOOLS),
    CatalogEntry("nemotron3-nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NVIDIA Open Model",
        "NemotronHForCausalLM", 262144, Shape(52, 2688, 32, 2, 128, 1856, 131072, False, 128, 6, 3712,
        scan=Scan(23, 64, 64, 8, 128), attending=6, mlps=23, matrices=2), _BOTH),
    CatalogEntry("granite4-h-small", "ibm-granite/granite-4.0-h-small", _APACHE, _GRANITE_H, 131072,
        Shape(40, 4096, 32, 8, 128, 768, 100352, True, 72, 10, 1536, scan=Scan(36, 128, 64, 1, 128), attending=4),
        _TOOLS),
    CatalogEntry("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", _APACHE, "Qwen3_5MoeForCausalLM", 262144,
        Shape(40, 2048, 16, 2, 256, 512, 248320, False, 256, 8, 512, (16, 32)), _BOTH),
    CatalogEntry("kimi-linear-48b-a3b", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "MIT", "KimiLinearForCausalLM",
        1048576, Shape(27, 2304, 32, 32, 192, 1024, 163840, False, 256, 8, 1024, (32, 32), attending=7,
        latent=_LATENT, first_mlp=9216), _TOOLS),
    CatalogEntry("all-minilm", "sentence-transformers/all-MiniLM-L6-v2", _APACHE, "BertModel", 512,
        Shape(6, 384, 12, 12, 32, 1536, 30522, True, matrices=2), _EMBED),
    CatalogEntry("nomic-embed-text", "nomic-ai/nomic-embed-text-v1.5", _APACHE, "NomicBertModel", 2048,
        Shape(12, 768, 12, 12, 64, 3072, 30528, True), _EMBED),
    CatalogEntry("embeddinggemma", "google/embeddinggemma-300m", "Gemma", "Gemma3ForCausalLM", 2048,
        Shape(24, 768, 3, 1, 256, 1152, 262144, True), _EMBED),
    CatalogEntry("mxbai-embed-large", "mixedbread-ai/mxbai-embed-large-v1", _APACHE, "BertModel", 512,
        Shape(24, 1024, 16, 16, 64, 4096, 30522, True, matrices=2), _EMBED),
    CatalogEntry("bge-m3", "BAAI/bge-m3", "MIT", "XLMRobertaModel", 8192,
        Shape(24, 1024, 16, 16, 64, 4096, 250002, True, matrices=2), _EMBED),
    CatalogEntry("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B", _APACHE, _QWEN3, 32768,
        Shape(28, 1024, 16, 8, 128, 3072, 151669, True), _EMBED),
    CatalogEntry("ms-marco-minilm", "cross-encoder/ms-marco-MiniLM-L6-v2", _APACHE, "BertModel", 512,
        Shape(6, 384, 12, 12, 32, 1536, 30522, True, matrices=2), _RANK),
    CatalogEntry("gte-reranker-modernbert", "Alibaba-NLP/gte-reranker-modernbert-base", _APACHE, "ModernBertModel",
        8192, Shape(22, 768, 12, 12, 64, 1152, 50368, True), _RANK),
    CatalogEntry("bge-reranker-v2-m3", "BAAI/bge-reranker-v2-m3", _APACHE, "XLMRobertaModel", 8192,
        Shape(24, 1024, 16, 16, 64, 4096, 250002, True, matrices=2), _RANK),
)
# fmt: on
CATALOG: Mapping[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}
