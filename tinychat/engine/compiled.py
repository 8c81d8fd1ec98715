"""`engine.forward` compiled: its Python with kernels for stages, and the loop that its threads run."""

from functools import wraps
from types import FunctionType

from tinychat.engine import block_layers, mixers, mlps
from tinychat.engine import forward as wiring
from tinychat.engine.wiring import Compiled, by_kind
from tinychat.kernels.compile_queue import deferred_by_type
from tinychat.kernels.jit import entry_point, inline
from tinychat.kernels.memory import from_pointers, numbers_at
from tinychat.kernels.team import begin, record_time, release
from tinychat.kernels.team_queue import Team


def compiled_names():
    """Return the compiled functions of the names of `engine.forward` and of what it puts together.

    Plain functions are written into their callers. Those by kind are compiled by themselves, for the types that occur.
    """
    written = {**vars(mlps), **vars(mixers), **vars(block_layers), **vars(wiring)}
    names = dict(written)

    def with_kernels(function, own_names):
        same = FunctionType(function.__code__, names | own_names, function.__name__)
        # Symbols are named by it: they must differ where types do not.
        same.__qualname__ = function.__name__
        return same

    def by_types(found, own_names):
        @wraps(found.function)
        def choose(*types):
            return with_kernels(found.body(types), own_names)

        return deferred_by_type(choose, with_kernels(found.function, {}))

    for name, value in written.items():
        if isinstance(value, Compiled):
            names[name] = value.kernel()
        elif isinstance(value, by_kind):
            # Numba knows no such recursion: a body that calls its own function, for other kinds, calls a second one.
            second = by_types(value, {})
            names[name] = by_types(value, {name: second})
            second.overloads = names[name].overloads
    for plain in (mlps.run_chosen, wiring.embed_ids, wiring.run_layer, wiring.predict, wiring.forward):
        names[plain.__name__] = inline(with_kernels(plain, {}))
    return names


forward = compiled_names()["forward"]


@entry_point
def worker_loop(thread, threads, queue_address, pointers_address, kind):
    """Do a share of the job that thread 0 posts: see `tinychat.engine.workers`.

    pointers_address, kind : of `Arguments`. A thread looks up where the arrays are when the job has begun, while the
    others wait for it, so it never meets those of another job. One that is let go reads on in them after the others
    have ended: `Workers.run` keeps them alive. The call to `forward` stands here once, for all threads: a second one
    would be compiled a second time.
    """
    queue = numbers_at(queue_address)
    while begin(queue, thread, threads):
        a = from_pointers(kind, numbers_at(pointers_address))
        team = Team(thread, queue, a.batch.clocks)
        record_time(team)
        forward(team, a.parameters, a.sizes, a.cache, a.scratch, a.attention, a.batch, a.logits)
        if thread == 0:
            release(queue)
            return True
    return False
