"""Small checkpoints of models that rank: encoders with a head, decoders with one or with two tokens of their own."""

import json
import math

import encoders
import families
import numpy as np
import reference
from variants.common import Variant

from tinychat.models.architectures import parse_config

QUERY, DOCUMENTS = "Who flew first?", ["It flew in 1903.", "a", "The cat sleeps. " * 9, "Who flew first?"]
END = 2  # the id of </s>
TEMPLATE = """\
{%- for m in messages if m.role == 'system' %}<s>{{ m.content }}
{% endfor %}Query: {% for m in messages if m.role == 'query' %}{{ m.content }}{% endfor %}
Document: {% for m in messages if m.role == 'document' %}{{ m.content }}{% endfor %}</s>"""
CLASSIFIER = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def _classifier(name, stem, **changes):
    base = encoders.BY_NAME[name].config
    return Variant(name, base | CLASSIFIER | {"architectures": [f"{stem}ForSequenceClassification"]} | changes)


DECODER = encoders.QWEN3 | {"is_causal": True, "architectures": ["Qwen3ForSequenceClassification"]} | CLASSIFIER
RANKERS = [
    _classifier("bert", "Bert"),
    _classifier("xlm-roberta", "XLMRoberta"),
    _classifier("distilbert", "DistilBert"),
    _classifier("mpnet", "MPNet"),
    _classifier("electra", "Electra"),
    _classifier("gte", "Gte"),
    _classifier("modernbert", "ModernBert", classifier_pooling="cls"),
    Variant("modernbert-mean", _classifier("modernbert", "ModernBert", classifier_pooling="mean").config),
    Variant("qwen3", DECODER),
]
BY_NAME = {variant.name: variant for variant in RANKERS}
# Linear layer, norm and score of each kind of head.
HEADS = {
    "bert": ("bert.pooler.dense", "", "classifier"),
    "xlm-roberta": ("classifier.dense", "", "classifier.out_proj"),
    "electra": ("classifier.dense", "", "classifier.out_proj"),
    "gte": ("gte.pooler.dense", "", "classifier"),
    "mpnet": ("classifier.dense", "", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "", "classifier"),
    "modernbert": ("head.dense", "head.norm", "classifier"),
    "qwen3": ("", "", "score"),
}


ACTIVATIONS = {"distilbert": reference.relu, "electra": reference.gelu, "modernbert": reference.gelu}


def base_of(variant):
    """Return the same model without its head, as it embeds texts."""
    stem = variant.config["architectures"][0].removesuffix("ForSequenceClassification")
    architecture = f"{stem}ForCausalLM" if stem == "Qwen3" else f"{stem}Model"
    config = {key: value for key, value in variant.config.items() if key not in CLASSIFIER}
    return Variant(variant.name, config | {"architectures": [architecture]})


def write_ranker(variant, folder):
    """Write a random checkpoint; return its weights, those of the head among them."""
    from safetensors.numpy import save_file

    base, random = base_of(variant), np.random.RandomState(3)
    families.write_checkpoint(base, folder)
    weights = {name: values.astype(np.float32) for name, values in families.make_weights(base).items()}
    dense, norm, score = HEADS[variant.config["model_type"]]
    size = parse_config(base.config, "").hidden_size
    shapes = {f"{score}.weight": (1, size)}
    if dense:
        shapes |= {f"{dense}.weight": (size, size), f"{score}.bias": (1,)}
    if dense and not norm:
        shapes[f"{dense}.bias"] = (size,)
    if norm:
        shapes[f"{norm}.weight"] = (size,)
    for name, shape in shapes.items():
        weights[name] = (random.standard_normal(shape) * 2 / math.sqrt(size)).astype(np.float32)
    save_file(families.stored(base, weights), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(variant.config | {"torch_dtype": "float32"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_pairing_tokenizer(folder)
    return weights


def write_pairing_tokenizer(folder):
    """Let the checkpoint's tokenizer put ``</s>`` before a text, behind it, and between two."""
    from tokenizers import Tokenizer, processors

    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A </s>", pair="</s> $A </s> $B:1 </s>:1", special_tokens=[("</s>", END)]
    )
    tokenizer.save(path)


def expected_score(variant, weights, ids, second):
    """Return the score of token ids, a logit, in float64."""
    base = base_of(variant)
    kind = second if variant.config["model_type"] in ("bert", "electra") else None
    states = reference.decoder_states(parse_config(base.config, ""), weights, ids, kind)
    dense, norm, score = HEADS[variant.config["model_type"]]
    x = states[-1] if not dense else states.mean(axis=0) if variant.name.endswith("mean") else states[0]

    def linear(name, x):
        bias = weights.get(f"{name}.bias", np.zeros(1))
        return weights[f"{name}.weight"].astype(np.float64) @ x + bias

    if dense:
        x = linear(dense, x)
        x = ACTIVATIONS.get(variant.config["model_type"], np.tanh)(x)
    if norm:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * weights[f"{norm}.weight"]
    return linear(score, x)[0]


def head_tensors(variant, labels=1):
    """Return random tensors of a head by their names in a GGUF file."""
    random, size = np.random.RandomState(5), parse_config(base_of(variant).config, "").hidden_size
    shapes = {"cls.output": (labels, size)}
    if variant.name != "qwen3":
        shapes |= {"cls": (size, size), "cls.output.bias": (labels,)}
    if variant.name.startswith("modern"):
        shapes["cls.norm"] = (size,)
    elif variant.name != "qwen3":
        shapes["cls.bias"] = (size,)
    spread = 2 / math.sqrt(size)
    return {name: (random.standard_normal(shape) * spread).astype(np.float32) for name, shape in shapes.items()}
