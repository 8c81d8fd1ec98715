"""Rows are read in every format, from files, folders and addresses; damaged files end in one line."""

import gzip

import pytest
from row_files import FORMATS, packed, pyarrow, write_rows

from tinychat.errors import SettingError, TextError
from tinychat.rows import sources
from tinychat.rows.locations import Location
from tinychat.rows.sources import RowReader

ROWS = [{"id": f"r{i}", "prompt": f'say "{i}",\nplease', "city": None if i == 1 else "Zürich"} for i in range(5)]


def read(path):
    return [*RowReader(Location(str(path)))]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_has_the_same_rows(tmp_path, suffix):
    found = read(write_rows(tmp_path / f"in.{suffix}", ROWS))
    assert [row.fields for row in found] == ROWS
    assert [(row.number, row.error) for row in found] == [(i, None) for i in range(1, 6)]


def test_a_folder_is_read_by_name_and_numbers_go_on(tmp_path):
    write_rows(tmp_path / "b.jsonl.gz", ROWS[:2])
    write_rows(tmp_path / "a.csv", ROWS[2:])
    for name in ("_SUCCESS", ".a.csv.crc", ".hidden.jsonl", "notes.txt"):
        (tmp_path / name).write_text("nothing")
    found = read(tmp_path)
    assert [row.fields["id"] for row in found] == ["r2", "r3", "r4", "r0", "r1"]
    assert [(row.number, row.file.base_name) for row in found][2:4] == [(3, "a.csv"), (4, "b.jsonl.gz")]


def test_a_name_that_says_nothing_is_json_lines(tmp_path):
    (tmp_path / "in").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n[]\n{"a": "\xff"}\n{"a": 2}')
    found = read(tmp_path / "in")
    assert [(row.number, dict(row.fields), row.error and row.error[:24]) for row in found] == [
        (1, {"a": 1}, None),
        (3, {}, "the line is not a JSON o"),
        (4, {}, "the line is not JSON in "),
        (5, {"a": 2}, None),
    ]


def test_cells_of_csv(tmp_path):
    (tmp_path / "in.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x\r\ny"\r\n\r\n,"""q"""\r\n1,2,3\r\n')
    found = read(tmp_path / "in.csv")
    assert [dict(row.fields) for row in found] == [{"a": "1", "b": "x\r\ny"}, {"a": None, "b": '"q"'}, {}]
    assert found[2].error == "the row has 3 cells, but the header has 2"


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_are_counted_where_that_is_quick(tmp_path, suffix):
    path = write_rows(tmp_path / f"in.{suffix}", ROWS * 400)
    is_quick = suffix in ("jsonl", "csv", "parquet")
    assert RowReader(Location(str(path))).count() == (len(ROWS) * 400 if is_quick else None)


def test_rows_of_a_folder_are_counted_and_empty_lines_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n  \nno JSON')
    (tmp_path / "b.csv").write_text('a,b\n1,"x\ny"\n\n2,3\n')
    reader = RowReader(Location(str(tmp_path)))
    assert reader.count() == len([*reader]) == 4
    assert RowReader(Location("-")).count() is None
    (tmp_path / "c.csv").write_text("a,a\n")
    assert reader.count() == 4
    assert RowReader(Location(str(tmp_path))).count() is None


def test_addresses_are_opened_by_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    for name in ("a.csv", "b.jsonl.gz"):
        data = write_rows(tmp_path / name, ROWS).read_bytes()
        fsspec.filesystem("memory").pipe(f"/rows-of-a-test/{name}", data)
    assert [row.fields for row in read("memory://rows-of-a-test/a.csv")] == ROWS
    assert [row.fields for row in read("memory://rows-of-a-test")] == ROWS * 2
    assert [row.fields for row in read(f"file://{tmp_path}/b.jsonl.gz")] == ROWS
    if pyarrow():
        write_rows(tmp_path / "c.parquet", ROWS)
        assert [row.fields for row in read(f"file://{tmp_path}/c.parquet")] == ROWS


HOSTILE = {
    "cut.jsonl.gz": (lambda: gzip.compress(b'{"a": 1}\n' * 9)[:-9], "is damaged, or not in the format of its name"),
    "cut.jsonl.zst": (lambda: packed(b'{"a": 1}\n' * 9, ".zst")[:-9], "is damaged, or not in the format of its name"),
    "no.jsonl.gz": (lambda: b"text", "is damaged, or not in the format of its name"),
    "no.jsonl.zst": (lambda: b"text", "is damaged, or not in the format of its name"),
    "bits.csv.gz": (lambda: gzip.compress(b"a\n" * 999)[:20] + b"\0" * 9, "is damaged, or not in the format"),
    "no.parquet": (lambda: b"PAR1 but not much more PAR1", "is damaged, or not in the format of its name"),
    "empty.parquet": (lambda: b"", "is damaged, or not in the format of its name"),
    "latin.csv": (lambda: "a\nb\nZürich\n".encode("latin-1"), "line 3 is not text in UTF-8: convert the file first"),
    "utf16.csv": (lambda: "a\nb\n".encode("utf-16"), "line 1 is not text in UTF-8: convert the file first"),
    "quote.csv": (lambda: b'a\n"b"c\n', "line 2 is not CSV"),
    "open.csv": (lambda: b'a\n"b\nc\n', "line 3 is not CSV"),
    "twice.csv": (lambda: b"a,b,a\n1,2,3\n", "has two columns 'a': rename one"),
    "long.jsonl": (lambda: b'{"a": "' + b"x" * 5000 + b'"}\n', "line 1 has more than 0 MiB: split it"),
    "long.csv": (lambda: b'a\n"' + b"x\n" * 5000 + b'"\n', "is not CSV: field larger than field limit"),
    "bomb.jsonl.gz": (lambda: gzip.compress(bytes(1 << 20)), "line 1 has more than 0 MiB: split it"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files_end_in_one_line(tmp_path, monkeypatch, name):
    if name.endswith((".zst", ".parquet")):
        pyarrow()
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 4096)
    make, problem = HOSTILE[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(TextError) as caught:
        read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [4, 200, 600])
def test_parquet_that_is_cut_is_refused(tmp_path, cut):
    path = write_rows(tmp_path / "in.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(TextError, match="is damaged, or not in the format of its name"):
        read(path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("in.parquet.gz", "Parquet is compressed inside; leave out .gz"),
        ("folder", "has no files that end with .jsonl, .csv or .parquet"),
        ("nowhere-at-all://rows.csv", "cannot be used: Protocol not known"),
        ("memory://no-such-folder/rows.csv", "cannot be used: "),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, monkeypatch, name, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.parquet.gz").touch()
    with pytest.raises(SettingError) as caught:
        read(name)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package"), [("in.parquet", "pyarrow"), ("in.jsonl.zst", "pyarrow"), ("a://b", "fsspec")]
)
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(__import__("sys").modules, package if package == "pyarrow" else "fsspec.core", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name.rpartition("/")[2]).touch()
    with pytest.raises(SettingError, match=f"need.* the package {package}: .*install {package}"):
        read(name)
