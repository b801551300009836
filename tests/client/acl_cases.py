"""Random sets of ACLs with requests, as lines that tests/peers/Authorizing.java reads; many names collide."""

import random
from collections.abc import Iterator

from sparklog.client.authorizer import OPERATIONS, Authorizer, parse_super_users
from sparklog.metadata import Acl, ResourceType

PRINCIPALS = ("User:alice", "User:bob", "User:*", "User:ANONYMOUS", "Group:alice", "User:CN=bob,O=x")
ASKERS = tuple(one for one in PRINCIPALS if one != "User:*")  # of which Kafka makes an exception
HOSTS = ("*", "10.0.0.1", "127.0.0.1")
NAMES = (
    "*",
    "a",
    "ab",
    "abc",
    "abcd",
    "abd",
    "b",
    "orders",
    "orders.eu",
    "orders.eu-1",
    "!low",
    "z",
    "~high",
)
ASKED_NAMES = (*NAMES, "orders.eu-17", "abce", "ordersx", "c")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)


def random_sets(seed: int, count: int) -> Iterator[list[str]]:
    """Yield the lines of each set."""
    draw = random.Random(seed)
    for _ in range(count):
        yield [_header(draw), *dict.fromkeys(_acls(draw)), *_requests(draw)]


def _header(draw: random.Random) -> str:
    users = draw.choice(("", "", "User:bob", "User:CN=bob,O=x;User:root"))
    return "\t".join(("SET", draw.choice(("true", "false", "false")), users))


def _acls(draw: random.Random) -> Iterator[str]:
    kinds = draw.choices(TYPES, (8, 3, 2, 2), k=2)
    for _ in range(draw.choice((0, 1, 2, 3, 5, 8, 13, 40))):
        kind = draw.choice(kinds)
        cluster = kind is ResourceType.CLUSTER
        words = (
            "ACL",
            kind,
            "kafka-cluster" if cluster else draw.choice(NAMES),
            "LITERAL" if cluster else draw.choice(("LITERAL", "PREFIXED")),
            draw.choice(PRINCIPALS),
            draw.choice(HOSTS),
            draw.choice(("ALL", *OPERATIONS[kind])),
            draw.choice(("ALLOW", "ALLOW", "DENY")),
        )
        yield "\t".join(words)


def _requests(draw: random.Random) -> Iterator[str]:
    for _ in range(12):
        kind = draw.choice(TYPES)
        who = draw.choice(ASKERS), draw.choice(HOSTS[1:])
        operation = draw.choice(OPERATIONS[kind])
        if draw.random() < 0.15:
            yield "\t".join(("ANY", *who, operation, kind))
        else:
            name = "kafka-cluster" if kind is ResourceType.CLUSTER else draw.choice(ASKED_NAMES)
            yield "\t".join(("ASK", *who, operation, kind, name))


def answers(lines: list[str]) -> str:
    """Return our answers to the requests of a set, as Authorizing.java prints them."""
    header, acls, asked = lines[0].split("\t"), [], []
    for line in lines[1:]:
        word, *rest = line.split("\t")
        if word == "ACL":
            acls.append(Acl(*rest))
        else:
            asked.append((word, rest))
    found = Authorizer(acls, super_users=parse_super_users(header[2]), allows_by_default=header[1] == "true")
    verdicts = [
        found.decide_any(*rest) if word == "ANY" else found.decide(*rest).is_allowed for word, rest in asked
    ]
    return "".join("1" if verdict else "0" for verdict in verdicts)
