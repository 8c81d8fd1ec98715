import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinychat
from tinychat import api

REPOSITORY = Path(__file__).parents[1]


def test_every_public_name_can_be_had():
    missing = object()
    assert [name for name in tinychat.__all__ if getattr(tinychat, name, missing) is missing] == []
    assert set(tinychat.__all__) <= set(dir(tinychat))
    assert tinychat.convert is api.convert
    assert callable(tinychat.load)


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = tinychat.lode


def test_former_names_last_one_release():
    assert tinychat.Piece is tinychat.Delta
    assert tinychat.Reply.piece_as_json is tinychat.Reply.delta_as_json


def test_importing_the_package_loads_nothing_heavy():
    program = (
        "import sys, tinychat; heavy = {'numba', 'numpy', 'tokenizers', 'click'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_version_is_the_one_of_the_project():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert tinychat.__version__ == project["version"]
