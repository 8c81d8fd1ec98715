"""The variants of families.py as transformers builds, runs and saves them (tests marked ``live`` only)."""

import copy
import json
import logging
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import families
import numpy as np
import remote_models
import torch
import transformers

from tinychat.models.architectures import parse_config

# Whose tensors transformers renames while it reads a checkpoint.
RENAMED = ("olmo_hybrid", "lfm3", "exaone")

# It has the class, but does not list it.
if hasattr(transformers, "Mistral4ForCausalLM"):
    config_class = transformers.Mistral4ForCausalLM.config_class
    transformers.AutoModelForCausalLM.register(config_class, transformers.Mistral4ForCausalLM, exist_ok=True)

# Of Muse Glimmer's text model, it has no class with an output matrix.
if hasattr(transformers, "MuseGlimmerTextModel"):

    class MuseGlimmerForCausalLM(transformers.MuseGlimmerPreTrainedModel):
        """The text model with the output matrix and the logits of `MuseGlimmerForConditionalGeneration`."""

        config_class = transformers.MuseGlimmerTextConfig
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

        def __init__(self, config):
            super().__init__(config)
            self.model = transformers.MuseGlimmerTextModel(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids, **others):
            logits = self.lm_head(self.model(input_ids, **others).last_hidden_state) * self.config.output_multiplier
            cap = self.config.final_logit_softcapping
            return SimpleNamespace(logits=cap * torch.tanh(logits / cap))

    transformers.AutoModelForCausalLM.register(
        transformers.MuseGlimmerTextConfig, MuseGlimmerForCausalLM, exist_ok=True
    )

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
logging.getLogger("torch").setLevel(logging.ERROR)


def build(variant):
    """Return the variant as a model of transformers or `remote_models` in float32, with ``make_weights``' weights."""
    model_type = variant.config["model_type"]
    stacked = model_type not in remote_models.MODELS and parse_config(variant.config, variant.name).experts
    if stacked or model_type in RENAMED:
        return _read(variant)
    weights = families.make_weights(variant)
    renamed = (*families.DELTA_NETS, *families.MAMBAS, *families.GEMMAS, *families.LATENTS, *families.SINKS)
    if model_type in ("lfm2", "stablelm", "jamba", "dory", *families.APERTUS, *families.BIASED, *renamed):
        weights = families.stored(variant, weights)
    state = {name: torch.from_numpy(w.astype(np.float32)) for name, w in weights.items()}
    if model_type in remote_models.MODELS:
        return remote_models.MODELS[model_type](variant.config, state)
    # transformers edits nested dicts in place, and variants share theirs.
    config = transformers.AutoConfig.for_model(**copy.deepcopy(variant.theirs or variant.config))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if model.config.tie_word_embeddings else [])
    return model


def _read(variant):
    """Return the same as transformers reads it from a checkpoint: it stacks the weights of experts, or renames some."""
    with TemporaryDirectory() as folder:
        place = families.write_checkpoint(variant, Path(folder) / variant.name)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, output_loading_info=True
        )
    assert not any(report.values()), report
    if "expert_swiglu_limit_list" in variant.config:
        _limit(model, variant.config)
    return model.eval()


def _limit(model, config):
    """Apply the limits that files of Ling 3.0 have for SiLU and what it lets through; transformers does not."""

    def limited(gate_up, limit):
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)

    def shared(mlp, limit, x):
        return mlp.down_proj(limited(torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], dim=-1), limit))

    def routed(experts, limit, x, chosen, weights):
        found = torch.zeros_like(x)
        for t, rank in np.ndindex(*chosen.shape):
            expert = chosen[t, rank]
            inner = limited(experts.gate_up_proj[expert] @ x[t], limit)
            found[t] += weights[t, rank] * (experts.down_proj[expert] @ inner)
        return found

    limits = config["expert_swiglu_limit_list"], config["share_expert_swiglu_limit_list"]
    for layer, of_experts, of_shared in zip(model.model.layers, *limits):
        if of_experts:
            layer.mlp.experts.forward = partial(routed, layer.mlp.experts, of_experts)
        if of_shared:
            layer.mlp.shared_experts.forward = partial(shared, layer.mlp.shared_experts, of_shared)


@torch.no_grad()
def logits(model, ids):
    """Return float32 [T, vocab_size] of a run from an empty context."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(model, ids, count):
    """Return ``count`` greedy ids after ``ids``, each from a fresh run over all ids before it."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(np.argmax(logits(model, ids)[-1])))
    return ids[-count:]


def save_checkpoint(variant, model, folder):
    """Write the checkpoint as transformers does, in the variant's type and files; return the folder."""
    # Saving, transformers gives norms of OLMo Hybrid, and MLPs of Kimi Linear, names that their published checkpoints
    # have for others.
    if not isinstance(model, torch.nn.Module) or variant.config["model_type"] in ("olmo_hybrid", "kimi_linear"):
        return families.write_checkpoint(variant, folder)
    stored = model.to(getattr(torch, variant.dtype))
    if variant.files.startswith("safetensors"):
        stored.save_pretrained(folder, max_shard_size="100KB" if variant.files.endswith("sharded") else "1GB")
        if variant.theirs:
            (folder / "config.json").write_text(json.dumps(variant.config))
    else:
        stored.config.save_pretrained(folder)
        _save_bin(stored, folder, sharded=variant.files.endswith("sharded"))
    families.write_tokenizer(folder, variant.config["vocab_size"])
    return folder


def _save_bin(model, folder, sharded):
    state = dict(model.state_dict())
    if sharded:
        families.write_shards(folder, state, "pytorch_model", "bin", torch.save)
    else:
        torch.save(state, folder / "pytorch_model.bin")
