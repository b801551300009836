"""The table of states: every state and every trigger and request has its line."""

import itertools

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.groups.messages import (
    ANSWERS,
    TRANSITIONS,
    GroupState,
    Request,
    Trigger,
    next_state,
)

E, P, C, S, D = GroupState
X = None  # must not happen

EXPECTED = {
    #              REBALANCE, ALL_JOINED, ALL_LEFT, ASSIGNED, RESTORED, REMOVED
    E: (P, X, X, X, S, D),
    P: (X, C, E, X, X, D),
    C: (P, X, X, S, X, D),
    S: (P, X, X, X, X, D),
    D: (X, X, X, X, X, D),
}


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(GroupState, Trigger)))
def test_every_state_and_trigger(state: GroupState, trigger: Trigger) -> None:
    expected = EXPECTED[state][list(Trigger).index(trigger)]
    if expected is None:
        with pytest.raises(AssertionError, match=f"{trigger.name} cannot happen in {state.value}"):
            next_state(state, trigger)
    else:
        assert next_state(state, trigger) is expected


def test_the_table_holds_nothing_else() -> None:
    assert len(TRANSITIONS) == sum(one is not None for row in EXPECTED.values() for one in row)


@pytest.mark.parametrize("request_kind", list(Request))
def test_every_state_answers_every_request(request_kind: Request) -> None:
    answers = ANSWERS[request_kind]
    assert set(answers) == set(GroupState)
    assert answers[D] == ErrorCode.coordinator_not_available


def test_every_state_can_be_reached_and_left() -> None:
    reached = {E}
    for _ in GroupState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(GroupState)
    assert all((state, Trigger.REMOVED) in TRANSITIONS for state in GroupState)


def test_names_are_kafkas() -> None:
    assert [state.value for state in GroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
