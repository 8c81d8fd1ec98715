"""The README's table of families is what their files say."""

import make_family_table

from tinychat.models.architectures import FAMILIES


def test_the_readme_has_the_table_of_today():
    readme = make_family_table.README.read_text()
    assert all(f"| `{name}` |" in readme for name in FAMILIES)
    assert make_family_table.with_table(readme) == readme, "run scripts/make_family_table.py"
