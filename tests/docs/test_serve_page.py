"""The page of the server names every endpoint, and nothing that is none."""

import re

import pytest
from documents import REPO

pytest.importorskip("starlette", reason="the server needs the extra `serve`")

from tinychat.serve.openapi import openapi_document


def test_every_endpoint_is_on_the_page():
    text = (REPO / "docs" / "serve.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:GET|POST) (/\S+)`", text)) - {"/openapi.json"}
    assert named == {path for path in openapi_document()["paths"] if "{" not in path}
