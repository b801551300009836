"""Kafka's own grammar for fingers that know it: `sparklog kafka-topics --list`, `--describe`, ...

Each alias picks the command of the same meaning and hands it the remaining arguments; the other
kafka-* names in main.py are the very commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from sparklog.cli import groups, offsets, topics, transactions
from sparklog.cli.settings import Settings
from sparklog.cli.topic_patterns import is_pattern

TOPIC_VERBS: Mapping[str, click.Command] = {
    "--create": topics.create,
    "--list": topics.list_topics,
    "--describe": topics.describe,
    "--alter": topics.alter,
    "--delete": topics.delete,
}
GROUP_VERBS: Mapping[str, click.Command] = {
    "--list": groups.list_groups,
    "--describe": groups.describe,
}
TRANSACTION_VERBS: Mapping[str, click.Command] = {
    "list": transactions.list_transactions,
    "describe": transactions.describe,
    "abort": transactions.abort,
    "find-hanging": transactions.find_hanging,
}
NO_TRANSACTION_VERBS = {
    "describe-producers": "start sparklog-server, and use Kafka's own kafka-transactions",
    "forceTerminateTransaction": "it is `abort --transactional-id ID`, which fences the producer",
}
HELP = {"-h", "--help"}
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command("kafka-topics", context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def kafka_topics(ctx: click.Context) -> None:
    """kafka-topics: --create, --list, --describe, --alter or --delete, and their flags."""
    if "--create" not in ctx.args:
        ctx.args = _with_patterns(ctx.args, always="--list" in ctx.args, refuse="--alter" in ctx.args)
    _dispatch(ctx, TOPIC_VERBS, defaults={"--list": ["--names"]})


@click.command("kafka-get-offsets", context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def kafka_get_offsets(ctx: click.Context) -> None:
    """kafka-get-offsets: `sparklog offsets get`, with a regular expression for --topic."""
    _run(ctx, offsets.get, ctx.info_name or "", _with_patterns(ctx.args))


def _with_patterns(words: Sequence[str], *, always: bool = False, refuse: bool = False) -> list[str]:
    """`--topic k.*` as `--pattern k.*`, since Kafka's tools take regular expressions there; names stay names.

    Args:
        always: also a name, for a verb that filters and has no --topic.
        refuse: not for this verb.
    """
    found: list[str] = []
    is_value = False
    for word in words:
        option, separator, value = word.partition("=")
        if is_value or (option == "--topic" and separator):
            given = word if is_value else value
            if refuse and is_pattern(given):
                raise click.UsageError(
                    f"--alter takes the name of one topic here, found {given!r}: `sparklog topics list "
                    f"--names --pattern {given!r}` shows what it means; alter them one by one."
                )
            if is_pattern(given):
                found += ["--pattern", given]
            else:
                found += ["--pattern", given.replace(".", r"\.")] if always else ["--topic", given]
            is_value = False
        elif word == "--topic":
            is_value = True
        else:
            found.append(word)
    return [*found, *(["--topic"] if is_value else [])]


@click.command("kafka-consumer-groups", context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def kafka_consumer_groups(ctx: click.Context) -> None:
    """kafka-consumer-groups: --list or --describe, and their flags."""
    for verb in ("--delete", "--delete-offsets", "--reset-offsets"):
        if verb in ctx.args:
            raise click.UsageError(
                f"{verb} is not known here, since only a broker knows which members a group has: "
                "start sparklog-server, and use Kafka's own kafka-consumer-groups."
            )
    _dispatch(ctx, GROUP_VERBS, defaults={})


@click.command("kafka-transactions", context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def kafka_transactions(ctx: click.Context) -> None:
    """kafka-transactions: list, describe, abort or find-hanging, and their flags before and after."""
    for word, instead in NO_TRANSACTION_VERBS.items():
        if word in ctx.args:
            raise click.UsageError(f"{word} is not known here: {instead}.")
    _dispatch(ctx, TRANSACTION_VERBS, defaults={})


def _dispatch(
    ctx: click.Context, verbs: Mapping[str, click.Command], defaults: Mapping[str, list[str]]
) -> None:
    chosen = [argument for argument in ctx.args if argument in verbs]
    if not chosen and not HELP.isdisjoint(ctx.args):
        click.echo(f"Usage: {ctx.command_path} VERB [OPTIONS]\n\nVerbs; each has its own --help:")
        width = max(map(len, verbs))
        for verb, command in verbs.items():
            click.echo(f"  {verb:<{width}}  {command.get_short_help_str(limit=60)}")
        return
    if len(chosen) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(verbs)}.")
    (verb,) = chosen
    arguments = [*defaults.get(verb, []), *(argument for argument in ctx.args if argument != verb)]
    _run(ctx, verbs[verb], f"{ctx.info_name} {verb}", arguments)


def _run(ctx: click.Context, command: click.Command, name: str, arguments: list[str]) -> None:
    settings = ctx.find_object(Settings)
    with command.make_context(name, arguments, parent=ctx.parent, obj=settings) as inner:
        command.invoke(inner)
