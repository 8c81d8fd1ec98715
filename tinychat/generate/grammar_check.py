"""Compiling grammars of strangers in a helper process: see `tinychat.limited_process`.

What compiles here, within a second, half a gigabyte and a stack that is smaller than any other thread's, compiles
wherever the model is. Llguidance recurses over references and rules, and its work on multiples and large alternatives
has no bound of its own.
"""

from __future__ import annotations

import threading
from typing import Any

import llguidance

# macOS gives threads 512 KiB, the smallest of the usual systems; nested objects and references take some 8 KiB each.
_STACK_BYTES = 384 << 10
_END = 256


class _Bytes:
    """A vocabulary of all bytes and one stop token."""

    tokens = [*(bytes([number]) for number in range(_END)), b"<end>"]  # noqa: RUF012
    special_token_ids = [_END]  # noqa: RUF012
    eos_token_id = _END
    bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return []


def answer(request: Any) -> str:
    """Translate (["translate", text]) a grammar to Lark, or compile it (["compile", lark]) and return the error."""
    action, text = request
    if action == "translate":
        lark: str = llguidance.grammar_from("ebnf", text)
        return lark
    problems: list[str] = []
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=lambda: problems.append(_compile(text)))
    thread.start()
    thread.join()
    return problems[0]


def _compile(lark: str) -> str:
    """Compile the grammar; it is freed here, too, on this thread's stack."""
    tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), eos_token=[_END])
    problem: str = llguidance.LLMatcher.validate_grammar(lark)
    if not problem or problem.startswith("WARNING"):
        # Masks need no check: the library itself bounds their cost.
        llguidance.LLMatcher(tokens, lark, log_level=0)
    return problem


# Everything is loaded now: no file can be opened once requests come.
answer(["compile", answer(["translate", 'root ::= "a"'])])
