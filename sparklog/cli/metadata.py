"""`sparklog metadata`: the registry as it is and as it was, and the commits that made it so.

Only the root is read: no broker is needed, and none is asked. What a commit says can be shown for as long as
the log keeps it, the registry as of it from the oldest snapshot on; what has been cleaned is COMMIT_MISSING.
Not here: paths and values (registry_nodes.py), commits in words (commit_words.py).
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.moments import Moment, at_option, commit_number, image_of, shown_time
from sparklog.cli.notes import note
from sparklog.cli.output import show_json, tell
from sparklog.cli.plain_text import json_text
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparklog.client import SparkLog
    from sparklog.metadata import Action, Image
    from sparklog.metadata.documents.document import Header

MAX_NODES = 1_000
MAX_COMMITS = 20
MAX_VALUE = 2_000  # characters of a value in a tree
Document = dict[str, object]


@click.group("metadata", cls=LazyGroup)
def metadata() -> None:
    """The registry of brokers, topics and leaders, at any commit that is kept."""


@metadata.command("tree")
@click.argument("path", default="/")
@at_option
@click.option(
    "--max",
    "most",
    type=click.IntRange(min=1, max=sys.maxsize),
    default=MAX_NODES,
    show_default=True,
    help="Show so many at most.",
)
@common_options
def tree(path: str, moment: Moment | None, most: int) -> None:
    """Show the paths at and below PATH, each with its value."""
    from sparklog.cli.registry_nodes import nodes

    image = image_of(current().open_log(), moment)
    found = nodes(image, path)
    shown = [(one.path, one.make()) for one in islice(found, most)]
    left_out = sum(1 for _ in found)
    if current().json:
        show_json(
            {
                "commit": image.commit,
                "nodes": [{"path": where, "value": value} for where, value in shown],
                "left_out": left_out,
            }
        )
        return
    for where, value in shown:
        tell(f"{where}  {_short(value)}")
    if left_out:
        note(f"Note: {left_out:,} more paths are not shown: name a PATH, or give --max.")


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
@common_options
def show_log(first: int | None, most: int) -> None:
    """Show commits, one a line: number, time, whose it is, what it does."""
    from sparklog.cli.commit_words import SHOWN
    from sparklog.metadata.past import oldest_commit, read_past_commits

    log = current().open_log()
    image, store = log.image, log.store
    if image.commit < 0:
        found: Iterator[Document] = iter(())
    else:
        if first is None:
            first = max(image.commit - most + 1, oldest_commit(store, image))
        last = max(first, min(image.commit, first + most - 1))
        known = _Known(image)
        found = (known.commit_document(*one) for one in read_past_commits(store, image, first, last))
    if current().json:
        show_json(list(found))
        return
    for one in found:
        tell(_line(one, SHOWN))


@metadata.command("show")
@click.argument("what", metavar="PATH|COMMIT")
@at_option
@common_options
def show(what: str, moment: Moment | None) -> None:
    """Show the value of a path (what is below one that has none), or all that a commit says."""
    from sparklog.cli.registry_nodes import value_at

    log = current().open_log()
    if what.startswith("/"):
        image = image_of(log, moment)
        value = value_at(image, what)
        show_json({"commit": image.commit, "path": what, "value": value} if current().json else value)
        return
    commit = commit_number(what)
    if commit is None or moment is not None:
        raise click.UsageError(f"found {what!r}, expected a path such as /controller, or a commit's number.")
    _show_commit(log, commit)


class _Known:
    """Names of topics, and who was controller: as of the newest image, and of the commits seen so far.

    A topic that was deleted before the image, and made before the first of the commits, has only its id.
    """

    def __init__(self, image: Image) -> None:
        self.names = {topic.topic_id: name for name, topic in image.topics.items()}
        self.controllers = {image.controller.controller_epoch: image.controller.node_id}
        if image.controller.node_id < 0:
            self.controllers.clear()

    def commit_document(self, header: Header, actions: Sequence[Action]) -> Document:
        """A commit in words."""
        from sparklog.cli.commit_words import authors, words
        from sparklog.metadata import CreateTopic, ElectController

        for one in actions:
            match one:
                case CreateTopic():
                    self.names[one.topic_id] = one.name
                case ElectController():
                    self.controllers[one.controller_epoch] = one.node_id
                case _:
                    pass
        return {
            "commit": header.commit,
            "timestamp_ms": header.timestamp_ms,
            "by": authors(actions, self.controllers),
            "actions": [
                {"type": action.__struct_config__.tag, "words": words(action, self.names)}
                for action in actions
            ],
        }


def _show_commit(log: SparkLog, commit: int) -> None:
    import msgspec

    from sparklog.metadata.past import read_past_commits

    image = log.image
    ((header, actions),) = read_past_commits(log.store, image, commit, commit)
    document = _Known(image).commit_document(header, actions)
    if current().json:
        document |= {"uuid": header.uuid, "previous": header.previous, "version": header.version}
        document["actions"] = [
            {**told, **_fields(msgspec.to_builtins(action))}
            for told, action in zip(_told(document), actions, strict=True)
        ]
        show_json(document)
        return
    tell(_line(document | {"actions": []}, 0))
    for one in _told(document)[:MAX_NODES]:
        tell(f"  {one['type']}: {one['words']}")
    if len(actions) > MAX_NODES:
        note(f"Note: {len(actions) - MAX_NODES:,} more actions are not shown: --output json has them all.")


def _fields(built: object) -> Document:
    assert isinstance(built, dict)
    return built


def _told(document: Document) -> list[Document]:
    actions = document["actions"]
    assert isinstance(actions, list)
    return actions


def _line(document: Document, most: int) -> str:
    """Number, time, whose, and so many of the actions."""
    commit, time_ms, by = document["commit"], document["timestamp_ms"], document["by"]
    assert isinstance(time_ms, int)
    assert isinstance(by, list)
    # Whose it is stands before: that a scope begins says no more.
    told = [str(one["words"]) for one in _told(document) if one["type"] != "act_as_broker"]
    more = [f"and {len(told) - most:,} more"] if len(told) > most else []
    what = "; ".join([*told[:most], *more])
    return f"{commit:>8}  {shown_time(time_ms)}  {', '.join(by) or '-'}  {what}".rstrip()


def _short(value: object) -> str:
    text = json_text(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}... ({len(text):,} characters)"
