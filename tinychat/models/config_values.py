"""Typed, bounded access to the values of a `config.json`; errors name the key and the file."""

from collections.abc import KeysView, Mapping

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line

MAX_VOCAB_SIZE = 1 << 24


class ConfigValues:
    """A JSON object whose values are not trusted.

    A key that is missing and a key that is null are the same: None from the ``optional_`` methods, an error from the
    others. `source` is the name in errors, a file or a file and a key; `names` maps keys to those of this object.
    """

    def __init__(self, raw: Mapping[str, object], source: str, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self._raw = raw
        self.source = source

    def name_of(self, key: str) -> str:
        """Return the name that a key has in the object."""
        return self._names.get(key, key)

    def get(self, key: str) -> object:
        """Return the unchecked value, None when missing."""
        return self._raw.get(self.name_of(key))

    def error(self, key: str, expected: str) -> CheckpointError:
        """Return the error that names the value of `key` and the expected one."""
        key = self.name_of(key)
        if self._raw.get(key) is None:
            return CheckpointError(f"{self.source}: {key} is missing; expected {expected}")
        found = one_line(repr(self._raw[key]), 60)
        return CheckpointError(f"{self.source}: {key} is {found}; expected {expected}")

    def integer(self, key: str, low: int, high: int) -> int:
        """Return an integer in ``low..high``."""
        value = self.get(key)
        # bool is a subclass of int: `true` must not count as 1.
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer in ``low..high``, or None."""
        return None if self.get(key) is None else self.integer(key, low, high)

    def number(self, key: str, low: float, high: float) -> float:
        """Return a finite number in ``low..high`` as a float."""
        value = self.get(key)
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise self.error(key, f"a number from {low:g} to {high:g}")
        return float(value)  # type: ignore[arg-type]

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Return a finite number in ``low..high`` as a float, or None."""
        return None if self.get(key) is None else self.number(key, low, high)

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """Return a list of `count` finite numbers in ``low..high``."""
        found = self.get(key)
        if not isinstance(found, list) or len(found) != count:
            raise self.error(key, f"a list of {count} numbers")
        if not all(type(value) in (int, float) and low <= value <= high for value in found):
            raise self.error(key, f"numbers from {low:g} to {high:g}")
        return tuple(float(value) for value in found)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; `default` when missing."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def require(self, **only: bool | None) -> None:
        """Refuse values that are not implemented: a flag other than the given one; any value where that is None."""
        for key, value in only.items():
            if value is None and self.get(key) is not None:
                raise UnsupportedModelError(f"{self.source}: {self.name_of(key)} is not supported")
            if value is not None and self.flag(key, value) != value:
                found = f"{self.name_of(key)} {str(not value).lower()}"
                raise UnsupportedModelError(f"{self.source}: {found} is not supported")

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def optional_section(self, key: str) -> "ConfigValues | None":
        """Return the object under `key`; None when missing or empty."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "an object")
        return ConfigValues(value, f"{self.source}: {key}") if value else None

    def keys(self) -> KeysView[str]:
        """Return the keys that are present, in the order of the file."""
        return self._raw.keys()

    def check_token_ids(self, key: str) -> None:
        """Refuse a value that is neither a token id nor a list of them; `tinychat.text` reads the ids themselves."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and 0 <= i < MAX_VOCAB_SIZE for i in ids):
            raise self.error(key, f"token ids from 0 to {MAX_VOCAB_SIZE - 1}")


def with_default_mlp(raw: Mapping[str, object], width: str, mlp: str) -> Mapping[str, object]:
    """Return the values of a file with an MLP of four times the model's width, where it names none; by their keys."""
    size = raw.get(width)
    return {**raw, mlp: 4 * size} if raw.get(mlp) is None and type(size) is int else raw
