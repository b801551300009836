"""DescribeUserScramCredentials: of all users, and of named ones."""

from tests.server.api.scram_users import DUPLICATE, NOT_FOUND, alter, described, upsertion
from tests.support.wire_client import WireClient


def test_all_and_named_users(asker: WireClient) -> None:
    assert described(asker) == {}
    alter(asker, upsertion("bob"), upsertion("alice", 2, 8192), upsertion("alice", 1))
    assert described(asker) == {"alice": {1: 4096, 2: 8192}, "bob": {1: 4096}}
    assert described(asker, "bob", "nobody", "x", "x") == {
        "bob": {1: 4096},
        "nobody": NOT_FOUND,
        "x": DUPLICATE,
    }
