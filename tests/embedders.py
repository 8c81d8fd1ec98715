"""Small checkpoints of embedding models, as sentence-transformers saves them: Qwen3-Embedding's layout by default."""

import json
from pathlib import Path

import families
import numpy as np
import reference

from tinychat.models.architectures import parse_config

QUERY = "Instruct: Find what answers the question\nQuery:"
PROMPTS = {"prompts": {"query": QUERY, "document": ""}, "default_prompt_name": None}
MODULES = ("Transformer", "Pooling", "Normalize")
WITH_DENSE = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
END = 2  # the id of </s>
VARIANT = families.BY_NAME["qwen3"]


def write_modules(folder, pooling="lasttoken", modules=MODULES, prompts=PROMPTS, **fields):
    """Write the files of sentence-transformers beside a checkpoint."""
    steps = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")
    config = {"word_embedding_dimension": 96} | {f"pooling_mode_{mode}": mode == pooling for mode in modes}
    (folder / "1_Pooling/config.json").write_text(json.dumps(config | {"include_prompt": True} | fields))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def write_embedder(folder, architecture="Qwen3ForCausalLM", **modules):
    """Write a random checkpoint without an output matrix, whose tokenizer ends texts; return its weights.

    Names of tensors have no ``model.`` before them; the configuration still says that the output matrix is not tied.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    config = VARIANT.config | {"architectures": [architecture], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: values.astype(np.float32) for name, values in families.make_weights(VARIANT).items()}
    del weights["lm_head.weight"]
    save_file({name.removeprefix("model."): values for name, values in weights.items()}, folder / "model.safetensors")
    write_ending_tokenizer(folder)
    write_modules(folder, **modules)
    return weights


def write_ending_tokenizer(folder):
    """Write a tokenizer whose post-processor puts ``</s>`` behind a text, as Qwen3-Embedding's does."""
    from tokenizers import Tokenizer, processors

    families.write_tokenizer(folder, VARIANT.config["vocab_size"])
    path = str(Path(folder) / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", END)]
    )
    tokenizer.save(path)


def write_dense(folder, rng, shapes, bias=False, dtype=np.float32, activation="linear.Identity"):
    """Write random linear layers behind the pooling; return the matrix and the bias of each."""
    from safetensors.numpy import save_file

    layers = []
    for number, (rows, columns) in enumerate(shapes, start=2):
        place = folder / f"{number}_Dense"
        place.mkdir()
        config = {"in_features": columns, "out_features": rows, "bias": bias}
        config["activation_function"] = f"torch.nn.modules.{activation}"
        (place / "config.json").write_text(json.dumps(config))
        matrix = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(dtype)
        shift = rng.standard_normal(rows).astype(dtype) * bias
        save_file({"linear.weight": matrix} | ({"linear.bias": shift} if bias else {}), place / "model.safetensors")
        layers.append((matrix, shift))
    return layers


def pooled(weights, ids, pooling):
    """Return the pooled hidden states of token ids, by the reference: float64 [hidden_size]."""
    states = reference.decoder_states(parse_config(VARIANT.config, "embedder"), weights, ids)
    return states[-1] if pooling == "last" else states.mean(axis=0)


def expected_vector(weights, ids, pooling):
    """Return the vector of token ids by the reference: float64 [hidden_size]."""
    found = pooled(weights, ids, pooling)
    return found / np.linalg.norm(found)
