"""What stands where a file should: pipes, devices, folders, files without end."""

import os
import shutil
import stat
from pathlib import Path

import families
import pytest

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import convert
from tinychat.errors import TextError, TinychatError
from tinychat.files import open_regular, read_small, read_stream, read_text, replacing, write_new
from tinychat.models.folder import open_model_folder

KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
    "endless file": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
    "nothing": lambda path: path.symlink_to("nowhere"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    return convert(checkpoint, tmp_path_factory.mktemp("models") / "model")


def replaced(folder, target, name, kind):
    shutil.copytree(folder, target)
    (target / name).unlink(missing_ok=True)
    KINDS[kind](target / name)
    return target


@every_kind
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"]
)
def test_files_of_a_checkpoint(checkpoint, tmp_path, name, kind):
    folder = replaced(checkpoint, tmp_path / "c", name, kind)
    if name != "config.json":
        for other in {"model.safetensors"} - {name}:
            (folder / other).unlink()
    with pytest.raises(TinychatError) as error:
        open_checkpoint(folder)
    assert "\n" not in str(error.value)


@every_kind
@pytest.mark.parametrize("name", ["config.json", "tinychat.json", "model.safetensors"])
def test_files_of_a_model_folder(model, tmp_path, name, kind):
    with pytest.raises(TinychatError):
        open_model_folder(replaced(model, tmp_path / "m", name, kind))


@pytest.mark.parametrize("kind", ["endless file"])
def test_a_text_file_without_end_is_not_copied(checkpoint, tmp_path, kind):
    folder = replaced(checkpoint, tmp_path / "c", "merges.txt", kind)
    with pytest.raises(TinychatError, match=r"merges\.txt cannot be read \(it is larger than 64 MiB\)"):
        convert(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@every_kind
def test_small_files_only(tmp_path, kind):
    KINDS[kind](tmp_path / "file")
    with pytest.raises(OSError):
        read_small(tmp_path / "file", 1000)


def test_sizes_at_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    assert read_small(tmp_path / "file", 1000) == read_stream(tmp_path / "file", 1000) == b"x" * 1000
    for read in (read_small, read_stream):
        with pytest.raises(OSError, match="it is larger than"):
            read(tmp_path / "file", 999)
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"x" * 1000


def test_what_a_person_names_may_be_a_pipe_but_has_an_end(tmp_path):
    """As ``<(command)`` of a shell is one."""
    reader, writer = os.pipe()
    os.write(writer, b"piped")
    os.close(writer)
    assert read_text(Path(f"/dev/fd/{reader}")) == "piped"
    os.close(reader)
    with pytest.raises(TextError, match="larger than 1 MiB"):
        read_text(Path("/dev/zero"), 1 << 20)


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="files have no modes")
def test_files_that_replace_others_have_their_rights(tmp_path):
    def mode_of(name, **how):
        with replacing(tmp_path / name, **how) as file:
            file.write(b"new")
        return stat.S_IMODE((tmp_path / name).stat().st_mode)

    (tmp_path / "plain").touch()
    own = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o664)
    assert (mode_of("a", is_private=False), mode_of("shared", is_private=False)) == (own, 0o664)
    assert (mode_of("b"), mode_of("shared")) == (0o600, 0o600)


def test_a_new_file_is_whole_or_not_there(tmp_path):
    write_new(tmp_path / "a", "text\n")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", "other")
    assert (tmp_path / "a").read_bytes() == b"text\n"
    with pytest.raises(UnicodeEncodeError):
        write_new(tmp_path / "b", "half a character: \ud800")
    assert not (tmp_path / "b").exists()
