"""Train the bundled demo model from scratch on text that this repository generates, into a Hugging Face checkpoint.

    .venv/bin/python -m weights.training.train weights/demo-hf --steps 3200
    .venv/bin/tinychat convert weights/demo-hf weights/demo --method plain --no-check

The learning rate falls to zero at the last step, and the last steps see the weights as int4 will. Needs the extra
``train``, and some two hours on two cores.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from .conversations import corpus
from .network import CONFIG, Decoder, Linear
from .vocabulary import CHAT_TEMPLATE, END, encode, train_tokenizer

SEED = 1
TOKENIZER_CONVERSATIONS = 20_000
# Conversations that are sorted by length at a time, and tokens of the longest.
POOL, LONGEST = 1024, 1024
MICRO_BATCHES, MICRO_BATCH_TOKENS = 2, 3072
WARM_UP = 40
CONSTANT_SHARE, INT4_SHARE = 0.4, 0.13
MATRIX_RATE, OTHER_RATE = 0.02, 0.004
# It never runs into loops: no prompt of scripts/measure_loops.py makes it.
SAMPLING = {"do_sample": True, "temperature": 0.8, "repetition_penalty": 1.0}
Batch = tuple[Tensor, Tensor, Tensor]
"""Ids, the ids that follow them, and their weights in the loss; each [rows, T]."""


def batches(tokenizer: Tokenizer) -> Iterator[Batch]:
    """Yield batches of fresh conversations, without end, grouped by length so that little is padding."""
    conversations = corpus(SEED)
    for start in count(0, POOL):
        pool = [encode(tokenizer, chat) for chat in islice(conversations, POOL)]
        pool.sort(key=lambda chat: len(chat[0]))
        rows = list(_rows(pool))
        Random(f"{SEED}/{start}").shuffle(rows)
        yield from map(_padded, rows)


def _rows(pool: list[tuple[list[int], list[float]]]) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Yield conversations of `pool` that together have about `MICRO_BATCH_TOKENS`."""
    first = 0
    for index, (ids, _) in enumerate(pool):
        if index > first and (index - first + 1) * min(len(ids), LONGEST) > MICRO_BATCH_TOKENS:
            yield pool[first:index]
            first = index
    yield pool[first:]


def _padded(chats: list[tuple[list[int], list[float]]]) -> Batch:
    ids, weights = (
        pad_sequence([torch.tensor(row[: LONGEST + 1]) for row in rows], batch_first=True)
        for rows in zip(*chats, strict=True)
    )
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def train(tokenizer: Tokenizer, steps: int) -> Decoder:
    """Return a model after that many optimizer steps, showing its loss as it goes."""
    torch.manual_seed(SEED)
    model = Decoder(tokenizer.get_vocab_size())
    optimizers, stream = _optimizers(model), batches(tokenizer)
    for step in range(steps):
        progress = step / steps
        Linear.quantized = progress > 1 - INT4_SHARE
        factor = min(1.0, (step + 1) / WARM_UP, (1 - progress) / (1 - CONSTANT_SHARE))
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["base_rate"] * factor
        chosen = list(islice(stream, MICRO_BATCHES))
        weight = sum(float(weights.sum()) for _, _, weights in chosen)
        loss = sum(_backward(model, batch, weight) for batch in chosen)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {step + 1} of {steps} loss {loss:.4f}", flush=True)
    return model


def _backward(model: Decoder, batch: Batch, weight: float) -> float:
    """Add the gradients of a batch, of several that have `weight` together; return its share of the loss."""
    ids, following, weights = batch
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    counted = weights > 0
    losses = functional.cross_entropy(logits[counted].float(), following[counted], reduction="none")
    loss = (losses * weights[counted]).sum() / weight
    loss.backward()
    return float(loss.detach())


def _optimizers(model: Decoder) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for the embedding and the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon([{"params": matrices, "base_rate": MATRIX_RATE}], lr=MATRIX_RATE, weight_decay=0.02)
    other = [
        {"params": [model.embed_tokens.weight], "base_rate": OTHER_RATE, "weight_decay": 0.01},
        {"params": gains, "base_rate": OTHER_RATE, "weight_decay": 0.0},
    ]
    return [muon, torch.optim.AdamW(other, lr=OTHER_RATE, betas=(0.9, 0.97))]


def write_checkpoint(folder: Path, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write config, weights in bfloat16, tokenizer and generation config into `folder`."""
    end = tokenizer.token_to_id(END)
    files = {
        "config.json": CONFIG | {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": None, "eos_token_id": end},
        "generation_config.json": {"eos_token_id": end} | SAMPLING,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = {f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in sorted(weights.items())}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=3200, help="optimizer steps (default: %(default)s)")
    arguments = parser.parse_args()
    tokenizer = train_tokenizer(islice(corpus(SEED), TOKENIZER_CONVERSATIONS))
    model = train(tokenizer, arguments.steps)
    write_checkpoint(arguments.out, model.state_dict(), tokenizer)


if __name__ == "__main__":
    main()
