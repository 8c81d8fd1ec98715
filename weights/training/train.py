"""Train the bundled demo model from scratch on text that this repository generates.

    .venv/bin/python -m weights.training.train demo-training
    cp -r demo-training/hf weights/demo-hf
    .venv/bin/tinychat convert weights/demo-hf weights/demo --method plain --no-check

The first argument is a folder for the run: tokenizer, log and, every five minutes, the state, from which the same
command goes on. ``total_steps.txt`` in it overrides ``--steps`` while the run goes, so that it can be brought to an
end early: the learning rate falls to zero at the last step, and the last steps see the weights as int4 will. At the
end come the checkpoint, ``OUT/hf``, and the curve of the losses, ``OUT/loss.svg``. Needs the extra ``train``.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from .batches import Batch, batches
from .conversations import corpus
from .export import write_checkpoint
from .loss_curve import draw
from .network import Decoder, Linear
from .vocabulary import train_tokenizer

SEED = 1
TOKENIZER_CONVERSATIONS = 20_000
MICRO_BATCHES, MICRO_BATCH_TOKENS = 2, 3072
WARM_UP = 40
CONSTANT_SHARE, INT4_SHARE = 0.4, 0.13
MATRIX_RATE, OTHER_RATE = 0.02, 0.004
SAVE_SECONDS = 300


class Run:
    """One training run: the model, its optimizers, and how far it has come."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.step, self.tokens, self.start = folder, 0, 0, 0
        self._steps = steps
        self.tokenizer = tokenizer_of(folder)
        torch.manual_seed(SEED)
        self.model = Decoder(self.tokenizer.get_vocab_size())
        self.optimizers = optimizers_of(self.model)
        if self._state_file.exists():
            self._load()

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.pt"

    @property
    def log(self) -> Path:
        """Where the losses are noted."""
        return self.folder / "training.log"

    @property
    def steps(self) -> int:
        """How many steps the run has, as of now."""
        file = self.folder / "total_steps.txt"
        return int(file.read_text()) if file.exists() else self._steps

    def save(self) -> None:
        """Write the state aside and rename it."""
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "start": self.start,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        aside = self._state_file.with_suffix(".new")
        torch.save(state, aside)
        aside.replace(self._state_file)

    def _load(self) -> None:
        state = torch.load(self._state_file, weights_only=True)
        self.step, self.tokens, self.start = state["step"], state["tokens"], state["start"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def train(self) -> None:
        """Train until the last step, noting the loss as it goes."""
        stream = batches(self.tokenizer, SEED, MICRO_BATCH_TOKENS, self.start)
        saved = began = time.monotonic()
        losses: list[float] = []
        counted = self.tokens
        while self.step < self.steps:
            losses.append(self._one_step(stream))
            if self.step % 10 == 0:
                now = time.monotonic()
                loss, rate = sum(losses) / len(losses), (self.tokens - counted) / (now - began)
                progress = f"step {self.step} of {self.steps} tokens {self.tokens}"
                self._note(f"{progress} loss {loss:.4f} rate {rate:.0f}")
                losses, counted, began = [], self.tokens, now
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()

    def _note(self, line: str) -> None:
        print(line, flush=True)
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    def _one_step(self, stream: Iterator[tuple[int, Batch]]) -> float:
        """Take one optimizer step; return its loss per weight of a token."""
        progress = self.step / self.steps
        Linear.quantized = progress > 1 - INT4_SHARE
        factor = min(1.0, (self.step + 1) / WARM_UP, (1 - progress) / (1 - CONSTANT_SHARE))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_rate"] * factor
        chosen = list(islice(stream, MICRO_BATCHES))
        self.start = chosen[-1][0]
        weight = sum(float(batch[2].sum()) for _, batch in chosen)
        loss = sum(self._backward(batch, weight) for _, batch in chosen)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return loss

    def _backward(self, batch: Batch, weight: float) -> float:
        ids, following, weights = batch
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(ids)
        counted = weights > 0
        losses = functional.cross_entropy(logits[counted].float(), following[counted], reduction="none")
        loss = (losses * weights[counted]).sum() / weight
        loss.backward()
        self.tokens += ids.numel()
        return float(loss.detach())


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the run's tokenizer, trained now if it is not there yet."""
    file = folder / "tokenizer.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        train_tokenizer(islice(corpus(SEED), TOKENIZER_CONVERSATIONS)).save(str(file))
    return Tokenizer.from_file(str(file))


def optimizers_of(model: Decoder) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for the embedding and the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon([{"params": matrices, "base_rate": MATRIX_RATE}], lr=MATRIX_RATE, weight_decay=0.02)
    other = [
        {"params": [model.embed_tokens.weight], "base_rate": OTHER_RATE, "weight_decay": 0.01},
        {"params": gains, "base_rate": OTHER_RATE, "weight_decay": 0.0},
    ]
    return [muon, torch.optim.AdamW(other, lr=OTHER_RATE, betas=(0.9, 0.97))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the run")
    parser.add_argument("--steps", type=int, default=5000, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads to compute with (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run = Run(arguments.out, arguments.steps)
    run.train()
    draw(run.log, arguments.out / "loss.svg")
    write_checkpoint(arguments.out / "hf", run.model.state_dict(), run.tokenizer)


if __name__ == "__main__":
    main()
