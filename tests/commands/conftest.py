"""What the tests of commands share: a console whose model is a fake one, and the files of a batch."""

import json

import pytest
from batches import STORY
from console import Console
from fake_model import fake_model


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(STORY, has_template=False), monkeypatch, capsys)


@pytest.fixture
def batch_files(tmp_path):
    """Return a function that writes IN.jsonl, of objects or lines, and returns both paths."""

    def write(lines):
        source = tmp_path / "in.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", errors="surrogateescape")
        return source, tmp_path / "out.jsonl"

    return write
