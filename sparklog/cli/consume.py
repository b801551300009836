"""`sparklog consume`: print records, partition by partition, and follow the log.

Follows until interrupted, unless `-e` (stop at the end as it was) or `-c N`.
Not here: formats (record_format.py), what `-o` means (start_position.py), what is read (cursors.py), the
    loop (follower.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import click

from sparklog.cli.cursors import Selection
from sparklog.cli.follower import Follower
from sparklog.cli.group import OnceCommand
from sparklog.cli.near_names import require_topics
from sparklog.cli.notes import note
from sparklog.cli.record_format import ConsumedRecord, FormatError, compile_format, json_line
from sparklog.cli.settings import common_options, current
from sparklog.cli.start_position import PositionError, parse_positions

LEVELS = ("read_committed", "read_uncommitted")  # what is not committed is seen by nobody here
PRINT_PROPERTIES = {  # kafka-console-consumer's print.* in its order, and our tokens for them
    "print.timestamp": "%T",
    "print.partition": "%p",
    "print.offset": "%o",
    "print.headers": "%h",
    "print.key": "%k",
    "print.value": "%s",
}


def refuse_timeout(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """kafka-console-consumer's way to end needs no time here: the end of the log is known."""
    if value is not None:
        raise click.UsageError("--timeout-ms is not known here: give -e, which stops at the end of the log.")


@click.command("consume", cls=OnceCommand)
@click.option("--topic", "-t", required=True, metavar="NAME", help="The topic.")
@click.option(
    "-p", "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Default: all."
)
@click.option(
    "-o",
    "--offset",
    "positions",
    multiple=True,
    metavar="POS",
    help="Start: beginning, end, stored (default), N, -N (last N), s@MS; stop: e@MS.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="As in Kafka: the beginning, where the group has no offset; -o beginning: anyhow.",
)
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of each partition.")
@click.option("-c", "--max-messages", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--group", "-G", metavar="NAME", help="Start from, and commit to, this group's offsets.")
@click.option(
    "-f", "--format", "text", metavar="FORMAT", help=r"%t %p %o %k %s %S %K %T %h, \n. Default: '%s\n'."
)
@click.option("-J", "--json", "as_json", is_flag=True, help="A JSON object a line (as --output json).")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for null keys and values.")
@click.option("--formatter-property", "--property", "properties", multiple=True, hidden=True)
@click.option("--isolation-level", type=click.Choice(LEVELS), expose_value=False, hidden=True)
@click.option("--timeout-ms", expose_value=False, hidden=True, callback=refuse_timeout)
@click.option("-C", "unused", is_flag=True, expose_value=False, hidden=True)
@common_options
def consume(
    topic: str,
    partitions: tuple[int, ...],
    positions: tuple[str, ...],
    from_beginning: bool,
    exit_at_end: bool,
    max_messages: int | None,
    group: str | None,
    text: str | None,
    as_json: bool,
    show_null: bool,
    properties: tuple[str, ...],
) -> None:
    """Print records, and follow the log.

    \b
    sparklog consume --topic flights -o -5 -e
    sparklog consume --topic flights -f '%p:%o %k %s\\n' -c 10
    sparklog consume --topic delays -J -o end | jq .payload
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    try:
        start, end = parse_positions(positions)
        render = _renderer(
            text, as_json=as_json or current().json, show_null=show_null, properties=properties
        )
    except (PositionError, FormatError) as error:
        raise click.UsageError(str(error)) from None
    if properties and (text is not None or as_json or current().json):
        raise click.UsageError("--formatter-property, -f and -J name formats; give one.")
    if group == "":
        raise click.UsageError("--group is empty: nothing would be committed; name it, or leave it out.")
    if from_beginning and start is not None:
        raise click.UsageError("--from-beginning and -o name two starts; give one.")
    log = current().open_log()
    require_topics(log, [topic])
    selection = Selection(
        topic=topic, partitions=partitions, start=start, end=end, exit_at_end=exit_at_end, group=group
    )
    follower = Follower(log, selection, with_headers=render.needs_headers)
    try:
        follower.run(render.record, sys.stdout.buffer, max_messages)
    except KeyboardInterrupt:
        # The usual way to end a follow; what was printed is printed.
        note("")


@dataclass(frozen=True, slots=True)
class Renderer:
    """How a record is printed, and whether its headers are needed for it."""

    record: Callable[[ConsumedRecord], bytes]
    needs_headers: bool


def _renderer(text: str | None, *, as_json: bool, show_null: bool, properties: tuple[str, ...]) -> Renderer:
    if as_json:
        if text is not None:
            raise click.UsageError("-f and -J name two formats; give one.")
        return Renderer(json_line, needs_headers=True)
    if text is None:
        text = _format_of_properties(properties) if properties else "%s\\n"
    return Renderer(compile_format(text, null=b"NULL" if show_null else b""), needs_headers="%h" in text)


def _format_of_properties(properties: tuple[str, ...]) -> str:
    chosen = {"print.value": "true"}
    for text in properties:
        key, _, value = text.partition("=")
        if key not in PRINT_PROPERTIES and key != "key.separator":
            known = ", ".join([*PRINT_PROPERTIES, "key.separator"])
            raise click.UsageError(f"--formatter-property: found {key!r}, expected one of {known}.")
        chosen[key] = value
    separator = chosen.get("key.separator", "\t").replace("%", "%%").replace("\\", "\\\\")
    tokens = [token for key, token in PRINT_PROPERTIES.items() if chosen.get(key, "").lower() == "true"]
    return separator.join(tokens) + "\\n"
