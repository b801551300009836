"""`sparklog grants`: who gets the root, and what that does not express."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sparklog.cli.grants import granted_to, iam_policy
from sparklog.metadata import Acl

Run = Callable[..., Result]
RunJson = Callable[..., Any]
READS_ALL = Acl("TOPIC", "*", "LITERAL", "User:spark", "*", "READ", "ALLOW")
KINDS = (("TOPIC", "*"), ("GROUP", "*"), ("TRANSACTIONAL_ID", "*"), ("CLUSTER", "kafka-cluster"))
DOES_ALL = [Acl(kind, name, "LITERAL", "User:ops", "*", "ALL", "ALLOW") for kind, name in KINDS]
DENY = {"permission": "DENY"}


@pytest.mark.parametrize(
    ("acls", "principal", "access"),
    [
        ([READS_ALL], "User:spark", "read"),
        ([READS_ALL._replace(operation="ALL")], "User:spark", "read"),
        ([READS_ALL._replace(principal="User:*")], "User:spark", "read"),
        ([READS_ALL], "User:bob", "none"),
        ([READS_ALL._replace(host="10.0.0.1")], "User:spark", "none"),
        ([READS_ALL._replace(name="orders")], "User:spark", "none"),
        ([READS_ALL._replace(pattern_type="PREFIXED")], "User:spark", "none"),
        ([READS_ALL, READS_ALL._replace(name="secret", **DENY)], "User:spark", "none"),
        ([READS_ALL, READS_ALL._replace(name="x", operation="WRITE", **DENY)], "User:spark", "read"),
        (DOES_ALL, "User:ops", "write"),
        (DOES_ALL[1:], "User:ops", "none"),
        ([*DOES_ALL, DOES_ALL[0]._replace(name="x", operation="DELETE", **DENY)], "User:ops", "read"),
    ],
)
def test_who_gets_the_root(acls: list[Acl], principal: str, access: str) -> None:
    assert granted_to(acls, principal)["access"] == access


def test_what_is_not_expressed() -> None:
    found = granted_to([READS_ALL, READS_ALL._replace(name="out", operation="WRITE")], "User:spark")
    assert found["not_expressed"] == ["may WRITE TOPIC out"]


def test_a_policy_of_a_prefix() -> None:
    policy: Any = iam_policy("s3://bucket/logs/a", {"principal": "User:spark", "access": "read"})
    lists, reads = policy["Statement"]
    assert lists["Condition"] == {"StringLike": {"s3:prefix": ["logs/a/*"]}}
    assert reads["Resource"] == ["arn:aws:s3:::bucket/logs/a/*"]
    assert reads["Action"] == ["s3:GetObject"]
    policy = iam_policy("s3://bucket", {"principal": "User:ops", "access": "write"})
    assert policy["Statement"][1]["Resource"] == ["arn:aws:s3:::bucket/*"]
    assert "s3:PutObject" in policy["Statement"][1]["Action"]


def test_groups_of_a_directory(run: Run, run_json: RunJson, root: Path) -> None:
    run("topics", "create", "--topic", "t")
    run("acls", "add", "--allow-principal", "User:spark", "--operation", "Read", "--topic", "*")
    run("acls", "add", "--allow-principal", "User:x; rm -rf /", "--operation", "Read", "--topic", "*")
    run("acls", "add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "t")
    shown = run("grants", "--posix").stdout
    assert f"setfacl --recursive --modify group:sparklog-read:rX {root}\n" in shown
    assert "usermod --append --groups sparklog-read x-rm-rf\n" in shown
    assert "# User:bob: no access" in shown
    assert "#   not expressed: may READ TOPIC t\n" in shown
    (one,) = run_json("grants", "--posix", "--principal", "User:bob")["principals"]
    assert one["access"] == "none"
    assert "it is --posix" in run("grants", exit_code=2).stderr
    assert "give --posix" in run("grants", "--iam", exit_code=2).stderr
