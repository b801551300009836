"""`sparklog grants`: who gets the root, and what that does not express."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog
from sparklog.cli.grants import granted_to, iam_policy, posix_commands, topic_group
from sparklog.client import SparkLog
from sparklog.client.appender import StagedAppend
from sparklog.errors import StorageError
from sparklog.metadata import Acl
from tests.seaweed import BUCKET, JOB_ACTIONS, JOB_KEY, JOB_ROOT, JOB_SECRET, SeaweedServer

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
    policy: Any = iam_policy("s3://bucket/logs/a", granted_to([READS_ALL], "User:spark"))
    lists, reads = policy["Statement"]
    assert lists["Condition"] == {"StringLike": {"s3:prefix": ["logs/a/*"]}}
    assert reads["Resource"] == ["arn:aws:s3:::bucket/logs/a/*"]
    assert reads["Action"] == ["s3:GetObject"]
    policy = iam_policy("s3://bucket", granted_to(DOES_ALL, "User:ops"))
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


# --- isolated topics ---------------------------------------------------------------------------------

READS = Acl("TOPIC", "orders", "LITERAL", "User:eve", "*", "READ", "ALLOW")
WRITES = READS._replace(operation="WRITE")
ISOLATED = ("orders", "orders-eu")


def topics_of(acls: list[Acl], principal: str = "User:eve") -> dict[str, list[str]]:
    found: Any = granted_to(acls, principal, ISOLATED)["topics"]
    return {one["topic"]: one["rights"] for one in found}


@pytest.mark.parametrize(
    ("acls", "topics"),
    [
        ([READS], {"orders": ["read"]}),
        ([READS, WRITES], {"orders": ["read", "write"]}),
        ([READS._replace(operation="ALL")], {"orders": ["read", "write"]}),
        ([READS._replace(pattern_type="PREFIXED")], {"orders": ["read"], "orders-eu": ["read"]}),
        ([READS._replace(pattern_type="PREFIXED", name="orders-")], {"orders-eu": ["read"]}),
        ([READS._replace(principal="User:*")], {"orders": ["read"]}),
        ([READS._replace(principal="User:bob")], {}),
        ([READS._replace(host="10.0.0.1")], {}),
        ([READS._replace(operation="DESCRIBE")], {}),
        ([READS._replace(name="other")], {}),
        ([READS._replace(resource_type="GROUP")], {}),
        ([READS, READS._replace(host="10.0.0.1", **DENY)], {}),
        ([READS, READS._replace(principal="User:*", name="*", operation="ALL", **DENY)], {}),
        ([READS, WRITES, WRITES._replace(name="ord", pattern_type="PREFIXED", **DENY)], {"orders": ["read"]}),
        ([READS._replace(name="*")], {}),  # every topic: the root
        ([READS._replace(name="*"), WRITES], {"orders": ["write"]}),
    ],
)
def test_who_gets_an_isolated_topic(acls: list[Acl], topics: dict[str, list[str]]) -> None:
    assert topics_of(acls) == topics


def test_who_has_the_root_needs_no_topic() -> None:
    assert topics_of([*DOES_ALL, READS._replace(principal="User:ops")], "User:ops") == {}


def test_what_a_topic_expresses_and_what_it_does_not() -> None:
    acls = [READS, READS._replace(operation="DESCRIBE"), WRITES._replace(name="other")]
    acls += [READS._replace(name="ord", pattern_type="PREFIXED"), READS._replace(resource_type="GROUP")]
    assert granted_to(acls, "User:eve", ISOLATED)["not_expressed"] == [
        "may WRITE TOPIC other",
        "may READ TOPIC ord*",
        "may READ GROUP orders",
    ]


def matches(policy: Any, action: str, key: str) -> bool:
    """As S3 evaluates a policy: by the action, and by the key's wildcards."""
    arn = f"arn:aws:s3:::bucket/{key}"
    return any(
        action in one["Action"] and any(fnmatchcase(arn, pattern) for pattern in one["Resource"])
        for one in policy["Statement"]
    )


def test_a_policy_for_topics_opens_their_directories_and_the_metadata_log_only() -> None:
    policy: Any = iam_policy("s3://bucket/logs", granted_to([READS, WRITES], "User:eve", ISOLATED))
    orders, segment = "logs/isolated/orders", f"segments/{'a' * 32}/00000000.1.log"
    for key in (f"{orders}/{segment}", "logs/meta.properties", "logs/__cluster_metadata/1.json"):
        assert matches(policy, "s3:GetObject", key)
    for key in (f"{orders}-eu/{segment}", f"logs/{segment}", f"logs/orders-0/{0:020d}.1-x.log", orders):
        assert not matches(policy, "s3:GetObject", key)
    assert matches(policy, "s3:PutObject", f"{orders}/{segment}")
    for key in ("logs/__cluster_metadata/2.json", f"{orders}-eu/{segment}", "logs/meta.properties"):
        assert not matches(policy, "s3:PutObject", key)
    assert not matches(policy, "s3:DeleteObject", f"{orders}/{segment}")
    assert policy["Statement"][0]["Condition"] == {"StringLike": {"s3:prefix": ["logs/__cluster_metadata/*"]}}
    reader = iam_policy("s3://bucket/logs", granted_to([READS], "User:eve", ISOLATED))
    assert not matches(reader, "s3:PutObject", f"{orders}/{segment}")


def test_groups_of_topics_have_short_names_of_their_own() -> None:
    names = ["orders", "orders-eu", "Orders", "or.ders", "or_ders", "x" * 249, "x" * 248 + "y"]
    names += [topic_group("Orders").removeprefix("sparklog-read-"), "x" * 8 + "-" + "0" * 8]
    groups = [topic_group(name) for name in names]
    assert len(set(groups)) == len(groups)
    assert max(map(len, groups)) <= 32
    assert groups[:2] == ["sparklog-read-orders", "sparklog-read-orders-eu"]


def test_groups_of_the_directory_of_a_topic(run: Run, run_json: RunJson, root: Path) -> None:
    isolated = ("--config", "sparklog.segment.isolation=true")
    run("topics", "create", "--topic", "orders", *isolated)
    run("topics", "create", "--topic", "late")
    run("produce", "--topic", "late", stdin="x\n")
    run("topics", "alter", "--topic", "late", *isolated)
    for operation in ("Read", "Write"):
        run("acls", "add", "--allow-principal", "User:eve", "--operation", operation, "--topic", "orders")
    shown = run("grants", "--posix").stdout
    assert "#   read topic orders\n" in shown
    assert "#   not expressed: may WRITE TOPIC orders\n" in shown
    assert f"chmod --recursive o-rwx {root}\n" in shown
    assert f"setfacl --recursive --default --modify other::--- {root}\n" in shown
    assert f"setfacl --default --modify group:sparklog-metadata:r {root}/.tmp\n" in shown
    of = root.stat()
    owner = f"--owner={of.st_uid} --group={of.st_gid} --mode={of.st_mode & 0o770:o}"
    assert f"install --directory {owner} {root}/isolated/orders\n" in shown
    assert f"setfacl --modify group:sparklog-metadata:rx {root} {root}/isolated\n" in shown
    assert f"setfacl --recursive --modify group:sparklog-metadata:rX {root}/__cluster_metadata\n" in shown
    assert f"setfacl --recursive --modify group:sparklog-read-orders:rX {root}/isolated/orders\n" in shown
    default = "setfacl --recursive --default --modify group:sparklog-read-orders:rX"
    assert f"{default} {root}/isolated/orders\n" in shown
    assert "# Note: topic late: 1 extents are not in its directory yet" in shown
    assert "sees the names, sizes, times and settings of all topics" in shown
    document = run_json("grants", "--posix")
    (eve,) = document["principals"]
    assert (eve["access"], eve["topics"]) == ("none", [{"topic": "orders", "rights": ["read"]}])
    assert len(document["notes"]) == 6


@pytest.mark.skipif(shutil.which("setfacl") is None or os.geteuid() != 0, reason="needs setfacl, and root")
@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_the_commands_do_what_they_say(root: Path, umask: int) -> None:
    """With groups and a user that nobody has: a job reads its topic, also what comes later, and no other."""
    reader, groups = 61002, {"sparklog-metadata": 51001, "sparklog-read-orders": 51002}
    for path in (root.parent, *root.parent.parents[:2]):
        path.chmod(0o755)
    before = os.umask(umask)
    try:
        log = sparklog.open(str(root))
        for topic in ("orders", "payroll"):
            log.create_topic(topic, 1, {"sparklog.segment.isolation": "true"})
            log.append(topic, pa.table({"value": [topic]}))
        for command in posix_commands(f"file://{root}", granted_to([READS], "User:eve", ISOLATED)):
            if not command.startswith(("groupadd", "usermod")):
                for name, number in groups.items():
                    command = command.replace(f"group:{name}:", f"group:{number}:")
                subprocess.run(command, shell=True, check=True)
        log.append("orders", pa.table({"value": ["more"]}))
        log.close()
    finally:
        os.umask(before)
    files = [path for path in root.rglob("*") if path.is_file()]
    readable = {
        path.relative_to(root).as_posix() for path in files if may_read(path, reader, groups.values())
    }
    assert any(name.startswith("isolated/orders/") for name in readable)
    assert "meta.properties" in readable
    commits = {path.relative_to(root).as_posix() for path in (root / "__cluster_metadata").iterdir()}
    assert commits <= readable
    assert all(name.startswith(("isolated/orders/", "__cluster_metadata/", "meta")) for name in readable)


def may_read(path: Path, user: int, groups: Iterable[int]) -> bool:
    """In a child with these rights."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(user)
            os.setuid(user)
            path.read_bytes()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


# --- a store that keeps to it ------------------------------------------------------------------------


def seaweed_actions(policy: Any) -> set[str]:
    """The statements of a policy as SeaweedFS has them; its patterns end with a star."""
    lists, *others = policy["Statement"]
    names = {"s3:GetObject": "Read", "s3:PutObject": "Write"}
    found = {f"List:{BUCKET}/{prefix}" for prefix in lists["Condition"]["StringLike"]["s3:prefix"]}
    for one in others:
        for path in (resource.removeprefix("arn:aws:s3:::") for resource in one["Resource"]):
            found |= {f"{names[name]}:{path.rstrip('*')}*" for name in one["Action"] if name in names}
    return found


def stage(log: SparkLog, topic: str) -> StagedAppend:
    with log.appender() as appender:
        appender.add(pa.table({"value": ["staged"]}), topic)
        return appender.finish()


def test_a_job_with_the_policy_reads_and_stages_its_topic_and_no_other(s3_server: SeaweedServer) -> None:
    """What it stages is published by a process that may write the metadata log."""
    policy = iam_policy(JOB_ROOT, granted_to([READS, WRITES], "User:eve", ISOLATED))
    assert seaweed_actions(policy) == set(JOB_ACTIONS)
    isolated = {"sparklog.segment.isolation": "true"}
    with sparklog.open(JOB_ROOT) as owner:
        for topic, configs in (("orders", isolated), ("orders-eu", isolated), ("shared", {})):
            owner.create_topic(topic, 1, configs)
            owner.append(topic, pa.table({"value": [topic]}))
        options = {"key": JOB_KEY, "secret": JOB_SECRET, "endpoint_url": s3_server.endpoint_url}
        with sparklog.open(JOB_ROOT, create=False, storage_options=options) as job:
            assert job.read("orders", 0, 0)["value"].to_pylist() == [b"orders"]
            for topic in ("orders-eu", "shared"):
                with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*403"):
                    job.read(topic, 0, 0)
                with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*cannot put"):
                    stage(job, topic)
            staged = stage(job, "orders")
            with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*__cluster_metadata"):
                job.publish([staged])
        owner.publish([staged])
        assert owner.read("orders", 0, 0)["value"].to_pylist() == [b"orders", b"staged"]
