"""Families whose code comes with their checkpoints, in torch: written from the papers and from what their files say.

Tensors have the names and layouts of the published checkpoints; nothing here knows of tinychat. A class computes what
that code does for a whole sequence from an empty context, in float32.
"""

import math
from types import SimpleNamespace

import torch
from torch.nn.functional import gelu, layer_norm, normalize, relu, scaled_dot_product_attention, silu


def rms_norm(x, weight, eps):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def angles(length, channels, base):
    """Return the angle of each position and pair of channels: [T, channels / 2]."""
    frequencies = base ** (-torch.arange(0, channels, 2).float() / channels)
    return torch.arange(length)[:, None] * frequencies


def rotate_halves(x, turns):
    """Rotate channels i and i + d/2 of ``x [T, heads, d]`` together."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = turns.cos()[:, None], turns.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate_neighbours(x, turns):
    """Rotate channels 2i and 2i + 1 of the first half of ``x [T, heads, d]`` together."""
    rotated, rest = x.chunk(2, dim=-1)
    even, odd = rotated[..., 0::2], rotated[..., 1::2]
    cos, sin = turns.cos()[:, None], turns.sin()[:, None]
    return torch.cat([torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2), rest], dim=-1)


class Decoder:
    """A decoder over a checkpoint's tensors; a family says what its tensors are called and what attention sees.

    Parameters
    ----------
    config : dict
        The ``config.json``.
    state : dict of str to float32 tensor
    """

    embedding = layer_prefix = norms = final_norm = output = eps = ""
    layers, heads = "num_hidden_layers", "num_attention_heads"

    def __init__(self, config, state):
        self.config, self.state, self.used = config, state, set()

    def tensor(self, name):
        self.used.add(name)
        return self.state[name]

    def linear(self, name, x):
        bias = self.tensor(f"{name}.bias") if f"{name}.bias" in self.state else 0
        return x @ self.tensor(f"{name}.weight").T + bias

    def __call__(self, ids, use_cache=False):
        x, eps = self.tensor(f"{self.embedding}.weight")[ids[0]], self.config[self.eps]
        for layer in range(self.config[self.layers]):
            prefix = self.layer_prefix.format(layer)
            first, second = (self.tensor(f"{prefix}{name}.weight") for name in self.norms)
            x = x + self.attention(prefix, rms_norm(x, first, eps))
            x = x + self.mlp(prefix, rms_norm(x, second, eps))
        logits = self.head(rms_norm(x, self.tensor(f"{self.final_norm}.weight"), eps))
        assert self.used == self.state.keys()
        return SimpleNamespace(logits=logits[None])

    def mixed(self, q, k, v, bias=0.0):
        """Return what queries [T, H, d] see of keys and values [T, G, d]: [T, H d]."""
        T, H, G = len(q), q.shape[1], k.shape[1]
        k, v = (a.repeat_interleave(H // G, dim=1).transpose(0, 1) for a in (k, v))
        mask = torch.full((T, T), -torch.inf).triu(1) + bias
        return scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=mask).transpose(0, 1).flatten(1)

    def head(self, x):
        return self.linear(self.output, x)


class Baichuan(Decoder):
    embedding, layer_prefix, final_norm, output = "model.embed_tokens", "model.layers.{}.", "model.norm", "lm_head"
    norms, eps = ("input_layernorm", "post_attention_layernorm"), "rms_norm_eps"

    def attention(self, prefix, x):
        q, k, v = self.linear(f"{prefix}self_attn.W_pack", x).unflatten(-1, (3, self.config[self.heads], -1)).unbind(1)
        bias = 0.0
        if "max_position_embeddings" in self.config:
            turns = angles(len(x), q.shape[-1], 1e4)
            q, k = rotate_halves(q, turns), rotate_halves(k, turns)
        else:
            bias = self.slopes()[:, None, None] * torch.arange(len(x))
        return self.linear(f"{prefix}self_attn.o_proj", self.mixed(q, k, v, bias))

    def slopes(self):
        """ALiBi's: those of the power of two below the number of heads, then every other of those of the one above."""
        heads = self.config[self.heads]
        below = 2 ** math.floor(math.log2(heads))
        few, many = ([2 ** (-8 * (i + 1) / n) for i in range(n)] for n in (below, 2 * below))
        return torch.tensor(few + many[::2][: heads - below])

    def mlp(self, prefix, x):
        gate, up = (self.linear(f"{prefix}mlp.{name}_proj", x) for name in ("gate", "up"))
        return self.linear(f"{prefix}mlp.down_proj", silu(gate) * up)

    def head(self, x):
        weight = self.tensor("lm_head.weight")
        return x @ (normalize(weight) if "z_loss_weight" in self.config else weight).T


class InternLM2(Decoder):
    embedding, layer_prefix, final_norm, output = "model.tok_embeddings", "model.layers.{}.", "model.norm", "output"
    norms, eps = ("attention_norm", "ffn_norm"), "rms_norm_eps"

    def attention(self, prefix, x):
        config, groups = self.config, self.config["num_key_value_heads"]
        heads = self.linear(f"{prefix}attention.wqkv", x).unflatten(-1, (groups, config[self.heads] // groups + 2, -1))
        q, k, v = heads[:, :, :-2].flatten(1, 2), heads[:, :, -2], heads[:, :, -1]
        d, base, trained = q.shape[-1], config["rope_theta"], config["max_position_embeddings"]
        if config["rope_scaling"] and len(x) > trained:
            factor = config["rope_scaling"]["factor"]
            base *= (factor * len(x) / trained - (factor - 1)) ** (d / (d - 2))
        turns = angles(len(x), d, base)
        return self.linear(f"{prefix}attention.wo", self.mixed(rotate_halves(q, turns), rotate_halves(k, turns), v))

    def mlp(self, prefix, x):
        gate, up = (self.linear(f"{prefix}feed_forward.{name}", x) for name in ("w1", "w3"))
        return self.linear(f"{prefix}feed_forward.w2", silu(gate) * up)


class QWen(Decoder):
    embedding, layer_prefix, final_norm, output = "transformer.wte", "transformer.h.{}.", "transformer.ln_f", "lm_head"
    norms, eps = ("ln_1", "ln_2"), "layer_norm_epsilon"

    def attention(self, prefix, x):
        config, T, trained = self.config, len(x), self.config["seq_length"]
        q, k, v = self.linear(f"{prefix}attn.c_attn", x).unflatten(-1, (3, config[self.heads], -1)).unbind(1)
        d, base = q.shape[-1], config["rotary_emb_base"]
        if config["use_dynamic_ntk"]:
            alpha = max(1, 2 ** math.ceil(math.log2(T / trained) + 1) - 1)
            base *= alpha ** (d / (d - 2))
        turns = angles(T, d, base)
        q, k = rotate_halves(q, turns), rotate_halves(k, turns)
        if config["use_logn_attn"]:
            growth = torch.tensor([max(1.0, math.log(i) / math.log(trained)) for i in range(1, T + 1)])
            q = q * growth[:, None, None]
        return self.linear(f"{prefix}attn.c_proj", self.mixed(q, k, v))

    def mlp(self, prefix, x):
        up, gate = (self.linear(f"{prefix}mlp.{name}", x) for name in ("w1", "w2"))
        return self.linear(f"{prefix}mlp.c_proj", up * silu(gate))


class ChatGLM(Decoder):
    embedding, output = "transformer.embedding.word_embeddings", "transformer.output_layer"
    layer_prefix, final_norm = "transformer.encoder.layers.{}.", "transformer.encoder.final_layernorm"
    norms, eps, layers = ("input_layernorm", "post_attention_layernorm"), "layernorm_epsilon", "num_layers"

    def attention(self, prefix, x):
        config, d = self.config, self.config["kv_channels"]
        heads = self.linear(f"{prefix}self_attention.query_key_value", x).unflatten(-1, (-1, d))
        H = config[self.heads]
        G = config["multi_query_group_num"] if config["multi_query_attention"] else H
        q, k, v = heads.split((H, G, G), dim=1)
        turns = angles(len(x), d // 2, 1e4 * config["rope_ratio"])
        q, k = rotate_neighbours(q, turns), rotate_neighbours(k, turns)
        return self.linear(f"{prefix}self_attention.dense", self.mixed(q, k, v))

    def mlp(self, prefix, x):
        gate, up = self.linear(f"{prefix}mlp.dense_h_to_4h", x).chunk(2, dim=-1)
        return self.linear(f"{prefix}mlp.dense_4h_to_h", silu(gate) * up)


class Bailing(Decoder):
    embedding, layer_prefix, final_norm, output = "model.word_embeddings", "model.layers.{}.", "model.norm", "lm_head"
    norms, eps = ("input_layernorm", "post_attention_layernorm"), "rms_norm_eps"

    def attention(self, prefix, x):
        config = self.config
        d, H, G = config["head_dim"], config[self.heads], config["num_key_value_heads"]
        q, k, v = self.linear(f"{prefix}attention.query_key_value", x).unflatten(-1, (-1, d)).split((H, G, G), dim=1)
        if config.get("use_qk_norm"):
            gains = (self.tensor(f"{prefix}attention.{name}_layernorm.weight") for name in ("query", "key"))
            q, k = (rms_norm(each, gain, config[self.eps]) for each, gain in zip((q, k), gains))
        rotated = int(d * config.get("partial_rotary_factor", 1))
        turns = angles(len(x), rotated, config["rope_theta"])
        q, k = (torch.cat((rotate_halves(a[..., :rotated], turns), a[..., rotated:]), dim=-1) for a in (q, k))
        return self.linear(f"{prefix}attention.dense", self.mixed(q, k, v))

    def mlp(self, prefix, x):
        if f"{prefix}mlp.gate.weight" not in self.state:
            return self.gated(f"{prefix}mlp.", x)
        found = self.gated(f"{prefix}mlp.shared_experts.", x)
        rates = self.rates(f"{prefix}mlp.gate", x) * self.config.get("routed_scaling_factor", 1)
        for expert in range(self.config["num_experts"]):
            found = found + rates[:, expert, None] * self.gated(f"{prefix}mlp.experts.{expert}.", x)
        return found

    def gated(self, prefix, x):
        gate, up = (self.linear(f"{prefix}{name}_proj", x) for name in ("gate", "up"))
        return self.linear(f"{prefix}down_proj", silu(gate) * up)

    def rates(self, name, x):
        """Return the factor of each expert's result: [T, experts], 0 for those that are not chosen."""
        config, logits = self.config, x @ self.tensor(f"{name}.weight").T
        if config["architectures"] == ["BailingMoeForCausalLM"]:
            rates = choice = logits.softmax(-1)
        else:
            rates = logits.sigmoid()
            groups = (rates + self.tensor(f"{name}.expert_bias")).unflatten(-1, (config["n_group"], -1))
            of_groups = groups.topk(2).values.sum(-1)
            left_out = of_groups < of_groups.topk(config["topk_group"]).values[:, -1:]
            choice = groups.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = torch.zeros_like(rates).scatter(1, choice.topk(config["num_experts_per_tok"]).indices, 1.0)
        return chosen * rates / (chosen * rates).sum(-1, keepdim=True)


class SmallThinker(Decoder):
    """A decoder whose experts are chosen by each layer's input."""

    embedding, layer_prefix, final_norm, output = "model.embed_tokens", "model.layers.{}.", "model.norm", "lm_head"

    def __call__(self, ids, use_cache=False):
        config, x = self.config, self.tensor(f"{self.embedding}.weight")[ids[0]]
        for layer in range(config[self.layers]):
            prefix = self.layer_prefix.format(layer)
            sparse = f"{prefix}block_sparse_moe."
            rates = self.rates(f"{sparse}primary_router", x)
            x = x + self.attention(layer, self.normed(f"{prefix}input_layernorm", x))
            x = x + self.experts(sparse, rates, self.normed(f"{prefix}post_attention_layernorm", x))
        head = self.embedding if config["tie_word_embeddings"] else self.output
        logits = self.linear(head, self.normed(self.final_norm, x))
        assert self.used == self.state.keys()
        return SimpleNamespace(logits=logits[None])

    def normed(self, name, x):
        return rms_norm(x, self.tensor(f"{name}.weight"), self.config["rms_norm_eps"])

    def rates(self, name, x):
        """Return the factor of each expert's result: [T, experts], 0 for those that are not chosen."""
        logits = self.linear(name, x)
        chosen = logits.topk(self.config["moe_num_active_primary_experts"])
        if self.config["moe_primary_router_apply_softmax"]:
            rates = chosen.values.softmax(-1)
        else:
            rates = chosen.values.sigmoid()
            rates = rates / rates.sum(-1, keepdim=True)
        return torch.zeros_like(logits).scatter(1, chosen.indices, rates)

    def attention(self, layer, x):
        config, prefix, T = self.config, f"{self.layer_prefix.format(layer)}self_attn.", len(x)
        q, k, v = (self.linear(f"{prefix}{part}_proj", x).unflatten(-1, (-1, config["head_dim"])) for part in "qkv")
        if config["rope_layout"][layer]:
            turns = angles(T, config["head_dim"], config["rope_theta"])
            q, k = rotate_halves(q, turns), rotate_halves(k, turns)
        unseen = torch.zeros(T, T)
        if config["sliding_window_layout"][layer]:
            distances = torch.arange(T)[:, None] - torch.arange(T)
            unseen = unseen.masked_fill(distances >= config["sliding_window_size"], -torch.inf)
        return self.linear(f"{prefix}o_proj", self.mixed(q, k, v, unseen))

    def experts(self, prefix, rates, x):
        found = torch.zeros_like(x)
        for expert in range(rates.shape[1]):
            gate, up = (self.linear(f"{prefix}experts.{expert}.{name}", x) for name in ("gate", "up"))
            found = found + rates[:, expert, None] * self.linear(f"{prefix}experts.{expert}.down", relu(gate) * up)
        return found


class NomicBert(Decoder):
    """An encoder, of whose layers every second has experts; they give hidden states."""

    heads = "n_head"

    def __call__(self, ids):
        config, embeddings = self.config, "nomic_bert.embeddings."
        x = self.tensor(f"{embeddings}word_embeddings.weight")[ids[0]]
        x = self.normed("nomic_bert.emb_ln", x + self.tensor(f"{embeddings}token_type_embeddings.weight")[0])
        for layer in range(config["n_layer"]):
            prefix = f"nomic_bert.encoder.layers.{layer}."
            x = self.normed(f"{prefix}norm1", x + self.attention(prefix, x))
            is_sparse = layer % config["moe_every_n_layers"] == 1
            x = self.normed(f"{prefix}norm2", x + (self.experts if is_sparse else self.mlp)(f"{prefix}mlp.", x))
        assert self.used == self.state.keys()
        return SimpleNamespace(last_hidden_state=x[None])

    def normed(self, name, x):
        gains, biases = (self.tensor(f"{name}.{end}") for end in ("weight", "bias"))
        return layer_norm(x, x.shape[-1:], gains, biases, self.config.get("layer_norm_epsilon", 1e-12))

    def linear(self, name, x):
        self.used.add(f"{name}.bias")
        return super().linear(name, x)

    def attention(self, prefix, x):
        q, k, v = self.linear(f"{prefix}attn.Wqkv", x).unflatten(-1, (3, self.config[self.heads], -1)).unbind(1)
        turns = angles(len(x), q.shape[-1], self.config["rotary_emb_base"])
        q, k, v = (each.transpose(0, 1) for each in (rotate_halves(q, turns), rotate_halves(k, turns), v))
        return self.linear(f"{prefix}attn.out_proj", scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))

    def mlp(self, prefix, x):
        return self.linear(f"{prefix}fc2", gelu(self.linear(f"{prefix}fc1", x)))

    def experts(self, prefix, x):
        rates = (x @ self.tensor(f"{prefix}router.layer.weight").T).softmax(-1)
        chosen = rates.topk(self.config["moe_top_k"])
        kept = torch.zeros_like(rates).scatter(1, chosen.indices, chosen.values)
        first, second = (
            self.tensor(f"{prefix}experts.mlp.{name}").unflatten(0, (self.config["num_experts"], -1))
            for name in ("w1", "w2")
        )
        given = gelu(torch.einsum("td,efd->etf", x, first)) @ second
        return torch.einsum("te,etd->td", kept, given) + self.tensor(f"{prefix}experts.bias")


class JinaBert(NomicBert):
    heads = "num_attention_heads"

    def __call__(self, ids):
        embeddings = "bert.embeddings."
        x = self.tensor(f"{embeddings}word_embeddings.weight")[ids[0]]
        x = self.normed(f"{embeddings}LayerNorm", x + self.tensor(f"{embeddings}token_type_embeddings.weight")[0])
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"bert.encoder.layer.{layer}."
            x = self.normed(f"{prefix}attention.output.LayerNorm", x + self.attention(f"{prefix}attention.", x))
            gates, up = (x @ self.tensor(f"{prefix}mlp.gated_layers.weight").T).chunk(2, dim=-1)
            x = self.normed(f"{prefix}mlp.layernorm", x + self.linear(f"{prefix}mlp.wo", gelu(gates) * up))
        assert self.used == self.state.keys()
        return SimpleNamespace(last_hidden_state=x[None])

    def attention(self, prefix, x):
        heads, positions = self.config[self.heads], torch.arange(len(x))
        q, k, v = (
            self.linear(f"{prefix}self.{name}", x).unflatten(-1, (heads, -1)).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        falls = -Baichuan.slopes(self)[:, None, None] * (positions[:, None] - positions).abs()
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=falls).transpose(0, 1).flatten(1)
        return self.linear(f"{prefix}output.dense", mixed)


# By architecture.
ENCODERS = {"NomicBertModel": NomicBert, "JinaBertModel": JinaBert}
# By model_type.
MODELS = {
    "baichuan": Baichuan,
    "internlm2": InternLM2,
    "qwen": QWen,
    "chatglm": ChatGLM,
    "bailing_moe": Bailing,
    "smallthinker": SmallThinker,
}
