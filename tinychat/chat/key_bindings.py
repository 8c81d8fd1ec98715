"""The keys of the prompt that differ from the line editor's own."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.filters import has_selection, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from tinychat.chat.fences import is_open
from tinychat.chat.line_input import LineDiscarded, as_message


def key_bindings(multiline: Callable[[], bool]) -> KeyBindings:
    """Return the bindings.

    Enter sends and Alt-Enter or Ctrl-J begins a new line; while `multiline` says so, the other way
    round, except that a command is always sent by Enter. Inside an open fence all begin a new line.
    Ctrl-G opens the message in the editor. Ctrl-C clears the line, which Up brings back. A paste of
    several lines is a message, even if it begins like a command.
    """
    bindings = KeyBindings()
    typing = ~is_searching

    @bindings.add("enter", filter=typing)
    def _enter(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if is_open(text) or (multiline() and not text.startswith("/")):
            event.current_buffer.newline(copy_margin=False)
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    @bindings.add("c-j", filter=typing)
    def _other_enter(event: KeyPressEvent) -> None:
        if multiline() and not is_open(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-g", filter=typing & ~has_selection)
    def _editor(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c", filter=typing)
    @bindings.add("<sigint>")
    def _discard(event: KeyPressEvent) -> None:
        held_text = bool(event.current_buffer.text)
        event.current_buffer.append_to_history()
        event.app.exit(exception=LineDiscarded() if held_text else KeyboardInterrupt(), style="class:aborting")

    @bindings.add(Keys.BracketedPaste, filter=typing)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        buffer = event.current_buffer
        if not buffer.document.text_before_cursor and "\n" in text.strip():
            text = as_message(text)
        buffer.insert_text(text)

    return bindings
