"""Install a small Debian of another processor once, and run tests of this checkout in it, emulated by QEMU.

    sudo scripts/emulate arm64 [--isa neon-dotprod] [--folder FOLDER] [PYTEST ARGUMENT ...]
    sudo scripts/emulate arm64 --isa generic --run python -m tinychat complete demo -p Hello

Linux and root only; apt-get install debootstrap qemu-user-static brings what it needs. The first run makes FOLDER (by
default below the user's cache): Debian 12 by debootstrap, its Python, and the wheels of pyproject.toml, which the pip
of this machine fetches. Linux is told to start programs of that processor with QEMU (binfmt_misc), until it restarts;
all else is mounted for as long as the tests run, the checkout read-only.

Kernels are compiled outside the emulator where they can be: native_compiler.py. As a file of tests ends, a line says
what passed in what time; a run that was stopped goes on where it was, until code or tests change: emulated_tests.py.

Each instruction set runs on a processor that has it and nothing better, so that an instruction of a better one ends the
tests. They compare bits: tests/goldens/digests.json was written on x86.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# What the header of a program has, and which of its bits count.
MAGIC = r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# Of the extra of tests, what the chosen tests import; the others take long to install.
TEST_PACKAGES = ("pytest", "hypothesis", "llguidance", "pexpect", "pyte")
TESTS = ("tests/test_digests.py", "tests/kernels", "tests/test_number_contract.py", "tests/test_families.py")
PYTHON = "3.11"
SITE = f"opt/tinychat/lib/python{PYTHON}/site-packages"
JOURNALS = "var/lib/tinychat-tests"


class Processor(NamedTuple):
    """A processor: its name for QEMU, its number, and its features as Linux lists them."""

    name: str
    part: int
    features: str


_PLAIN = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_NEWER = f"{_PLAIN} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
PROCESSORS = {
    "generic": Processor("cortex-a72", 0xD08, _PLAIN),
    "neon-dotprod": Processor("neoverse-n1", 0xD0C, _NEWER),
    # QEMU has no Neoverse V1; what it has instead can do all of that.
    "neon-i8mm": Processor("max", 0xD40, f"{_NEWER} jscvt fcma sha3 sha512 asimdfhm i8mm bf16"),
}


def cpu_info(processor: Processor, cores: int) -> str:
    """Return what Linux on that processor says in /proc/cpuinfo: QEMU shows that of this machine."""
    lines = f"Features\t: {processor.features}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
    return "".join(
        f"processor\t: {core}\n{lines}CPU part\t: {processor.part:#x}\nCPU revision\t: 1\n\n" for core in range(cores)
    )


def requirements(text: str) -> list[str]:
    """Return what pip installs for the tests, by the text of pyproject.toml."""
    project = tomllib.loads(text)["project"]
    tests = project["optional-dependencies"]["test"]
    return [*project["dependencies"], *(each for each in tests if re.split(r"[^\w.-]", each)[0] in TEST_PACKAGES)]


def install(root: Path, qemu: str) -> None:
    """Install the system and the packages below `root`, if they are not there."""
    if not (root / "installed-system").exists():
        if root.exists() and any(root.iterdir()) and not (root / "unfinished").exists():
            raise SystemExit(f"{root} has other files: name an empty folder")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        (root / "unfinished").touch()
        packages = "--include=python3,python3-venv,ca-certificates"
        debootstrap = ["debootstrap", "--arch=arm64", "--variant=minbase", "--foreign", packages, "bookworm", str(root)]
        subprocess.run(debootstrap, stdout=sys.stderr, check=True)
        shutil.copy(qemu, root / "usr/bin")
        second = ["chroot", str(root), "/debootstrap/debootstrap", "--second-stage"]
        subprocess.run(second, stdout=sys.stderr, check=True)
        subprocess.run(["chroot", str(root), "python3", "-m", "venv", "--without-pip", "/opt/tinychat"], check=True)
        (root / "unfinished").rename(root / "installed-system")
    wanted, stamp = (REPO / "pyproject.toml").read_text(encoding="utf-8"), root / "installed-packages"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install_packages(root, requirements(wanted))
        stamp.write_text(wanted, encoding="utf-8")


def install_packages(root: Path, packages: list[str]) -> None:
    """Install wheels for the emulated processor with this Python's pip, which is many times as fast as one in there."""
    pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    target = ["--target", str(root / SITE), "--python-version", PYTHON, "--only-binary=:all:"]
    for glibc in (17, 28, 34, 36):
        target += ["--platform", f"manylinux_2_{glibc}_aarch64"]
    subprocess.run([*pip, *target, *packages], check=True)
    # Its version and its command; the modules are those of the checkout.
    subprocess.run([*pip, "--target", str(root / SITE), "--no-deps", str(REPO)], check=True)
    shutil.rmtree(root / SITE / "tinychat")


def register(qemu: str, binfmt: Path = BINFMT) -> None:
    """Let Linux start programs of that processor with QEMU, wherever their root folder is."""
    if not (binfmt / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", str(binfmt)], check=True)
    if not any("aarch64" in each.name for each in binfmt.iterdir()):
        # F: the file is opened now, so that a new root folder need not have it.
        (binfmt / "register").write_text(f":qemu-aarch64:M::{MAGIC}:{MASK}:{qemu}:OPF", encoding="ascii")


def sources_digest() -> str:
    """Return a hash of the code and of its tests: results of others do not count."""
    digest = hashlib.sha256()
    for path in sorted(each for folder in ("tinychat", "tests") for each in (REPO / folder).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.relative_to(REPO).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler_socket(isa: str) -> str:
    """Return where the compiler of this machine listens, below the emulated system."""
    return f"{JOURNALS}/compiler-{isa}"


@contextmanager
def compiler(root: Path, isa: str) -> Iterator[None]:
    """Let a process of this machine compile for the emulated one."""
    (root / JOURNALS).mkdir(parents=True, exist_ok=True)
    # Tests have types of their own.
    path = os.pathsep.join(str(REPO / folder) for folder in ("", "scripts", "tests", "tests/kernels"))
    script, places = REPO / "scripts/native_compiler.py", [root / compiler_socket(isa), root / f"var/cache/for-{isa}"]
    command = [sys.executable, "-P", script, *places]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()


def command(root: Path, isa: str, words: list[str]) -> list[str]:
    """Return the command that runs a program in the emulated system; its mounts end with it."""
    processor, at = PROCESSORS[isa], shlex.quote(str(root))
    info = root / f"cpuinfo-{isa}"
    info.write_text(cpu_info(processor, os.cpu_count() or 1), encoding="utf-8")
    (root / "checkout").mkdir(exist_ok=True)
    mounts = (
        f"mount -t proc proc {at}/proc && mount --bind {shlex.quote(str(info))} {at}/proc/cpuinfo && "
        f"mount --rbind /dev {at}/dev && mount -t tmpfs tmpfs {at}/tmp && "
        f"mount --bind {shlex.quote(str(REPO))} {at}/checkout && mount -o remount,bind,ro {at}/checkout"
    )
    variables = {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/opt/tinychat/bin:/usr/bin:/bin",
        "PYTHONPATH": "/checkout:/checkout/scripts",
        "PYTHONDONTWRITEBYTECODE": "1",
        # The default is in the checkout, which cannot be written to.
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
        "TINYCHAT_TEST_JOURNAL": f"/{JOURNALS}/{isa}-{sources_digest()}.jsonl",
        "TINYCHAT_COMPILER": f"/{compiler_socket(isa)}",
        "TINYCHAT_CACHE": "/var/cache/tinychat",
        "TINYCHAT_ISA": isa,
        "QEMU_CPU": processor.name,
    }
    environment = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    inside = shlex.join(["chroot", str(root), *environment, "sh", "-c", f"cd /checkout && exec {shlex.join(words)}"])
    return ["unshare", "--mount", "sh", "-c", f"{mounts} && exec {inside}"]


def default_folder() -> Path:
    """Return the folder of the emulated system where none is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinychat-emulated" / "arm64"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Other arguments go to pytest; by default {' '.join(TESTS)}.",
        allow_abbrev=False,
    )
    parser.add_argument("system", choices=("arm64",))
    parser.add_argument("--isa", choices=PROCESSORS, default="generic", help="by default %(default)s")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="by default %(default)s")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="WORD", help="run a command rather than tests")
    options, others = parser.parse_known_args()
    if sys.platform != "linux" or os.geteuid() != 0:
        parser.error("only root on Linux can change the root folder of a program")
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None or shutil.which("debootstrap") is None:
        parser.error("debootstrap or QEMU is missing: apt-get install debootstrap qemu-user-static")
    root = options.folder.resolve()
    if root.is_relative_to(REPO):
        parser.error(f"{root} is in the repository: name another folder")
    register(qemu)
    install(root, qemu)
    plugins = ["-p", "no:cacheprovider", "-p", "emulated_tests"]
    pytest = ["python", "-P", "-m", "pytest", *plugins, "-m", "not slow and not live"]
    words = options.run or [*pytest, *(others or TESTS)]
    with compiler(root, options.isa):
        return subprocess.run(command(root, options.isa, words), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
