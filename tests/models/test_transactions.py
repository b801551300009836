"""Transactions: nothing is found with either protocol, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.explorer import explore
from tests.models.transactions import Transactions
from tests.models.transactions_world import Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

PROTOCOLS = {"first protocol": False, "second protocol": True}
SMALL: dict[str, dict[str, Any]] = {
    "one process, lost answers": {"losses": 2, "inits": (2,)},
    "one process, late copies": {"copies": 1, "losses": 1, "inits": (2,)},
    "two processes": {"losses": 1, "inits": (1, 1)},
    "it takes too long": {"timeouts": 1, "losses": 1},
    "two brokers": {"brokers": 2, "losses": 1},
}
# Clients that keep their epoch after an abort, whatever they do not know: with the first protocol.
RUDE: dict[str, dict[str, Any]] = {
    "records": {"brokers": 2, "losses": 1},
    "offsets": {"brokers": 2, "losses": 1, "copies": 1, "records": 0, "offsets": 2},
    "records and offsets": {"brokers": 2, "losses": 1, "records": 1, "offsets": 2},
    "two processes": {"losses": 1, "inits": (1, 1)},
}
LARGE: dict[str, dict[str, Any]] = {
    "two processes, late copies": {"copies": 1, "losses": 1, "inits": (1, 1)},
    "three transactions that take too long": {
        "timeouts": 1,
        "losses": 1,
        "copies": 1,
        "inits": (2,),
        "txns": 3,
        "records": 3,
    },
    "two brokers, late copies": {"brokers": 2, "losses": 1, "copies": 2, "inits": (2,)},
    "all of it": {
        "brokers": 2,
        "losses": 1,
        "copies": 1,
        "inits": (2, 1),
        "timeouts": 1,
        "txns": 3,
        "records": 3,
    },
}
# One transactional id, and both protocols.
MIXED: dict[str, dict[str, Any]] = {
    "one process goes on with the second, lost answers": {
        "second": (False,),
        "switches": 1,
        "losses": 2,
        "inits": (2,),
    },
    "one process goes on with the first, and back": {
        "second": (True,),
        "switches": 2,
        "losses": 1,
        "inits": (2,),
    },
    "one process goes on with the second, late copies": {
        "second": (False,),
        "switches": 1,
        "losses": 1,
        "copies": 1,
        "inits": (2,),
    },
    "one process goes on with the first, late copies": {
        "second": (True,),
        "switches": 1,
        "losses": 1,
        "copies": 1,
        "inits": (2,),
    },
    "two processes, each with its own": {"second": (False, True), "losses": 1, "inits": (1, 1)},
    "it takes too long, and goes on with the other": {
        "second": (False,),
        "switches": 1,
        "timeouts": 1,
        "losses": 1,
    },
}
LARGE_MIXED: dict[str, dict[str, Any]] = {
    "two processes, each with its own, late copies": {
        "second": (True, False),
        "copies": 1,
        "losses": 1,
        "inits": (1, 1),
    },
    "three transactions, two brokers, two switches": {
        "second": (False,),
        "switches": 2,
        "brokers": 2,
        "copies": 1,
        "losses": 1,
        "inits": (2,),
        "txns": 3,
        "records": 3,
    },
    "all of it, with both protocols": {**LARGE["all of it"], "second": (False, True), "switches": 1},
}
# What is missing; where it shows; and as what.
BOTH: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "an action names no epoch, one process": (
        Rules(checks_epoch=False, record_names_number=False),
        {"losses": 2, "inits": (2,)},
        "torn",
    ),
    "an action names no epoch, two": (
        Rules(checks_epoch=False, record_names_number=False),
        {"losses": 1, "inits": (1, 1)},
        "zombie",
    ),
    "a new process leaves open what is": (Rules(init_aborts=False), {"losses": 1, "inits": (1, 1)}, "torn"),
    "what is aborted stays staged": (Rules(abort_drops=False), {"losses": 2, "inits": (2,)}, "torn"),
    "what is staged has no sequences": (
        Rules(checks_sequence=False),
        {"losses": 2, "inits": (2,)},
        "doubled",
    ),
}
FIRST: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a record names no transaction": (
        Rules(record_names_number=False),
        {"brokers": 2, "losses": 1, "rude": True},
        "torn",
    ),
    "a group's offset names no transaction": (
        Rules(offset_names_number=False),
        {"brokers": 2, "losses": 1, "records": 0, "offsets": 2, "rude": True},
        "torn",
    ),
    "an end names no transaction": (
        Rules(names_number=False),
        {"brokers": 2, "losses": 1, "copies": 1, "inits": (2,)},
        "torn",
    ),
    "sequences of what was aborted are forgotten": (
        Rules(keeps_sequences=False),
        {"losses": 2, "inits": (2,)},
        "refused",
    ),
    "a client keeps its epoch in doubt": (
        Rules(raises_in_doubt=False),
        {"copies": 1, "losses": 1, "inits": (2,)},
        "torn",
    ),
    "one that took too long keeps its epoch": (
        Rules(timeout_raises=False),
        {"timeouts": 1, "losses": 1, "copies": 1, "inits": (2,), "txns": 3, "records": 3},
        "lies",
    ),
}
SECOND: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "any repeated end is well": (Rules(remembers_verdict=False), {"timeouts": 1, "losses": 1}, "lies"),
    "one that took too long keeps its epoch": (
        Rules(timeout_raises=False),
        {"timeouts": 1, "losses": 1},
        "lies",
    ),
    "an end keeps the epoch": (Rules(end_raises=False), {"losses": 2, "inits": (2,)}, "refused"),
}
OF_MIXED: dict[str, tuple[bool | tuple[bool, ...], Rules, dict[str, Any], str]] = {
    "an end of the first protocol is taken for one that has raised the epoch": (
        (True, False),
        Rules(remembers_epoch=False),
        {"losses": 1, "inits": (1, 1)},
        "lies",
    ),
    "an end of the first protocol names no transaction, and the next one is of the second": (
        (False,),
        Rules(names_number=False),
        {"switches": 1, "brokers": 2, "losses": 1, "copies": 1, "inits": (2,)},
        "torn",
    ),
}
MUTANTS: dict[str, tuple[bool | tuple[bool, ...], Rules, dict[str, Any], str]] = {
    **{f"{name}, {of}": (second, *one) for of, second in PROTOCOLS.items() for name, one in BOTH.items()},
    **{f"{name}, first protocol": (False, *one) for name, one in FIRST.items()},
    **{f"{name}, second protocol": (True, *one) for name, one in SECOND.items()},
    **OF_MIXED,
}
MIXED_WORLDS = {**MIXED, **(LARGE_MIXED if STATES else {})}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, protocol: str, report: Callable[[str], None]) -> None:
    model = Transactions(Rules(), second=PROTOCOLS[protocol], **WORLDS[name])
    check_nothing_is_found(model, f"{name}, {protocol}", report, is_large=name in LARGE)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MIXED_WORLDS)
def test_nothing_is_found_where_both_protocols_are_spoken(name: str, report: Callable[[str], None]) -> None:
    model = Transactions(Rules(), **MIXED_WORLDS[name])
    check_nothing_is_found(model, name, report, is_large=name in LARGE_MIXED)


@pytest.mark.parametrize("name", RUDE)
def test_nothing_is_found_of_clients_that_keep_their_epoch(name: str, report: Callable[[str], None]) -> None:
    model = Transactions(Rules(), second=False, rude=True, **RUDE[name])
    check_nothing_is_found(model, f"{name}, epoch kept", report, is_large=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    second, rules, sizes, promise = MUTANTS[name]
    check_found(Transactions(rules, second=second, **sizes), promise)


def test_the_first_protocol_cannot_tell_what_is_read_late_from_the_next_one() -> None:
    """As in Kafka; the second one can."""
    sizes: dict[str, Any] = {"copies": 1, "losses": 1, "late_reads": True}
    assert str(explore(Transactions(Rules(), second=False, **sizes)).promise).startswith("torn: ")
    assert explore(Transactions(Rules(), second=True, **sizes)).promise is None
