"""States of a group, what moves it from one to the next, and what each state answers.

    Empty --------> PreparingRebalance --------> CompletingRebalance --------> Stable
      ^  REBALANCE   |   ^         ALL_JOINED      |                 ASSIGNED    |
      +--------------+   +-------------------------+-----------------------------+
         ALL_LEFT                             REBALANCE
    every state -- REMOVED --> Dead

Invariants: a pair that TRANSITIONS lacks never happens: it is a bug, not an input. Every request has an
    answer in every state.
Not here: when a trigger fires (group.py).
Sources: Kafka ClassicGroupState, GroupCoordinator.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sparklog_server.protocol.errors import ErrorCode


class GroupState(enum.StrEnum):
    """Kafka's states, by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"  # no members; there may be offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # waits for members to join
    COMPLETING_REBALANCE = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"  # everybody has an assignment
    DEAD = "Dead"  # removed; whoever still holds it must look the group up again


class Trigger(enum.Enum):
    """What can move a group."""

    REBALANCE = enum.auto()  # somebody came, went or changed
    ALL_JOINED = enum.auto()  # the waiting is over, and there are members
    ALL_LEFT = enum.auto()  # the waiting is over, and nobody is left
    ASSIGNED = enum.auto()  # the leader's assignment is durable
    RESTORED = enum.auto()  # members found in the log after a start
    REMOVED = enum.auto()  # deleted, expired, or the coordinator stops


class Request(enum.Enum):
    """Requests of members that are known, with the right generation."""

    HEARTBEAT = enum.auto()
    SYNC = enum.auto()
    COMMIT = enum.auto()
    REJOIN = enum.auto()


_E, _P, _C, _S, _D = GroupState

TRANSITIONS: Final[Mapping[tuple[GroupState, Trigger], GroupState]] = MappingProxyType(
    {
        (_E, Trigger.REBALANCE): _P,
        (_E, Trigger.RESTORED): _S,
        (_E, Trigger.REMOVED): _D,
        (_P, Trigger.ALL_JOINED): _C,
        (_P, Trigger.ALL_LEFT): _E,
        (_P, Trigger.REMOVED): _D,
        (_C, Trigger.REBALANCE): _P,
        (_C, Trigger.ASSIGNED): _S,
        (_C, Trigger.REMOVED): _D,
        (_S, Trigger.REBALANCE): _P,
        (_S, Trigger.REMOVED): _D,
        (_D, Trigger.REMOVED): _D,
    }
)

# What a valid request of a member is told; `none` means that it is carried out.
ANSWERS: Final[Mapping[Request, Mapping[GroupState, ErrorCode]]] = MappingProxyType(
    {
        Request.HEARTBEAT: {
            _E: ErrorCode.unknown_member_id,
            # Kept alive, and told to join again.
            _P: ErrorCode.rebalance_in_progress,
            # Some clients start their heartbeats before they have synced.
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.SYNC: {
            _E: ErrorCode.unknown_member_id,
            _P: ErrorCode.rebalance_in_progress,
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.COMMIT: {
            _E: ErrorCode.none,
            # What was read before the rebalance may still be committed: the heartbeat tells of it.
            _P: ErrorCode.none,
            _C: ErrorCode.rebalance_in_progress,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.REJOIN: {
            _E: ErrorCode.unknown_member_id,
            _P: ErrorCode.none,
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
    }
)


def next_state(state: GroupState, trigger: Trigger) -> GroupState:
    """Where `trigger` leads from `state`; an AssertionError where it must not happen."""
    following = TRANSITIONS.get((state, trigger))
    assert following is not None, f"{trigger.name} cannot happen in {state.value}"
    return following
