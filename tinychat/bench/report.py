"""The whole benchmark of one model, as plain data."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from statistics import median

from tinychat.bench.ceilings import Ceilings
from tinychat.bench.fresh_process import complete_once, load_once
from tinychat.bench.measure import Plan, Progress, measure, medians
from tinychat.bench.work import work_of
from tinychat.engine.blocks import bytes_per_position
from tinychat.generate.model import Model
from tinychat.kernels.setup import INSTRUCTION_SET
from tinychat.machine import processor_name
from tinychat.models.folder import read_description


def bench(
    model: Model,
    plan: Plan,
    *,
    threads: int | None = None,
    kv: str | None = None,
    progress: Progress | None = None,
    make_ceilings: Callable[[int], Ceilings] = Ceilings,
) -> dict[str, object]:
    """Measure a model that has an `Engine`; return the result of `tinychat bench`.

    Measurements that do not fit into the context are left out, with a note. `threads` and `kv` are for the processes
    that are started; `make_ceilings` makes the meter of the machine's limits for a number of threads.
    """
    sequence = model.sequence
    engine = sequence.engine
    plan, notes = plan.fitted(model.context_size)
    if progress is not None:
        progress(0, plan.measurements)
    quantization = read_description(model.path)
    flags = [f"--{name}={value}" for name, value in (("threads", threads), ("kv", kv)) if value is not None]
    firsts = [complete_once(model.path, flags) for _ in range(plan.rounds)]
    loads = [load_once(model.path, threads=threads, kv=kv) for _ in range(plan.rounds)]
    work = work_of(engine.config, quantization, bytes_per_position(engine.config, engine.kv))
    rates = measure(sequence, work, make_ceilings(engine.threads), plan, progress)
    return {
        "model": model.name,
        "quantization": quantization.dtype,
        "group_size": quantization.group_size,
        "kv": engine.kv,
        "threads": engine.threads,
        "rounds": plan.rounds,
        "prefill_tok_s": medians(rates.prefill_tok_s),
        "decode_tok_s": medians(rates.decode_tok_s),
        "first_token_s": median(first.seconds for first in firsts),
        "load_s": median(loads),
        "peak_mib": median(first.peak_mib for first in firsts),
        "weights_mib": work.file_bytes / (1 << 20),
        "bandwidth_gb_s": median(rates.bandwidth_gb_s),
        "int8_peak_gmac_s": median(rates.int8_peak_gmac_s),
        "decode_bandwidth_share": medians(rates.decode_bandwidth_share),
        "prefill_peak_share": medians(rates.prefill_peak_share),
        "weight_bytes_per_token": work.weight_bytes,
        "cache_bytes_per_token": work.cache_bytes,
        "multiply_adds_per_token": work.multiply_adds,
        "notes": notes,
        "processor": processor_name(),
        "instruction_set": INSTRUCTION_SET,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("tinychat", "numba", "llvmlite", "numpy")},
    }
