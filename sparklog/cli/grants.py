"""`sparklog grants`: what the storage has to allow so that it agrees with the ACLs.

ACLs bind the clients of brokers. A process that can read the root reads every topic, and one that can write
it may change and remove everything: a segment holds many topics, and there is one metadata log. So the
storage can give a principal the root, or an isolated topic, whose segments are in a directory of their own.

    the root: read     a principal that may read every topic
    the root: write    a principal that may do everything with every topic and group, and with the cluster
    a topic: read      a principal that may read this isolated topic: its directory, and the metadata log
    a topic: write     a principal that may write it, on S3: its directory. Not the metadata log, without
                       which nothing is published: that would be the right to change and delete every topic

All others go through brokers, Spark with `format("kafka")`.
Not here: users, roles and their credentials; nothing is changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.framework import Command, current
from sparklog.cli.output import Document, show_json, tell

if TYPE_CHECKING:
    from sparklog.metadata import Acl, Image

_EVERYTHING = ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID")
_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_READ_ACTIONS = ("s3:GetObject",)
_WRITE_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_TOPIC_WRITE_ACTIONS = ("s3:PutObject", "s3:AbortMultipartUpload")
_METADATA_GROUP = "sparklog-metadata"
_GROUP = re.compile(r"[a-z0-9_-]{1,32}", re.ASCII)
_HASHED = re.compile(r"-[0-9a-f]{8}$")  # such names are for those that are too long, or have other characters
_GROUP_CHARACTERS = 8  # of a topic's name beside its hash


_METADATA = "__cluster_metadata"
_SEES = f"""who may read {_METADATA} sees the names, sizes, times and settings of all topics, the ACLs, and
the SCRAM credentials of users, on which passwords can be guessed"""
_PUBLISHES = f"""who may write {_METADATA} may append to, change and delete every topic. So what a principal
writes into a topic's directory has to be published by a process that may do that: a Spark driver, a broker"""
_OTHERS = "committed offsets, and topics that are not isolated, are read and written through brokers"
# Readers ask for the next commit, which is not there yet. Not seen here: no test reaches Amazon.
_MISSING = """Amazon S3 answers 403 instead of 404 for a missing object to who may not list the bucket, and
may do so because of the condition on s3:prefix. If readers end with STORAGE_REFUSED, leave the Condition out:
then they may list the names of the whole bucket"""
_LINKS = """no group may write the directory of a topic: who may do so could put links to other topics' files
into it, which brokers and drivers follow. So Write on a topic needs a broker"""
_OTHER_USERS = """the commands close the root to users in none of these groups. Run them again after the root
was restored from elsewhere"""
_NOTES = tuple(" ".join(note.split()) for note in (_SEES, _PUBLISHES, _OTHERS))


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
    isolated = isolated_topics(log.image)
    known = sorted({acl.principal for acl in acls} - {"User:*"})
    found = [granted_to(acls, one, isolated, writes_topics=how == "iam") for one in known]
    if principals:
        found = [one for one in found if one["principal"] in principals]
    for one in found:
        if one["access"] != "none" or one["topics"]:
            one["policy" if how == "iam" else "commands"] = (
                iam_policy(log.url, one) if how == "iam" else posix_commands(log.url, one)
            )
    outside = [
        f"topic {name}: {count} extents are not in its directory yet: run `sparklog optimize {name}`, then "
        "vacuum"
        for name, count in isolated.items()
        if count
    ]
    notes = [*outside, *(_NOTES if isolated else ())]
    of_store = [_MISSING] if how == "iam" else [_OTHER_USERS, *([_LINKS] if isolated else [])]
    notes += [" ".join(note.split()) for note in of_store]
    if current().json:
        show_json({"root": log.url, "principals": found, "notes": notes})
        return
    _show(log.url, how, found, notes)


def isolated_topics(image: Image) -> dict[str, int]:
    """Return the isolated topics, with the number of their extents outside of their directories."""
    from sparklog.log.config import TopicConfig
    from sparklog.metadata import isolated_prefix

    found = {}
    for name, topic in sorted(image.topics.items()):
        if TopicConfig.parse(topic.configs, image.configs).segment_isolation:
            prefix = isolated_prefix(name)
            segments = (extent.segment for state in topic.partitions for extent in state.extents)
            found[name] = sum(not segment.startswith(prefix) for segment in segments)
    return found


def granted_to(
    acls: Sequence[Acl], principal: str, isolated: Iterable[str] = (), *, writes_topics: bool = True
) -> Document:
    """Return what the root can give to a principal, and what of its ACLs that does not express.

    Args:
        isolated: the names of the isolated topics.
        writes_topics: the storage can give the right to write one of them.
    """
    own = [acl for acl in acls if acl.principal in {principal, "User:*"}]
    is_writer = all(_has_all(own, kind, "ALL") for kind in _EVERYTHING)
    is_reader = is_writer or _has_all(own, "TOPIC", "READ")
    access = "write" if is_writer else "read" if is_reader else "none"
    topics: list[Document] = []
    for name in () if is_writer else isolated:
        able = ("READ", "WRITE") if writes_topics else ("READ",)
        rights = [right for right in able if _has_topic(own, name, right)]
        rights = [right.lower() for right in rights if right == "WRITE" or not is_reader]
        if rights:
            topics.append({"topic": name, "rights": rights})
    expressed = {(one["topic"], right.upper()) for one in topics for right in one["rights"]}  # type: ignore[attr-defined]
    return {
        "principal": principal,
        "access": access,
        "topics": topics,
        "not_expressed": _not_expressed(own, access, expressed),
    }


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


def _has_topic(acls: Sequence[Acl], topic: str, operation: str) -> bool:
    """True if an operation is allowed on a topic, from everywhere, and no DENY takes it back anywhere."""
    matching = [acl for acl in acls if acl.operation in {operation, "ALL"} and _is_of_topic(acl, topic)]
    if any(acl.permission == "DENY" for acl in matching):
        return False
    return any(acl.host == "*" for acl in matching)


def _is_of_topic(acl: Acl, topic: str) -> bool:
    if acl.resource_type != "TOPIC":
        return False
    if acl.pattern_type == "PREFIXED":
        return topic.startswith(acl.name)
    return acl.name in {topic, "*"}


def _not_expressed(acls: Sequence[Acl], access: str, expressed: Collection[tuple[object, str]]) -> list[str]:
    """Return the ACLs that no statement expresses. Patterns are among them: topics may be created later."""
    if access == "write":
        return []
    found = []
    for acl in acls:
        if access == "read" and acl.resource_type == "TOPIC" and acl.operation in {"READ", "DESCRIBE"}:
            continue
        is_plain = acl.pattern_type == "LITERAL" and acl.permission == "ALLOW" and acl.host == "*"
        right = "READ" if acl.operation == "DESCRIBE" else acl.operation
        if is_plain and acl.resource_type == "TOPIC" and (acl.name, right) in expressed:
            continue
        star = "*" if acl.pattern_type == "PREFIXED" else ""
        host = "" if acl.host == "*" else f" from {acl.host}"
        verb = "may" if acl.permission == "ALLOW" else "may not"
        found.append(f"{verb} {acl.operation} {acl.resource_type} {acl.name}{star}{host}")
    return found


def _topics_with(granted: Document, right: str) -> list[str]:
    topics: Any = granted["topics"]
    return [one["topic"] for one in topics if right in one["rights"]]


# --- policies of S3 ----------------------------------------------------------------------------------


def iam_policy(url: str, granted: Document) -> Document:
    """Return a policy of AWS for a principal."""
    from sparklog.metadata import isolated_prefix
    from sparklog.storage.root_rules import parse_s3_url

    bucket, prefix = parse_s3_url(url)
    folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    name = "".join(word.title() for word in _NOT_WORD.split(str(granted["principal"])))

    def statement(what: str, actions: Sequence[str], paths: Iterable[str]) -> Document:
        resources = [f"arn:aws:s3:::{bucket}/{folder}{path}" for path in paths]
        return {"Sid": f"{what}{name}", "Effect": "Allow", "Action": list(actions), "Resource": resources}

    has_root = granted["access"] != "none"
    lists: Document = {
        "Sid": f"List{name}",
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringLike": {"s3:prefix": [f"{folder}*" if has_root else f"{folder}{_METADATA}/*"]}},
    }
    statements = [lists]
    if has_root:
        actions = _WRITE_ACTIONS if granted["access"] == "write" else _READ_ACTIONS
        statements.append(statement(str(granted["access"]).title(), actions, ["*"]))
    else:
        reads = [f"{isolated_prefix(topic)}*" for topic in _topics_with(granted, "read")]
        statements.append(statement("Read", _READ_ACTIONS, ["meta.properties", f"{_METADATA}/*", *reads]))
    writes = [f"{isolated_prefix(topic)}*" for topic in _topics_with(granted, "write")]
    if writes:
        statements.append(statement("WriteTopics", _TOPIC_WRITE_ACTIONS, writes))
    return {"Version": "2012-10-17", "Statement": statements}


# --- groups of a directory ---------------------------------------------------------------------------


def posix_commands(url: str, granted: Document) -> list[str]:
    """Return commands that put a principal's user into groups, and open directories to these."""
    import shlex

    from sparklog.metadata import ISOLATED, isolated_prefix
    from sparklog.storage.base import TEMPORARY_DIRECTORY
    from sparklog.storage.root_rules import local_path

    root = local_path(url)
    user = _NOT_WORD.sub("-", str(granted["principal"]).partition(":")[2]).strip("-").lower()
    commands = []

    def join(group: str) -> None:
        commands.extend(
            [f"groupadd --force {group}", f"usermod --append --groups {group} {shlex.quote(user)}"]
        )

    def open_up(group: str, rights: str, path: str) -> None:
        commands.extend(
            f"setfacl {option} --modify group:{group}:{rights} {shlex.quote(path)}"
            for option in ("--recursive", "--recursive --default")
        )

    def make(path: str) -> None:
        """As whoever runs the commands, it would be that user's: the root's own could not write there."""
        of = Path(root).stat()
        owner = f"--owner={of.st_uid} --group={of.st_gid} --mode={of.st_mode & 0o770:o}"
        commands.append(f"install --directory {owner} {shlex.quote(path)}")

    if granted["access"] != "none" or granted["topics"]:
        # A group's way into the root would else open what is open to everybody below it.
        commands.append(f"chmod --recursive o-rwx {shlex.quote(root)}")
        commands.append(f"setfacl --recursive --default --modify other::--- {shlex.quote(root)}")
    if granted["access"] != "none":
        group, rights = ("sparklog-write", "rwX") if granted["access"] == "write" else ("sparklog-read", "rX")
        join(group)
        open_up(group, rights, root)
    elif granted["topics"]:
        join(_METADATA_GROUP)
        make(f"{root}/{ISOLATED}")
        # Also to be read: a process syncs the directories above what it opens and writes.
        directories = f"{shlex.quote(root)} {shlex.quote(f'{root}/{ISOLATED}')}"
        commands.append(f"setfacl --modify group:{_METADATA_GROUP}:rx {directories}")
        properties = shlex.quote(f"{root}/meta.properties")
        commands.append(f"setfacl --modify group:{_METADATA_GROUP}:r {properties}")
        open_up(_METADATA_GROUP, "rX", f"{root}/{_METADATA}")
        # Commits and indexes are made there, and keep what they have when they get their names.
        make(f"{root}/{TEMPORARY_DIRECTORY}")
        temporary = shlex.quote(f"{root}/{TEMPORARY_DIRECTORY}")
        commands.append(f"setfacl --modify group:{_METADATA_GROUP}:x {temporary}")
        commands.append(f"setfacl --default --modify group:{_METADATA_GROUP}:r {temporary}")
    for topic in _topics_with(granted, "read"):
        group, path = topic_group(topic), f"{root}/{isolated_prefix(topic)}".rstrip("/")
        join(group)
        make(path)
        open_up(group, "rX", path)
    return commands


def topic_group(topic: str) -> str:
    """Return the group of a topic's readers: at most 32 characters, and another one for each topic."""
    group = f"sparklog-read-{topic}"
    if _GROUP.fullmatch(group) and not _HASHED.search(group):
        return group
    plain = _NOT_WORD.sub("-", topic).lower()[:_GROUP_CHARACTERS]
    return f"sparklog-read-{plain}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


# --- output ------------------------------------------------------------------------------------------


def _show(url: str, how: str, found: Sequence[Document], notes: Sequence[str]) -> None:
    from sparklog.cli.framework import json_text

    if not found:
        tell("There are no ACLs of principals.")
    for one in found:
        access = str(one["access"])
        tell(f"# {one['principal']}: {'no access to' if access == 'none' else access} {url}")
        for topic in one["topics"]:  # type: ignore[attr-defined]
            tell(f"#   {' and '.join(topic['rights'])} topic {topic['topic']}")
        if how == "iam" and "policy" in one:
            for line in json_text(one["policy"], indent=2).splitlines():
                tell(line)
        for command in one.get("commands", ()):  # type: ignore[attr-defined]
            tell(command)
        for reason in one["not_expressed"]:  # type: ignore[attr-defined]
            tell(f"#   not expressed: {reason}")
    for note in notes:
        tell(f"# Note: {note}.")
    tell("# The storage gives a whole root, or isolated topics: others go through brokers (docs/acls.md).")
