"""The memory of control groups, read from folders that stand for those of Linux."""

import pytest

from tinychat.control_group import GroupMemory, group_memory

MIB = 1 << 20


def write(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def membership(tmp_path):
    file = tmp_path / "membership"
    file.write_text("0::/service/inner\n")
    return file


def test_the_limit_of_an_outer_group_counts(tmp_path, membership):
    write(tmp_path / "service/inner", memory__max="max", memory__high="max", memory__current=300 * MIB)
    assert group_memory(membership, tmp_path) is None
    write(tmp_path / "service", memory__max=1024 * MIB, memory__high=800 * MIB, memory__current=700 * MIB)
    write(tmp_path / "service", memory__stat=f"anon 5\ninactive_file {50 * MIB}")
    assert group_memory(membership, tmp_path) == GroupMemory(800 * MIB, 150 * MIB)
    write(tmp_path / "service/inner", memory__max=310 * MIB)
    assert group_memory(membership, tmp_path) == GroupMemory(310 * MIB, 10 * MIB)
    write(tmp_path / "service/inner", memory__current=320 * MIB)
    assert group_memory(membership, tmp_path) == GroupMemory(310 * MIB, 0)


def test_groups_of_the_first_version(tmp_path, membership):
    membership.write_text("9:cpu,cpuacct:/\n4:memory:/box\n0::/\n")
    none = 2**63 - 4096
    write(tmp_path / "memory", memory__limit_in_bytes=none, memory__usage_in_bytes=1)
    write(tmp_path / "memory/box", memory__limit_in_bytes=none, memory__usage_in_bytes=400 * MIB)
    assert group_memory(membership, tmp_path) is None
    write(tmp_path / "memory/box", memory__limit_in_bytes=512 * MIB, memory__stat=f"total_inactive_file {100 * MIB}")
    assert group_memory(membership, tmp_path) == GroupMemory(512 * MIB, 212 * MIB)


def test_a_system_without_groups(tmp_path, membership):
    assert group_memory(tmp_path / "none", tmp_path) is None
    assert group_memory(membership, tmp_path / "none") is None
    membership.write_text("nonsense\n")
    assert group_memory(membership, tmp_path) is None
