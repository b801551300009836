"""`sparklog grants`: what the storage has to allow so that it agrees with the ACLs.

ACLs bind the clients of brokers. A process that can read the root reads every topic, and one that can write
it may change and remove everything: a segment holds many topics, and there is one metadata log. So the
storage can give a root to a principal, or not; it cannot give a topic.

    read     a principal that may read every topic
    write    a principal that may do everything with every topic and group, and with the cluster

All others go through brokers, Spark with `format("kafka")`.
Not here: users, roles and their credentials; nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.framework import Command, current
from sparklog.cli.output import Document, show_json, tell

if TYPE_CHECKING:
    from sparklog.metadata import Acl

_EVERYTHING = ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID")
_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_READ_ACTIONS = ("s3:GetObject",)
_WRITE_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")


@click.command("grants", cls=Command)
@click.option("--iam", "how", flag_value="iam", help="Print policies for S3.")
@click.option("--posix", "how", flag_value="posix", help="Print groups and access lists for a directory.")
@click.option("--principal", "principals", multiple=True, metavar="NAME", help="Only of these.")
def grants(how: str | None, principals: tuple[str, ...]) -> None:
    """Print what the storage has to allow so that it agrees with the ACLs, and what it cannot express."""
    log = current().open_root()
    acls = sorted(log.image.acls)
    scheme = "iam" if log.url.startswith("s3://") else "posix"
    if how is None:
        raise click.UsageError(f"give --iam or --posix; for {log.url} it is --{scheme}.")
    if how != scheme:
        raise click.UsageError(f"--{how} is not for {log.url}: give --{scheme}.")
    found = [granted_to(acls, one) for one in sorted({acl.principal for acl in acls} - {"User:*"})]
    if principals:
        found = [one for one in found if one["principal"] in principals]
    for one in found:
        if one["access"] != "none":
            one["policy" if how == "iam" else "commands"] = (
                iam_policy(log.url, one) if how == "iam" else _commands(log.url, one)
            )
    if current().json:
        show_json({"root": log.url, "principals": found})
        return
    _show(log.url, how, found)


def granted_to(acls: Sequence[Acl], principal: str) -> Document:
    """Return what the root can give to a principal, and what of its ACLs that does not express."""
    own = [acl for acl in acls if acl.principal in {principal, "User:*"}]
    is_writer = all(_has_all(own, kind, "ALL") for kind in _EVERYTHING)
    is_reader = is_writer or _has_all(own, "TOPIC", "READ")
    access = "write" if is_writer else "read" if is_reader else "none"
    return {"principal": principal, "access": access, "not_expressed": _not_expressed(own, access)}


def _has_all(acls: Sequence[Acl], kind: str, operation: str) -> bool:
    """True if an operation is allowed on all resources of a type, everywhere, and no DENY takes any back."""
    of_kind = [acl for acl in acls if acl.resource_type == kind]
    wanted = {operation, "ALL"}
    if any(acl.permission == "DENY" and (operation == "ALL" or acl.operation in wanted) for acl in of_kind):
        return False
    everything = "kafka-cluster" if kind == "CLUSTER" else "*"
    return any(
        acl.permission == "ALLOW"
        and acl.operation in wanted
        and acl.host == "*"
        and acl.pattern_type == "LITERAL"
        and acl.name == everything
        for acl in of_kind
    )


def _not_expressed(acls: Sequence[Acl], access: str) -> list[str]:
    if access == "write":
        return []
    found = []
    for acl in acls:
        if access == "read" and acl.resource_type == "TOPIC" and acl.operation in {"READ", "DESCRIBE"}:
            continue
        star = "*" if acl.pattern_type == "PREFIXED" else ""
        host = "" if acl.host == "*" else f" from {acl.host}"
        verb = "may" if acl.permission == "ALLOW" else "may not"
        found.append(f"{verb} {acl.operation} {acl.resource_type} {acl.name}{star}{host}")
    return found


def iam_policy(url: str, granted: Document) -> Document:
    """Return a policy of AWS for a principal."""
    from sparklog.storage.root_rules import parse_s3_url

    bucket, prefix = parse_s3_url(url)
    folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    name = "".join(word.title() for word in _NOT_WORD.split(str(granted["principal"])))
    actions = _WRITE_ACTIONS if granted["access"] == "write" else _READ_ACTIONS
    statements: list[dict[str, Any]] = [
        {
            "Sid": f"List{name}",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{folder}*"]}},
        },
        {
            "Sid": f"{str(granted['access']).title()}{name}",
            "Effect": "Allow",
            "Action": list(actions),
            "Resource": [f"arn:aws:s3:::{bucket}/{folder}*"],
        },
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _commands(url: str, granted: Document) -> list[str]:
    """Return commands that put a principal's user into a group, to which the directory is open."""
    import shlex

    from sparklog.storage.root_rules import local_path

    path = shlex.quote(local_path(url))
    user = _NOT_WORD.sub("-", str(granted["principal"]).partition(":")[2]).strip("-").lower()
    group, rights = ("sparklog-write", "rwX") if granted["access"] == "write" else ("sparklog-read", "rX")
    return [
        f"groupadd --force {group}",
        f"usermod --append --groups {group} {shlex.quote(user)}",
        f"setfacl --recursive --modify group:{group}:{rights} {path}",
        f"setfacl --recursive --default --modify group:{group}:{rights} {path}",
    ]


def _show(url: str, how: str, found: Sequence[Document]) -> None:
    from sparklog.cli.framework import json_text

    if not found:
        tell("There are no ACLs of principals.")
    for one in found:
        access = str(one["access"])
        tell(f"# {one['principal']}: {'no access to' if access == 'none' else access} {url}")
        if how == "iam" and "policy" in one:
            for line in json_text(one["policy"], indent=2).splitlines():
                tell(line)
        for command in one.get("commands", ()):  # type: ignore[attr-defined]
            tell(command)
        for reason in one["not_expressed"]:  # type: ignore[attr-defined]
            tell(f"#   not expressed: {reason}")
    tell("# The storage gives a whole root or nothing: others go through brokers (docs/acls.md).")
