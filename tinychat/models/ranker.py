"""How a model ranks documents: it reads a query and a document as one text, and a score is computed of what it read.

Such models (cross-encoders, rerankers) come in two forms. One for sequence classification with one label has a head of
its own, behind the first token of an encoder or the last one of a decoder. Another one is a decoder whose
``modules.json`` names a `LogitScore` (www.sbert.net): its score tells by how much likelier one token is than another,
"yes" than "no" in Qwen3-Reranker. A conversion keeps the numbers of either in one file: see `models.score_head`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import find_family
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.embedder import MODULES, is_embedder, read_modules
from tinychat.models.family import CLASSIFIER, classifier_stem

LOGIT_SCORE = "1_LogitScore/config.json"
# Heads of encoders: linear layer, activation, norm and score by the names of their tensors.
_POOLER = ("bert.pooler.dense", "tanh", "", "classifier")
_ROBERTA = ("classifier.dense", "tanh", "", "classifier.out_proj")
_HEADS = {
    "Bert": _POOLER,
    "Electra": ("classifier.dense", "gelu", "", "classifier.out_proj"),
    "Gte": ("gte.pooler.dense", "tanh", "", "classifier"),
    "New": ("new.pooler.dense", "tanh", "", "classifier"),
    "DistilBert": ("pre_classifier", "relu", "", "classifier"),
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
    "MPNet": _ROBERTA,
    "ModernBert": ("head.dense", "gelu", "head.norm", "classifier"),
}
_POOLINGS = ("cls", "mean")


@dataclass(frozen=True)
class Ranker:
    """The recipe of a score: the tensors that it is computed by, and the hidden states that it is computed of.

    `pooling` is one of `embedder.POOLINGS`. `dense` is a linear layer before the score, with `activation` and, if
    `norm` names one, a layer norm behind it; "" where there is none. `tokens` are the rows of the output matrix whose
    difference is the score, or the row that is; without any, `score` has the weights.
    """

    pooling: str
    score: str = "score"
    dense: str = ""
    activation: str = ""
    norm: str = ""
    norm_eps: float = 1e-5
    tokens: tuple[int, ...] = ()

    @property
    def reads_pairs(self) -> bool:
        """Whether the tokenizer joins query and document; else the chat template writes them."""
        return bool(self.dense)


def read_ranker(folder: Path) -> Ranker | None:
    """Read how the model of a checkpoint or model folder ranks; None where it does not.

    `UnsupportedModelError` for labels and heads that are not implemented, `CheckpointError` for a damaged file.
    """
    path = folder / "config.json"
    values = ConfigValues(read_json_object(path), str(path))
    if (stem := classifier_stem(values)) is not None:
        return _read_head(stem, values)
    steps = [step for step, _ in read_modules(folder / MODULES)] if is_embedder(folder) else []
    if steps == ["Transformer"]:
        raise UnsupportedModelError(f"{folder / MODULES}: modules Transformer in this order are not supported")
    return _read_logit_score(folder / LOGIT_SCORE) if "LogitScore" in steps else None


def check_ranker(ranker: Ranker, config: ModelConfig, source: Path) -> None:
    """Refuse scores that are not a product with the hidden state, and tokens that the model lacks."""
    if ranker.tokens and config.logits_softcap is not None:
        raise UnsupportedModelError(f"{source}: scores of logits that are bounded are not supported")
    if ranker.tokens and max(ranker.tokens) >= config.vocab_size:
        raise UnsupportedModelError(f"{source}: token {max(ranker.tokens)} of the score is not in the vocabulary")


def _read_head(stem: str, values: ConfigValues) -> Ranker:
    labels = values.get("id2label")
    count = len(labels) if isinstance(labels, dict) else values.optional_integer("num_labels", 1, 1 << 20) or 2
    if count != 1:
        what = f"a classifier of {count} labels is not supported: one that ranks has one"
        raise UnsupportedModelError(f"{values.source}: {what}")
    found = head_of_stem(stem, values.source)
    if not found.norm:
        return found
    pooling = values.optional_text("classifier_pooling") or found.pooling
    activation = values.optional_text("classifier_activation") or found.activation
    if pooling not in _POOLINGS or activation != found.activation:
        what = f"classifier_pooling {one_line(pooling, 20)!r} with {one_line(activation, 20)!r}"
        raise UnsupportedModelError(f"{values.source}: {what} is not supported")
    return replace(found, pooling=pooling, norm_eps=values.optional_number("norm_eps", 1e-30, 1.0) or found.norm_eps)


def head_of_stem(stem: str, source: str) -> Ranker:
    """Return the head of a family by the stem of its architecture's name, with its default values."""
    if stem in _HEADS:
        dense, activation, norm, score = _HEADS[stem]
        return Ranker("cls", score, dense, activation, norm, 1e-5)
    if find_family(f"{stem}ForCausalLM") is None:
        raise UnsupportedModelError(f"{source}: {one_line(stem, 40)}{CLASSIFIER} is not supported")
    return Ranker("last")


def _read_logit_score(path: Path) -> Ranker:
    values = ConfigValues(read_json_object(path), str(path))
    first = values.integer("true_token_id", 0, 1 << 30)
    other = values.optional_integer("false_token_id", 0, 1 << 30)
    return Ranker("last", tokens=(first,) if other is None else (first, other))
