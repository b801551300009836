"""The explorer finds what can happen, by a shortest way, and says whether that was all."""

from typing import NamedTuple

import pytest

from tests.models.combining import Combining
from tests.models.conditions import Conditions
from tests.models.explorer import Model, Next, Violation, explore, replaced, resolve, step, world
from tests.models.hours_on_object_store import Hours
from tests.models.opening import Opening
from tests.models.publish_on_directory import Directory
from tests.models.sharing import Sharing
from tests.models.sweeping import Sweeping

MODELS = [Combining, Conditions, Directory, Hours, Opening, Sharing, Sweeping]


class Clerk(NamedTuple):
    at: str = "reads"
    seen: int = 0


class Till(NamedTuple):
    processes: tuple[Clerk, ...]
    money: int = 0


class Counting(Model):
    """Two clerks who each add one to what they have read: the classic lost update."""

    process_names = ("A", "B")

    def initial(self) -> Till:
        return Till((Clerk(), Clerk()))

    @step("reads", at="reads", code="builtins:int")
    def read(self, s: Till, i: int, p: Clerk) -> Next:
        yield f" {s.money}", s._replace(processes=replaced(s.processes, i, Clerk("writes", s.money)))

    @step("writes", at="writes", code="builtins:int")
    def write(self, s: Till, i: int, p: Clerk) -> Next:
        s = s._replace(processes=replaced(s.processes, i, Clerk("done")), money=p.seen + 1)
        lost = all(one.at == "done" for one in s.processes) and s.money < 2
        yield f" {s.money}", Violation("lost: an update") if lost else s

    @world("nothing happens")
    def nothing(self, s: Till) -> Next:
        yield "", s


def test_the_shortest_counterexample_is_told_step_by_step() -> None:
    result = explore(Counting())
    assert result.promise == "lost: an update"
    assert result.steps == ("A: reads 0", "B: reads 0", "A: writes 1", "B: writes 1")
    assert not result.is_complete
    assert str(result).splitlines()[1] == "  1. A: reads 0"


def test_a_complete_exploration_says_so() -> None:
    result = explore(Counting(without=("write",)))
    assert (result.promise, result.is_complete, result.states) == (None, True, 4)
    assert str(result) == "nothing found in 4 states, complete"


def test_a_bounded_exploration_says_so() -> None:
    result = explore(Counting(without=("write",)), max_states=3)
    assert (result.promise, result.is_complete, result.states) == (None, False, 3)


@pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])
def test_each_step_names_code_that_exists(model: type[Model]) -> None:
    assert model.steps()
    for info, _ in model.steps():
        assert bool(info.code) == bool(info.at), f"{info.name}: a step of a process stands for code"
        for code in info.code:
            assert callable(resolve(code)), code


def test_a_name_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("sparklog.metadata.log:MetadataLog.no_such_method")
