import pytest

from tinychat.errors import CheckpointError, TextError
from tinychat.json_file import read_json_object, read_settings


def test_a_key_that_occurs_twice_is_refused_in_a_checkpoint_alone(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"a": 1, "a": 2}')
    assert read_settings(file) == {"a": 2}
    with pytest.raises(CheckpointError, match="the key 'a' occurs twice"):
        read_json_object(file)


def test_a_file_that_is_not_there_holds_no_settings(tmp_path):
    assert read_settings(tmp_path / "none.json") == {}
    with pytest.raises(CheckpointError, match="does not exist"):
        read_json_object(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "1", '"x"', "[" * 100_000])
def test_what_is_not_an_object_is_refused(text, tmp_path):
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=r"file\.json"):
        read_json_object(file)
    with pytest.raises(TextError, match=r"file\.json"):
        read_settings(file)
