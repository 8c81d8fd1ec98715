"""llama.cpp as an engine to be measured: ``python -m comparison.llama_engine GGUF --threads N``."""

import argparse
import sys
import time
from importlib.metadata import version
from typing import Any

from comparison import llama_library
from comparison.serving import SHORT_PROMPT, run, token_ids

BATCH = 512
SEQUENCE = 0
ROUNDED_UP = 256


class Context:
    """A context of llama.cpp: one sequence and its cache, or room for several."""

    def __init__(
        self, llama: Any, model: Any, size: int, threads: int, flash_attention: int, sequences: int = 1
    ) -> None:
        settings = llama.llama_context_default_params()
        settings.n_ctx = size
        settings.n_seq_max = sequences
        settings.n_batch = settings.n_ubatch = BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = flash_attention
        self.llama = llama
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            sys.exit(f"error: llama.cpp cannot make a context of {size} tokens")
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        self.length = 0

    def rewind(self, length: int) -> None:
        """Keep only the first positions; none, where llama.cpp cannot take a state back."""
        if self.llama.llama_memory_seq_rm(self.memory, SEQUENCE, length, -1):
            self.length = min(self.length, length)
        else:
            self.clear()

    def append(self, ids: list[int]) -> None:
        """Run token ids in batches and wait for the logits after the last, the only ones to be computed."""
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            self._fill(part, is_last=start + BATCH >= len(ids))
            if self.llama.llama_decode(self.context, self.batch):
                sys.exit("error: llama_decode failed")
            self.length += len(part)
        self.llama.llama_synchronize(self.context)

    def clear(self) -> None:
        """Forget all sequences."""
        self.llama.llama_memory_clear(self.memory, True)
        self.length = 0

    def append_to_each(self, ids: list[int]) -> None:
        """Run one token of each sequence, and wait for the logits after each."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = self.length
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = i
            batch.logits[i] = 1
        if self.llama.llama_decode(self.context, batch):
            sys.exit("error: llama_decode failed")
        self.length += 1
        self.llama.llama_synchronize(self.context)

    def logits(self, vocab_size: int) -> list[float]:
        """Return the logits after the last token."""
        return list(self.llama.llama_get_logits_ith(self.context, -1)[:vocab_size])

    def _fill(self, ids: list[int], is_last: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = self.length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = SEQUENCE
            batch.logits[i] = 0
        batch.logits[len(ids) - 1] = is_last


class LlamaEngine:
    """A GGUF file, with one context for each length that is measured."""

    def __init__(self, file: str, threads: int, flash_attention: str) -> None:
        llama = self.llama = llama_library.load()
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"error: llama.cpp cannot load {file}")
        self.threads = threads
        self.flash_attention = {
            "on": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
        }[flash_attention]
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        amx = " with AMX" if b"AMX_INT8 = 1" in llama.llama_print_system_info() else ""
        self.version = f"llama-cpp-python {version('llama-cpp-python')}{amx}"
        self.contexts: dict[tuple[str, int], Context] = {}

    def context(self, use: str, size: int) -> Context:
        """Return the context that serves one use."""
        key = use, size
        if key not in self.contexts:
            self.contexts[key] = Context(self.llama, self.model, size, self.threads, self.flash_attention)
        return self.contexts[key]

    def prefill(self, tokens: int) -> float:
        """See `serving.Engine`."""
        context = self.context("prefill", tokens)
        ids = token_ids(tokens, self.vocab_size)
        context.rewind(0)
        start = time.perf_counter()
        context.append(ids)
        return time.perf_counter() - start

    def decode(self, depth: int, tokens: int) -> float:
        """See `serving.Engine`."""
        context = self.context("decode", depth + tokens)
        ids = token_ids(depth + tokens, self.vocab_size)
        context.rewind(depth)
        context.append(ids[context.length : depth])
        start = time.perf_counter()
        for token in ids[depth:]:
            context.append([token])
        return time.perf_counter() - start

    def many(self, sequences: int, tokens: int) -> float:
        """See `serving.Engine`."""
        key = "many", sequences
        if key not in self.contexts:
            # A size for each sequence, which llama.cpp rounds up.
            size = sequences * (SHORT_PROMPT + tokens + ROUNDED_UP)
            self.contexts[key] = Context(self.llama, self.model, size, self.threads, self.flash_attention, sequences)
        context = self.contexts[key]
        ids = token_ids(sequences * SHORT_PROMPT + tokens, self.vocab_size)
        context.clear()
        for position in range(SHORT_PROMPT):
            context.append_to_each([ids[i * SHORT_PROMPT + position] for i in range(sequences)])
        start = time.perf_counter()
        for token in ids[-tokens:]:
            context.append_to_each([token] * sequences)
        return time.perf_counter() - start

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """See `serving.Engine`."""
        context = self.context("logits", context_size)
        context.rewind(0)
        context.append(token_ids(tokens, self.vocab_size))
        return context.logits(self.vocab_size)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve llama.cpp to the comparison.")
    parser.add_argument("--flash-attention", choices=["on", "off", "auto"], default="auto")
    run(lambda arguments: LlamaEngine(arguments.model, arguments.threads, arguments.flash_attention), parser)


if __name__ == "__main__":
    main()
