import json
import sys

import pytest
from import_graph import REPO

sys.path.insert(0, str(REPO / "scripts"))

import try_image

STEPS = try_image.steps((REPO / "Dockerfile").read_text())


def test_what_the_image_copies_is_here_and_let_through():
    allowed = {line[1:] for line in (REPO / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for name, rest in STEPS if name == "COPY" for source in rest.split()[:-1]}
    assert copied == allowed
    assert all((REPO / source).exists() for source in copied)


def test_the_server_has_a_user_of_its_own_and_a_health_check(tmp_path):
    image = try_image.Image(tmp_path, {"ISA": "generic"}, {})
    for name, rest in STEPS:
        if name not in ("RUN", "COPY"):
            image.apply(name, rest)
    assert image.user == "tinychat"
    assert image.environment.items() >= {"TINYCHAT_MODEL": "demo", "TINYCHAT_ISA": "generic"}.items()
    assert json.loads(image.settings["ENTRYPOINT"]) == ["tinychat"]
    assert "/health" in json.loads(image.settings["HEALTHCHECK"])[2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM a\n# b\nRUN c \\\n    && d\n", [("FROM", "a"), ("RUN", "c && d")]),
        ("ENV A=$B\n\nARG B=\n", [("ENV", "A=$B"), ("ARG", "B=")]),
    ],
)
def test_steps_are_read(text, found):
    assert try_image.steps(text) == found
