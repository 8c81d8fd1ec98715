"""The recording of the front half: it writes what differs, and never a saved session a second time."""

import pytest
import record_front


@pytest.fixture
def golden(tmp_path, monkeypatch):
    monkeypatch.setattr(record_front, "RECORDINGS", {"words": lambda folder: {"a.txt": "new\n", "b.txt": "same\n"}})
    monkeypatch.setattr(record_front, "GOLDENS", tmp_path)
    monkeypatch.setattr("front.recordings.GOLDENS", tmp_path)
    (tmp_path / "words").mkdir()
    for name, text in {"a.txt": "old\n", "b.txt": "same\n", "gone.txt": "old\n"}.items():
        (tmp_path / "words" / name).write_text(text)
    return tmp_path / "words"


def test_what_differs_is_written_and_what_is_no_longer_recorded_goes(golden, capsys):
    record_front.main(["words"])
    assert {path.name: path.read_text() for path in golden.iterdir()} == {"a.txt": "new\n", "b.txt": "same\n"}
    assert capsys.readouterr().err == "removed: words/gone.txt\nrecorded: words/a.txt\n"


def test_an_unknown_recording_is_refused(golden):
    with pytest.raises(SystemExit):
        record_front.main(["wrods"])
    assert (golden / "a.txt").read_text() == "old\n"


def test_a_saved_session_is_never_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(record_front, "SAVED", tmp_path)
    monkeypatch.setattr(record_front, "make_saved", lambda folder: {"old.json": "2", "new.json": "2"})
    (tmp_path / "old.json").write_text("1")
    (tmp_path / "derived.json").write_text("1")
    record_front.main(["--save-sessions"])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "old.json": "1",
        "new.json": "2",
        "derived.json": "1",
    }
