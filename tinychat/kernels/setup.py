"""Settings of Numba, made before it is imported: instruction set and cache folder.

``tinychat.kernels`` imports this first. Environment: ``TINYCHAT_ISA`` (``amx``, or a name of `ISA_FEATURES`),
``TINYCHAT_CACHE``, ``XDG_CACHE_HOME``; Numba's own variables win where the user has set them.
"""

import atexit
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tinychat import processor
from tinychat.kernels.amx_grant import refusal
from tinychat.processor import ARM, X86
from tinychat.user_folders import cache_folder, fresh_folder, private_folder

# By architecture, the features that each instruction set needs, best first; "generic" is for all.
ISA_FEATURES = {
    X86: {
        "avx512vnni": {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma"},
        "avxvnni": {"avxvnni", "avx2", "f16c", "fma"},
        "avx2": {"avx2", "f16c", "fma"},
    },
    ARM: {"neon-i8mm": {"dotprod", "i8mm"}, "neon-dotprod": {"dotprod"}},
}
# AVX-512 has the instruction of AVX-VNNI in another encoding: it stands in where "avxvnni" is asked for.
STAND_IN = {"avx512vl", "avx512vnni"}
# Tile registers stand beside the vectors of AVX-512. Tests compute with a model of them where there are none.
AMX, AMX_MODEL = "amx", "amx-model"
AMX_FEATURES = {"amx-tile", "amx-int8", "amx-bf16"}
# CPU and features for LLVM when a lower instruction set is forced. "generic" has fma (and with it AVX): without it each
# fused multiply-add is a call into the C library.
FORCED_TARGET = {
    X86: {"avxvnni": ("x86-64-v3", ""), "avx2": ("x86-64-v3", ""), "generic": ("x86-64", "+fma")},
    ARM: {"neon-dotprod": ("generic", "+dotprod"), "generic": ("generic", "")},
}
CACHE_PREFIX = "kernels-"
CACHED_VERSIONS = 8
_has_warned = False


def host_vectors() -> list[str]:
    """Return the instruction sets of vectors of this processor, best first."""
    host = processor.features()
    known = host | {"avxvnni"} if host >= STAND_IN else host
    sets = ISA_FEATURES.get(processor.architecture(), {})
    return [*(isa for isa, needed in sets.items() if needed <= known), "generic"]


def why_no_amx() -> str | None:
    """Return why there is no instruction set with tile registers; asks Linux for them where there may be."""
    missing = sorted((AMX_FEATURES | ISA_FEATURES[X86]["avx512vnni"]) - processor.features())
    return f"the processor has no {', '.join(missing)}" if missing else refusal()


def host_instruction_sets() -> list[str]:
    """Return the instruction sets of this processor, best first."""
    return [*([AMX] if why_no_amx() is None else []), *host_vectors()]


def choose_isa(wanted: str | None) -> str:
    """Return the instruction set to compile for: `wanted`, or the best if this processor does not have it."""
    available = host_instruction_sets()
    if wanted in available or (wanted == AMX_MODEL and "avx512vnni" in available):
        return wanted
    if wanted:
        why = f"{why_no_amx()}; have" if wanted == AMX else "have"
        warn(f"TINYCHAT_ISA={wanted} is not available here ({why}: {', '.join(available)}): using {available[0]}")
    return available[0]


def warn(line: str) -> None:
    """Write one line for the user; kernels have no other output."""
    sys.stderr.write(f"tinychat: {line}\n")


def warn_once(folder: Path, reason: object) -> None:
    """Warn that compiled kernels cannot be cached in a folder, the first time."""
    global _has_warned
    if not _has_warned:
        why = getattr(reason, "strerror", None) or reason
        warn(f"cannot cache compiled kernels in {folder} ({why}): they are compiled at every start")
    _has_warned = True


def source_files() -> list[Path]:
    """Return every file with compiled code, in a fixed order."""
    package = Path(__file__).parents[1]
    names = "arguments block_layers block_stages compiled expert_stages forward mixers mlps stages stream_stages wiring"
    engine = [package / "engine" / f"{name}.py" for name in names.split()]
    return sorted([*package.glob("kernels/*.py"), *engine])


def sources_digest() -> str:
    """Return a hash of all compiled code as it is written; its results do not depend on the processor."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_key() -> str:
    """Return a hash of everything that machine code depends on but Numba's own cache key leaves out."""
    versions = [installed_version(name) for name in ("numba", "llvmlite", "numpy")]
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NUMBA_") and k not in PER_RUN]
    what = "|".join([sources_digest(), sys.version, INSTRUCTION_SET, *versions, *settings])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


@cache
def process_cache_key() -> str:
    """Return the `cache_key` of the code that this process runs."""
    return cache_key()


def installed_version(package: str) -> str:
    """Return the text of a package's version file, without importing the package."""
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin or "").parent if spec else Path()
    files = [path for path in (folder / "_version.py", folder / "version.py") if path.is_file()]
    return files[0].read_text(encoding="utf-8") if files else importlib.import_module(package).__version__


PER_RUN = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR", "NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY")


def writable_cache_folder() -> Path | None:
    """Return this user's own folder for compiled kernels, else a temporary one; None if there is none."""
    # For the message, if the folder cannot be determined.
    folder = Path("the user's cache folder")
    try:
        folder = cache_folder(os.environ) / f"{CACHE_PREFIX}{process_cache_key()}"
        is_new = not folder.exists()
        folder = private_folder(folder)
        if is_new:
            evict_old_kernels(folder.parent)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        return temporary_cache_folder(f"cannot cache compiled kernels in {folder} ({error.strerror or error})")


def temporary_cache_folder(reason: str) -> Path | None:
    """Return a folder that lasts as long as the process, and warn of it; None where it cannot be made.

    A fresh one each time: compiled code is never loaded from where others may have put something.
    """
    try:
        folder = fresh_folder(CACHE_PREFIX)
    except OSError:
        warn(f"{reason}, nor in a temporary folder")
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warn(f"{reason}: using {folder} this time")
    return folder


def evict_old_kernels(root: Path) -> None:
    """Remove all but the newest few versions of the cache, a few megabytes each."""
    folders = sorted(root.glob(f"{CACHE_PREFIX}*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-CACHED_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)


INSTRUCTION_SET = choose_isa(os.environ.get("TINYCHAT_ISA"))
# Of vectors.
ISA = "avx512vnni" if INSTRUCTION_SET in (AMX, AMX_MODEL) else INSTRUCTION_SET
STANDS_IN = ISA == "avxvnni" and "avxvnni" not in processor.features()


def prepare() -> None:
    """Set the environment that Numba reads on import."""
    if ISA != host_vectors()[0]:
        cpu_name, cpu_features = FORCED_TARGET[processor.architecture()][ISA]
        if ISA == "avxvnni" and not STANDS_IN:
            cpu_features = "+avxvnni"
        os.environ.setdefault("NUMBA_CPU_NAME", cpu_name)
        os.environ.setdefault("NUMBA_CPU_FEATURES", cpu_features)
    elif processor.architecture() == ARM:
        # LLVM does not find all of them by itself.
        os.environ.setdefault("NUMBA_CPU_FEATURES", processor.flags())
    # Kernels write out their vectors: a third level of optimization finds nothing more, and takes a fifth longer.
    os.environ.setdefault("NUMBA_OPT", "2")
    # One of ours was set by a parent process, perhaps for other sources.
    if Path(os.environ.get("NUMBA_CACHE_DIR") or CACHE_PREFIX).name.startswith(CACHE_PREFIX):
        # Empty for none: see `jit.cached`.
        os.environ["NUMBA_CACHE_DIR"] = str(writable_cache_folder() or "")
    if "numba" in sys.modules:
        # Imported before us: it reads its settings again, and has compiled nothing of ours yet.
        sys.modules["numba"].config.reload_config()
