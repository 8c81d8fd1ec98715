"""The demo model: a small LLaMA in PyTorch, with names as in a Hugging Face checkpoint."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
GROUP = 32


class Linear(nn.Linear):
    """A linear without bias that can act as if its weights were int4 already."""

    quantized = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T, [..., inputs] to [..., outputs]."""
        return functional.linear(x, as_int4(self.weight) if Linear.quantized else self.weight)


def as_int4(weight: Tensor) -> Tensor:
    """Return the weights rounded to int4 in groups along a row; gradients pass as if they were not."""
    with torch.no_grad():
        groups = weight.view(weight.shape[0], -1, GROUP)
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        scale = extreme / -7.7
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        rounded = ((groups / scale).round().clamp(-8, 7) * scale).view_as(weight)
    return weight + (rounded - weight).detach()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the heads turned by their position, in the half-split convention; x: [batch, heads, T, head_dim]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    """Causal attention; every key and value head serves several query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.groups = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.size = CONFIG["head_dim"]
        hidden = CONFIG["hidden_size"]
        self.q_proj = Linear(hidden, self.heads * self.size)
        self.k_proj = Linear(hidden, self.groups * self.size)
        self.v_proj = Linear(hidden, self.groups * self.size)
        self.o_proj = Linear(self.heads * self.size, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return what attention adds to x: [batch, T, hidden]."""
        batch, length, _ = x.shape
        shape, each = (batch, length, -1, self.size), self.heads // self.groups
        q = rotated(self.q_proj(x).view(shape).transpose(1, 2), cos, sin)
        k = rotated(self.k_proj(x).view(shape).transpose(1, 2), cos, sin).repeat_interleave(each, 1)
        v = self.v_proj(x).view(shape).transpose(1, 2).repeat_interleave(each, 1)
        # On short rows this is a third faster on a CPU than scaled_dot_product_attention.
        weights = torch.softmax((q * self.size**-0.5) @ k.transpose(-1, -2) + mask, -1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = Linear(CONFIG["hidden_size"], CONFIG["intermediate_size"])
        self.up_proj = Linear(CONFIG["hidden_size"], CONFIG["intermediate_size"])
        self.down_proj = Linear(CONFIG["intermediate_size"], CONFIG["hidden_size"])

    def forward(self, x: Tensor) -> Tensor:
        """Return what the MLP adds to x."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        self.mlp = MLP()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return the residual after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The stack of layers with the embedding, whose weights also give the logits."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                deep = (2 * len(self.layers)) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(parameter, std=0.04 * deep)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, T, vocab_size] of ids [batch, T]."""
        length, size = ids.shape[1], CONFIG["head_dim"]
        frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length).float(), frequencies)
        x = self.embed_tokens(ids)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        mask = torch.full((length, length), -1e4, dtype=dtype).triu(1)
        for layer in self.layers:
            x = layer(x, angles.cos().to(dtype), angles.sin().to(dtype), mask)
        weight = as_int4(self.embed_tokens.weight) if Linear.quantized else self.embed_tokens.weight
        return functional.linear(self.norm(x), weight)
