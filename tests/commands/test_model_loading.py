"""What loading a model asks of the machine."""

from types import SimpleNamespace

import pytest

from tinychat.commands import loading
from tinychat.settings import LoadSettings


@pytest.mark.parametrize("is_on_battery", [True, False])
def test_other_programs_go_first_on_battery(monkeypatch, is_on_battery):
    asked = []
    engine = SimpleNamespace(threads=2)
    model = SimpleNamespace(sequence=SimpleNamespace(engine=engine), context_size=64, trained_length=64)
    monkeypatch.setattr(loading, "_load", lambda name, options: model)
    monkeypatch.setattr(loading, "is_on_battery", lambda: is_on_battery)
    monkeypatch.setattr(loading, "lower_priority", lambda: asked.append(True))
    assert loading.load_model("some", LoadSettings()) is model
    assert asked == [True] * is_on_battery
