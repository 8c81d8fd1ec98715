"""Write the README's table of families: what each file of tinychat/models/families says of itself."""

import re
from pathlib import Path

from tinychat.models.architectures import FAMILIES

README = Path(__file__).resolve().parents[1] / "README.md"
HEAD = "| architecture | families | covered |\n|---|---|---|\n"


def table() -> str:
    """Return the table."""
    return HEAD + "".join(f"| `{name}` | {family.models} | {family.covered} |\n" for name, family in FAMILIES.items())


def with_table(readme: str) -> str:
    """Return the README's text with the table of today."""
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda match: table(), readme)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
