"""Repetition in one reply: the ids that penalties look at, and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinychat.generate.constraint_state import Region
from tinychat.generate.loops import PROSE, LoopDetector
from tinychat.generate.request import Request
from tinychat.generate.text_shape import TextShape

# Tokens that are looked at together for loops.
_AT_ONCE = 4


class Repetition:
    """Follows the tokens of a reply.

    `region` is that of the next token, set before it is chosen; `all_ids` are those of the prompt and the reply so far.
    """

    def __init__(self, request: Request, prompt_ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> None:
        self.region: Region = Region.PROSE
        self.all_ids: list[int] = list(prompt_ids)
        self._prompt_length = len(prompt_ids)
        # The tokens of the string of a structure that is being written.
        self._string_ids: list[int] = []
        ends_loops = request.loop_stop and not request.ignore_eos
        self._loops = LoopDetector(token_bytes) if ends_loops else None
        # What was not looked at for loops yet.
        self._unwatched: list[tuple[int, Region]] = []
        # The sampler alone asks for it, where it penalizes.
        self._shape = None if request.repeat_in_code or request.repeat_penalty == 1.0 else TextShape()

    @property
    def penalized_ids(self) -> Sequence[int]:
        """The ids that penalties look at: none for marks and names, which a grammar wants again and again.

        A string of a structure may copy what was said before it, such as a path, but must not repeat itself.
        """
        match self.region:
            case Region.PROSE:
                return self.all_ids
            case Region.STRING:
                return self._string_ids
        return ()

    @property
    def is_structured(self) -> bool:
        """Whether the next token is in code or a table, where penalties may be off; False where they are not."""
        return self._shape is not None and self._shape.is_structured and self.region is Region.PROSE

    def add(self, token_id: int, text: str) -> None:
        """Add a token that was chosen, and the text that it settles."""
        self.all_ids.append(token_id)
        if self.region is Region.STRING:
            self._string_ids.append(token_id)
        else:
            self._string_ids.clear()
        if self._shape is not None and self.region is Region.PROSE:
            self._shape.add(text.encode())
        if self._loops is not None:
            self._unwatched.append((token_id, self.region))

    def is_loop(self) -> bool:
        """Return whether the reply is in a loop; several tokens at once cost little more than one.

        A short reply has no loop, and is not looked at.
        """
        is_short = len(self.all_ids) < self._prompt_length + PROSE
        if self._loops is None or len(self._unwatched) < _AT_ONCE or is_short:
            return False
        unwatched, self._unwatched = self._unwatched, []
        return any(self._loops.add(token_id, region) for token_id, region in unwatched)
