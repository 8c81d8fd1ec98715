"""A draft head: one layer more that predicts the token after the next, from the next one and a hidden state.

Some models are trained with it, and ship it (multi-token prediction: DeepSeek-AI, 2024,
https://arxiv.org/abs/2412.19437; Gloeckle et al., 2024, https://arxiv.org/abs/2404.19737). It is a model of its own
with one layer, which has the embedding and the output matrix of the larger one: its input for a position is
``W (norm(embedding of the next token), norm(hidden state behind the last norm))``. What it writes is checked like any
draft, so nothing depends on how well it is stored: its linears are in int8, each weight by itself.
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig

# Its own linears and norms: of the embedding of a token, and of the hidden state before it.
INPUTS = ("embedding_proj", "hidden_proj")
INPUT_NORMS = ("embedding_norm", "hidden_norm")


def head_config(config: ModelConfig) -> ModelConfig:
    """Return the configuration of the draft head of a model."""
    attention = config.attention_layers[-1]
    return replace(
        config,
        num_hidden_layers=1,
        rotary_dims=(config.rotary_dims[attention],),
        sliding_windows=(config.sliding_windows[attention],),
        experts=config.experts and replace(config.experts, layers=(0,)),
        delta_net=None,
        compressed=None,
        is_draft_head=True,
        # Replies that follow images have no drafts of it.
        image_token_id=None,
        rotary_axes=(),
    )
