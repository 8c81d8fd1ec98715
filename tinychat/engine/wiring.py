"""One Python function as a compiled pass, a pass in NumPy, and a count of what it takes.

`engine.forward`, `engine.mixers`, `engine.mlps` and `engine.block_layers` put *stages* together, and nothing else says
how a layer is wired. In plain Python, the first argument of a stage, the team, runs it: `conversion.float_pass` in
NumPy, `engine.counting` by noting what it costs. Compiled (`engine.compiled`), each stage is the kernel of its name,
and the team is the threads that run it together.

A function has other bodies where an argument is of a *kind*, a type that stands for a part, or does nothing::

    @by_kind
    def add_branch(team, T, weight, norm, sizes, s): ...  # any other kind of norm

    @add_branch.where(norm=NoNorm)
    def _(team, T, weight, norm, sizes, s): ...

    @unless(streams=NoStreams)
    def begin_streams(team, T, streams, sizes, s): ...
"""

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from inspect import signature
from typing import Any


class Compiled:
    """A Python function that a function of the same name in a module of `kernels` replaces in compiled code."""

    def __init__(self, function: Callable[..., Any], module: str) -> None:
        self.function, self.module = function, module
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run the Python function."""
        return self.function(*arguments)

    def kernel(self) -> Any:
        """Return the compiled function."""
        return getattr(import_module(f"tinychat.kernels.{self.module}"), self.function.__name__)


class Stage(Compiled):
    """A stage of the forward pass. Its Python function notes what the stage costs: see `engine.counting`."""

    def __call__(self, team: Any, *arguments: Any) -> None:
        """Let the team run the stage."""
        team.run(self, *arguments)


def compiled_by(module: str) -> Callable[[Callable[..., Any]], Compiled]:
    """Return the decorator that makes a `Compiled` of a function."""
    return lambda function: Compiled(function, module)


def stage(module: str) -> Callable[[Callable[..., Any]], Stage]:
    """Return the decorator that declares a `Stage`, whose kernel is in a module of `kernels`."""
    return lambda function: Stage(function, module)


class by_kind:
    """A function of the wiring with other bodies where an argument is of some kind, such as `NoNorm`.

    In compiled code the types of the arguments choose the body: of the others nothing is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._bodies: list[tuple[int, type, Callable[..., Any]]] = []
        update_wrapper(self, function)

    def where(self, **kinds: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return the decorator for the body where the argument of this name is of that kind."""
        ((name, kind),) = kinds.items()
        position = self.function.__code__.co_varnames.index(name)

        def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
            body.__name__ = f"{self.function.__name__}_{kind.__name__}"
            self._bodies.append((position, kind, body))
            return body

        return decorate

    def body(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the body for some arguments, or for their Numba types."""
        kinds = [getattr(argument, "instance_class", type(argument)) for argument in arguments]
        return next((body for position, kind, body in self._bodies if kinds[position] is kind), self.function)

    def __call__(self, *arguments: Any) -> None:
        """Run the body for these arguments."""
        self.body(arguments)(*arguments)


def unless(**kinds: type) -> Callable[[Callable[..., Any]], by_kind]:
    """Return the decorator for a function by kind that does nothing where the argument of this name is of that kind."""

    def decorate(function: Callable[..., Any]) -> by_kind:
        found = by_kind(function)
        found.where(**kinds)(eval(f"lambda {', '.join(signature(function).parameters)}: None"))
        return found

    return decorate
