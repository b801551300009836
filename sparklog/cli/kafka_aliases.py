"""Kafka's own grammar for fingers that know it: `sparklog kafka-topics --list`, `--describe`, ...

Each alias picks the command of the same meaning and hands it the remaining arguments; the other
kafka-* names in main.py are the very commands.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from sparklog.cli import groups, topics
from sparklog.cli.settings import Settings

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
HELP = {"-h", "--help"}
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command("kafka-topics", context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def kafka_topics(ctx: click.Context) -> None:
    """kafka-topics: --create, --list, --describe, --alter or --delete, and their flags."""
    _dispatch(ctx, TOPIC_VERBS, defaults={"--list": ["--names"]})


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


def _dispatch(
    ctx: click.Context, verbs: Mapping[str, click.Command], defaults: Mapping[str, list[str]]
) -> None:
    chosen = [argument for argument in ctx.args if argument in verbs]
    if not chosen and not HELP.isdisjoint(ctx.args):
        click.echo(f"Usage: {ctx.command_path} VERB [OPTIONS]\n\nVerbs; each has its own --help:")
        for verb, command in verbs.items():
            click.echo(f"  {verb:<10}  {command.get_short_help_str(limit=60)}")
        return
    if len(chosen) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(verbs)}.")
    (verb,) = chosen
    arguments = [*defaults.get(verb, []), *(argument for argument in ctx.args if argument != verb)]
    settings = ctx.find_object(Settings)
    name = f"{ctx.info_name} {verb}"
    with verbs[verb].make_context(name, arguments, parent=ctx.parent, obj=settings) as inner:
        verbs[verb].invoke(inner)
