"""AlterUserScramCredentials: outcomes for each user, as Kafka's controller has them."""

from typing import Any

import pytest

import sparklog
from sparklog.client.scram import Mechanism, is_password
from tests.server.api.scram_users import (
    DUPLICATE,
    NONE,
    NOT_FOUND,
    UNACCEPTABLE,
    UNSUPPORTED_MECHANISM,
    alter,
    deletion,
    described,
    upsertion,
)
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def test_users_are_set_described_and_deleted(asker: WireClient, running_broker: RunningBroker) -> None:
    assert described(asker) == {}
    assert alter(asker, upsertion("bob"), upsertion("alice", 2, 8192), upsertion("alice", 1)) == {
        "bob": NONE,
        "alice": NONE,
    }
    assert described(asker) == {"alice": {1: 4096, 2: 8192}, "bob": {1: 4096}}
    with sparklog.open(running_broker.root) as log:
        assert log.image.reader_features == {"scram"}
        stored = log.image.scram.find("alice", "SCRAM-SHA-512")
    assert stored is not None
    assert is_password(Mechanism.SHA_512, stored, "secret")
    assert alter(asker, deletions=[deletion("alice", 2), deletion("bob")]) == {"alice": NONE, "bob": NONE}
    assert described(asker, "alice", "bob", "x", "x") == {
        "alice": {1: 4096},
        "bob": NOT_FOUND,
        "x": DUPLICATE,
    }


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (upsertion("bob", iterations=4095), UNACCEPTABLE),
        (upsertion("bob", iterations=16_385), UNACCEPTABLE),
        (upsertion("bob", mechanism=3), UNSUPPORTED_MECHANISM),
        (upsertion("bob", salt=b""), UNACCEPTABLE),
        (upsertion("bob", salted_password=b"x" * 64), UNACCEPTABLE),
        (upsertion("b\nb"), UNACCEPTABLE),
    ],
)
def test_what_is_refused_harms_no_other_user(asker: WireClient, wrong: dict[str, Any], code: int) -> None:
    assert alter(asker, wrong, upsertion("alice")) == {wrong["name"]: code, "alice": NONE}
    assert described(asker) == {"alice": {1: 4096}}


def test_changes_of_a_user_happen_all_or_not_at_all(asker: WireClient) -> None:
    assert alter(asker, upsertion("alice"), deletions=[deletion("alice", 2)]) == {"alice": NOT_FOUND}
    assert alter(asker, upsertion("alice"), upsertion("alice")) == {"alice": DUPLICATE}
    assert alter(asker, upsertion("alice"), deletions=[deletion("alice")]) == {"alice": DUPLICATE}
    assert described(asker) == {}


def test_root_needs_no_feature_before_it_has_a_user(asker: WireClient, running_broker: RunningBroker) -> None:
    assert alter(asker, deletions=[deletion("nobody")]) == {"nobody": NOT_FOUND}
    with sparklog.open(running_broker.root) as log:
        assert log.image.reader_features == frozenset()
