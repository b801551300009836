"""Explicit-state exploration: every order of the steps of a small world, breadth first.

A model is a class whose states are hashable tuples and whose steps are methods that yield what may come next.
A step does one call that others can see (one look-up, one link, one PUT), so that between any two of them
anything may happen. Breadth first, so the first counterexample is a shortest one.

Each step says what code it stands for; a test looks the names up. What no code does (a power cut, a packet
that comes late) is a step of the world.
Not here: sampling. A result is complete, or says at how many states it stopped.
"""

import importlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Violation(NamedTuple):
    """What a step may yield instead of a state: the promise that it breaks."""

    promise: str


class Process(Protocol):
    @property
    def at(self) -> str: ...


class State(Hashable, Protocol):
    @property
    def processes(self) -> tuple[Any, ...]: ...


Next = Iterable[tuple[str, Any]]  # what to add to the step's name, and the state after it or a Violation


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a step is called, at which points of a process it is taken, and the code that it stands for."""

    name: str
    at: tuple[str, ...]
    code: tuple[str, ...]


def step(name: str, *, at: str | tuple[str, ...], code: str | tuple[str, ...]) -> Callable[[Any], Any]:
    """A step of a process: method(state, index, process). `code`: "package.module:Class.function"."""
    info = StepInfo(name, (at,) if isinstance(at, str) else at, (code,) if isinstance(code, str) else code)

    def mark(method: Any) -> Any:
        method.info = info
        return method

    return mark


def world(name: str) -> Callable[[Any], Any]:
    """A step that no code takes: method(state)."""

    def mark(method: Any) -> Any:
        method.info = StepInfo(name, (), ())
        return method

    return mark


class Model:
    """Processes that take steps in a world. Subclasses have steps, and `initial`."""

    process_names: tuple[str, ...] = ()

    def __init__(self, *, without: tuple[str, ...] = ()) -> None:
        """`without`: methods that are no steps this time. What is found is found with them as well."""
        self._of_world: list[tuple[str, Any]] = []
        self._by_point: dict[str, list[tuple[str, Any]]] = {}
        for info, method in self.steps():
            if method in without:
                continue
            bound = getattr(self, method)
            if info.at:
                for point in info.at:
                    self._by_point.setdefault(point, []).append((info.name, bound))
            else:
                self._of_world.append((info.name, bound))

    @classmethod
    def steps(cls) -> list[tuple[StepInfo, str]]:
        """All steps in the order of the text, which decides between counterexamples of one length."""
        return [
            (value.info, name)
            for base in reversed(cls.__mro__)
            for name, value in vars(base).items()
            if hasattr(value, "info")
        ]

    def initial(self) -> Any:
        raise NotImplementedError

    def canonical(self, state: Any) -> Any:
        """One state for all that differ in nothing that matters."""
        return state

    def successors(self, state: Any) -> Iterator[tuple[str, Any]]:
        """(what happens, the state after it or a Violation)"""
        for index, process in enumerate(state.processes):
            for name, method in self._by_point.get(process.at, ()):
                for detail, after in method(state, index, process):
                    yield f"{self.name_of(index, process)}: {name}{detail}", after
        for name, method in self._of_world:
            for detail, after in method(state):
                yield f"(world) {name}{detail}", after

    def name_of(self, index: int, process: Process) -> str:
        return self.process_names[index]


@dataclass(frozen=True, slots=True)
class Result:
    """What an exploration found."""

    states: int
    is_complete: bool
    promise: str | None = None
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.states:,} states, {'complete' if self.is_complete else 'bounded'}"
        if self.promise is None:
            return f"nothing found in {size}"
        lines = [f"{number:3}. {text}" for number, text in enumerate(self.steps, 1)]
        return "\n".join([f"{self.promise} (after {self.states:,} states)", *lines])


def explore(model: Model, *, max_states: int = 1 << 62) -> Result:
    """All states that can be reached, up to a number; stops at the first violation."""
    canonical = model.canonical
    first = canonical(model.initial())
    index = {first: 0}
    parents = array("L", [0])
    frontier = [first]
    while frontier:
        following = []
        for state in frontier:
            for text, after in model.successors(state):
                if type(after) is Violation:
                    path = _path(model, list(index), parents, index[state])
                    return Result(len(index), False, after.promise, (*path, text))
                after = canonical(after)
                if after not in index:
                    if len(index) >= max_states:
                        return Result(len(index), False)
                    parents.append(index[state])
                    index[after] = len(index)
                    following.append(after)
        frontier = following
    return Result(len(index), True)


def _path(model: Model, states: list[Any], parents: "array[int]", at: int) -> list[str]:
    """The steps from the first state, found again: remembering them would take more than the states."""
    texts: list[str] = []
    while at:
        before = states[parents[at]]
        texts.append(
            next(
                text
                for text, after in model.successors(before)
                if type(after) is not Violation and model.canonical(after) == states[at]
            )
        )
        at = parents[at]
    return texts[::-1]


def replaced(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    """The tuple with another item at `index`."""
    return (*items[:index], item, *items[index + 1 :])


def resolve(code: str) -> object:
    """The object that a step's "package.module:Class.function" names; fails if there is none."""
    module, _, path = code.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
