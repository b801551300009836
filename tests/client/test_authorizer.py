"""Verdicts and filters of ACLs where Kafka's answers (test_authorizer_golden.py) say too little."""

import time

import pytest

from sparklog.client.authorizer import (
    MAX_REMEMBERED,
    AclFilter,
    Authorizer,
    parse_super_users,
)
from sparklog.metadata import Acl

ALICE, HOST = "User:alice", "10.0.0.1"


def acl(
    name: str = "orders",
    *,
    pattern: str = "LITERAL",
    principal: str = ALICE,
    operation: str = "READ",
    permission: str = "ALLOW",
) -> Acl:
    return Acl("TOPIC", name, pattern, principal, "*", operation, permission)


def test_the_rule_is_named_as_in_kafkas_log() -> None:
    authorizer = Authorizer([acl()], super_users=frozenset({"User:root"}))
    assert authorizer.decide("User:root", HOST, "READ", "TOPIC", "orders").rule == "SuperUser"
    assert authorizer.decide(ALICE, HOST, "WRITE", "TOPIC", "orders").rule == "DefaultDeny"
    assert authorizer.decide(ALICE, HOST, "READ", "TOPIC", "orders").rule == (
        "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
        "principal=User:alice, host=*, operation=READ, permissionType=ALLOW))"
    )
    open_to_all = Authorizer([], allows_by_default=True)
    assert open_to_all.decide(ALICE, HOST, "READ", "TOPIC", "orders").rule == "DefaultAllow"


def test_a_wildcard_is_of_names_that_begin_with_one() -> None:
    """Kafka's authorizer skips the wildcard there, also a DENY (adr/0040)."""
    authorizer = Authorizer([acl("*", permission="DENY"), acl("*x")])
    assert not authorizer.decide(ALICE, HOST, "READ", "TOPIC", "*x").is_allowed


def test_verdicts_cost_the_same_with_many_acls() -> None:
    """Of one topic, of a prefix, and of all topics; and as many principals."""
    many = [
        acl(name, pattern=pattern, principal=f"User:{number}")
        for number in range(4_000)
        for name, pattern in (("orders", "LITERAL"), (f"o{number}", "PREFIXED"), ("*", "LITERAL"))
    ]
    authorizer = Authorizer([*many, acl()])
    began = time.thread_time()
    for number in range(1_000):  # not remembered
        assert authorizer.decide(ALICE, f"10.0.0.{number}", "READ", "TOPIC", "orders").is_allowed
    assert time.thread_time() - began < 0.5  # a scan of all took 10 s


def test_what_is_remembered_is_bounded() -> None:
    authorizer = Authorizer([acl()])
    for number in range(MAX_REMEMBERED + 10):
        authorizer.decide(ALICE, HOST, "READ", "TOPIC", f"t{number}")
    authorizer.decide(ALICE, HOST, "READ", "TOPIC", "x" * 30_000)
    assert authorizer.remembered == 10


def test_any_resource_is_not_that_without_a_name() -> None:
    """Requests may name a topic so."""
    for first, second in (("any", "empty"), ("empty", "any")):
        authorizer = Authorizer([acl()])
        verdicts = {
            one: authorizer.decide_any(ALICE, HOST, "READ", "TOPIC")
            if one == "any"
            else authorizer.decide(ALICE, HOST, "READ", "TOPIC", "").is_allowed
            for one in (first, second)
        }
        assert verdicts == {"any": True, "empty": False}


@pytest.mark.parametrize("text", ["alice", "User:", ":alice", "User:alice;bob"])
def test_super_users_have_a_type_and_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="expected principals"):
        parse_super_users(text)


def test_super_users() -> None:
    found = parse_super_users(" User:alice ;User:CN=b,O=x;; ")
    assert found == {"User:alice", "User:CN=b,O=x"}


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (AclFilter(), 4),
        (AclFilter(name="orders"), 1),
        (AclFilter(name="orders", pattern_type="PREFIXED"), 0),
        (AclFilter(name="orders", matches=True), 3),
        (AclFilter(name="other", matches=True), 1),
        (AclFilter(name="*", pattern_type="LITERAL"), 1),
        (AclFilter(resource_type="GROUP"), 0),
        (AclFilter(principal="User:bob"), 1),
        (AclFilter(operation="WRITE"), 0),
        (AclFilter(permission="DENY"), 1),
        (AclFilter(host="10.0.0.1"), 0),
    ],
)
def test_filters(wanted: AclFilter, count: int) -> None:
    acls = [
        acl("orders"),
        acl("ord", pattern="PREFIXED"),
        acl("*", permission="DENY"),
        acl("x", principal="User:bob"),
    ]
    assert sum(map(wanted.takes, acls)) == count
