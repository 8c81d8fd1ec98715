"""Answer the same rows in one process, in shards, on Ray, Spark and Dask, and compare the bytes of the sorted results.

    .venv/bin/python scripts/compare_spread.py [MODEL] [--rows 2000] [--tokens 24] [--only ray --only spark]

Rows are sampled with a seed each; every hundredth has a bad seed, and so an error. Of Ray's two actors one is killed
when it has answered some rows, and Ray starts another. Spark runs `mapInPandas` on local[2], Dask two processes. What
is not installed is left out. Exit code 1 if a way has other bytes than `tinychat batch`, or a row twice or never.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tinychat import RowAnswerer
from tinychat.rows.result_columns import COLUMNS

Row = dict[str, Any]
PLACES = "forest village garden harbour castle meadow".split()
BATCH = 50
SHAPE = {"repeat_penalty": 1.1, "temperature": 0.8}


def rows(count: int) -> list[Row]:
    """Return the rows: an id, a prompt and a seed."""
    found = []
    for i in range(count):
        text = f"Tell me a story about {i % 97} cats in a {PLACES[i % len(PLACES)]}."
        found.append({"id": i, "prompt": text, "seed": -1 if i % 100 == 99 else i})
    return found


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `RowAnswerer` that are the same everywhere."""
    return {"setting_columns": ["seed"], "max_tokens": options.tokens, **SHAPE}


def with_batch(options: argparse.Namespace, folder: Path, shards: Sequence[str] = ()) -> list[Row]:
    """Answer the rows with `tinychat batch`, in one process, or in one for each shard."""
    given, written = folder / "in.jsonl", folder / "out.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in rows(options.rows)))
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SHAPE.items()]
    command = [sys.executable, "-P", "-m", "tinychat", "batch", str(given)]
    settings = [options.model, f"--max-tokens={options.tokens}", *flags]
    parts = [folder / f"{i}.jsonl" for i in range(len(shards))]
    runs = [[*command, *settings, f"--shard={shard}", "-o", str(part)] for shard, part in zip(shards, parts)]
    runs.append([*command, *(f"--merge={part}" for part in parts), *([] if parts else settings), "-o", str(written)])
    for run in runs:
        # The rows with errors make the exit code 1.
        subprocess.run(run, stderr=subprocess.DEVNULL, check=False)
    found = []
    for line in written.read_text().splitlines():
        result = json.loads(line)
        result |= {"reply": result.get("text")}
        counts = {name: result.get(name, 0 if kind is int else None) for name, kind in COLUMNS.items()}
        found.append({"id": result["id"], **counts})
    return found


def with_shards(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Answer the rows in four shards, and merge the results."""
    return with_batch(options, folder, ["0/4", "1/4", "2/4", "3/4"])


def with_one_process(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Answer the rows in this process."""
    return RowAnswerer(options.model, **settings(options)).answer(rows(options.rows))


def with_ray(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Answer the rows with two actors; kill one when it has answered a batch."""
    import ray

    from tinychat.ray import RowActor

    class NotingActor(RowActor):
        """Notes its process, and each batch that it has answered."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self._notes = folder / str(os.getpid())
            self._notes.touch()

        def __call__(self, batch: Any) -> Any:
            answered = super().__call__(batch)
            self._notes.write_bytes(self._notes.read_bytes() + b".")
            return answered

    start_ray()
    killed = threading.Event()

    def kill() -> None:
        while not killed.is_set():
            time.sleep(0.02)
            for notes in folder.iterdir():
                if notes.stat().st_size:
                    os.kill(int(notes.name), signal.SIGKILL)
                    return killed.set()

    threading.Thread(target=kill, daemon=True).start()
    try:
        found = ray.data.from_items(rows(options.rows), override_num_blocks=max(8, options.rows // BATCH)).map_batches(
            NotingActor,
            batch_format="pyarrow",
            batch_size=BATCH,
            fn_constructor_args=[options.model],
            fn_constructor_kwargs=settings(options),
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
        )
        answered = found.take_all()
    finally:
        was_killed = killed.is_set()
        killed.set()
        ray.shutdown()
    processes = len([*folder.iterdir()])
    assert was_killed and processes >= 3, f"no actor was killed and started again: {processes} processes"
    return answered


def start_ray() -> None:
    """Start Ray on two cores of this machine, for this script alone."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        logging_level="error",
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False


def with_spark(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Answer the rows with two tasks of Spark at once."""
    import pandas
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    answerer = RowAnswerer(options.model, cores=1, **settings(options))

    def answer(frames: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        for frame in frames:
            yield pandas.DataFrame(answerer.answer(frame.to_dict("records")))

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    local = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    spark = local.config("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH)).getOrCreate()
    try:
        frame = spark.createDataFrame(pandas.DataFrame(rows(options.rows))).repartition(8)
        columns = "reply string, finish_reason string, prompt_tokens long, new_tokens long, error string"
        found = frame.mapInPandas(answer, f"id long, prompt string, seed long, {columns}")
        return [row.asDict() for row in found.collect()]
    finally:
        spark.stop()


def with_dask(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Answer the rows with two processes of Dask."""
    import dask.bag

    answerer = RowAnswerer(options.model, cores=1, **settings(options))
    found = dask.bag.from_sequence(rows(options.rows), npartitions=8).map_partitions(answerer.answer)
    answered: list[Row] = found.compute(scheduler="processes", num_workers=2)
    return answered


WAYS: dict[str, tuple[str, Callable[[argparse.Namespace, Path], list[Row]]]] = {
    "batch": ("click", with_batch),
    "shards": ("click", with_shards),
    "process": ("numpy", with_one_process),
    "ray": ("ray", with_ray),
    "spark": ("pyspark", with_spark),
    "dask": ("dask", with_dask),
}


def sorted_bytes(found: Sequence[Row]) -> bytes:
    """Return the results as lines in the order of their ids."""
    kept = ("id", *COLUMNS)
    lines = sorted(found, key=lambda row: row["id"])
    return "".join(json.dumps({name: row[name] for name in kept}) + "\n" for row in lines).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", metavar="MODEL")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--only", action="append", choices=[*WAYS])
    options = parser.parse_args()
    expected: bytes | None = None
    is_good = True
    print("| way | seconds | rows | errors | digest |\n|---|---|---|---|---|")
    for name, (package, way) in WAYS.items():
        if name != "batch" and (name not in (options.only or WAYS) or find_spec(package) is None):
            continue
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            found = way(options, Path(folder))
            seconds = time.perf_counter() - started
        written = sorted_bytes(found)
        expected = written if expected is None else expected
        is_same = written == expected and [*range(options.rows)] == sorted(row["id"] for row in found)
        is_good = is_good and is_same
        errors = sum(row["error"] is not None for row in found)
        digest = hashlib.sha256(written).hexdigest()[:16]
        print(
            f"| {name} | {seconds:.1f} | {len(found)} | {errors} | {digest}{'' if is_same else ' DIFFERS'} |",
            flush=True,
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
