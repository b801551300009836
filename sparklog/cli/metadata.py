"""`sparklog metadata`: the commits of a root in words, and what its metadata says after any of them.

Only the root is read; no broker has to run. A commit can be shown while the log keeps it, the metadata after
it from the oldest snapshot on; what was cleaned is COMMIT_MISSING.
Sources: FORMAT.md#metadata-log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from sparklog.cli.brokers import BROKER_COLUMNS, broker_rows, controller_document
from sparklog.cli.framework import Group, current, note
from sparklog.cli.inputs import Moment, at_option, commit_number, image_of
from sparklog.cli.output import Document, cell, show_json, show_rows, tell
from sparklog.cli.partitions import COLUMNS, partition_rows
from sparklog.metadata import is_internal, without_secrets
from sparklog.wording import shown_time

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.client.commit_words import CommitWords
    from sparklog.metadata import Image

MAX_COMMITS = 20
MAX_ACTIONS = 1_000  # of a commit, as text


@click.group("metadata", cls=Group)
def metadata() -> None:
    """What each commit did, and what the metadata says after any that is kept: log, show."""


@metadata.command("log")
@click.option("--from", "first", type=click.IntRange(min=0), help="Begin with this commit.")
@click.option(
    "--max",
    "most",
    type=click.IntRange(min=1, max=100_000),
    default=MAX_COMMITS,
    show_default=True,
    help="Show so many at most; without --from, the newest.",
)
def show_log(first: int | None, most: int) -> None:
    """Show commits, one a line: number, time, who wrote it, what it does."""
    from sparklog.client.commit_words import Words
    from sparklog.metadata.loading import oldest_commit, read_past_commits

    log = current().open_root()
    image, store = log.image, log.store
    found: Iterator[CommitWords] = iter(())
    if image.commit >= 0:
        if first is None:
            first = max(image.commit - most + 1, oldest_commit(store, image))
        last = max(first, min(image.commit, first + most - 1))
        known = Words(image)
        found = (known.commit(*one) for one in read_past_commits(store, image, first, last))
    if current().json:
        show_json([dataclasses.asdict(one) for one in found])
        return
    for one in found:
        tell(_line(one))


@metadata.command("show")
@click.argument("commit", required=False, metavar="[COMMIT]")
@click.option("--topic", "-t", "topic", metavar="NAME", help="Only this topic.")
@at_option
def show(commit: str | None, topic: str | None, moment: Moment | None) -> None:
    """Show all that COMMIT did; or, without it, brokers, topics, leaders and settings as of --at.

    \b
    sparklog metadata show 42 --output json
    sparklog metadata show --topic orders --at 1d
    diff <(sparklog metadata show --at 41) <(sparklog metadata show --at 42)
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    log = current().open_root()
    if commit is None:
        _show_state(image_of(log, moment), topic)
        return
    number = commit_number(commit)
    if number is None or moment is not None or topic is not None:
        raise click.UsageError(
            f"found {commit!r}, expected a commit's number alone, or no COMMIT and perhaps --at and --topic."
        )
    _show_commit(log, number)


def _show_state(image: Image, topic: str | None) -> None:
    names = sorted(image.topics) if topic is None else [image.topic(topic).name]
    if topic is None and not current().json:
        internal = list(filter(is_internal, names))
        names = [name for name in names if name not in internal]
        for name in internal:
            note(f"Note: an internal topic is left out; --topic {name} shows it.")
    rows = partition_rows(image, names)
    topics: list[Document] = [
        {
            "topic": name,
            "topic_id": image.topics[name].topic_id,
            "configs": dict(image.topics[name].configs),
            "partitions": [row for row in rows if row["topic"] == name],
        }
        for name in names
    ]
    brokers, settings = broker_rows(image), dict(image.configs)
    if current().json:
        show_json(
            {
                "commit": image.commit,
                "cluster_id": image.cluster_id,
                "configs": settings,
                "controller": controller_document(image),
                "brokers": brokers,
                "topics": topics,
            }
        )
        return
    tell(f"ClusterId: {image.cluster_id}", f"Configs: {cell(settings)}")
    if brokers:
        show_rows(BROKER_COLUMNS, brokers)
    for one in topics:
        configs = one["configs"]
        tell(f"Topic: {one['topic']}", f"TopicId: {one['topic_id']}", f"Configs: {cell(configs)}")
    if rows:
        show_rows(COLUMNS, rows)


def _show_commit(log: OpenedRoot, commit: int) -> None:
    from sparklog.client.commit_words import Words
    from sparklog.metadata.loading import read_past_commits

    image = log.image
    ((header, actions),) = read_past_commits(log.store, image, commit, commit)
    found = Words(image).commit(header, actions)
    if current().json:
        document = dataclasses.asdict(found)
        document |= {"uuid": header.uuid, "previous": header.previous, "version": header.version}
        document["actions"] = [
            {**one, **msgspec.to_builtins(without_secrets(action))}
            for one, action in zip(document["actions"], actions, strict=True)
        ]
        show_json(document)
        return
    tell(_line(dataclasses.replace(found, actions=())))
    for one in found.actions[:MAX_ACTIONS]:
        tell(f"  {one.type}: {one.words}")
    if len(actions) > MAX_ACTIONS:
        note(f"Note: {len(actions) - MAX_ACTIONS:,} more actions are not shown: --output json has them all.")


def _line(found: CommitWords) -> str:
    """Number, time, author and the first actions of a commit."""
    by = ", ".join(found.by) or "-"
    return f"{found.commit:>8}  {shown_time(found.timestamp_ms)}  {by}  {found.summary}".rstrip()
