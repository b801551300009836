"""Kafka's own grammar for fingers that know it: `sparklog kafka-topics --list`, `--describe`, ...

Each alias picks the command of the same meaning and hands it the remaining arguments; the other
kafka-* names in main.py are the very commands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

from sparklog.cli import groups, topics, transactions
from sparklog.cli import groups as offsets
from sparklog.cli.framework import (
    OnceCommand,
    Settings,
    common_options,
    common_options_without_broker_list,
    current,
    require_topics,
)
from sparklog.cli.partitions import elect, reassign
from sparklog.cli.root import show_root
from sparklog.cli.topics import is_pattern, parse_configs, show_descriptions, topic_document

# --- kafka cluster aliases ---------------------------------------------------------------------------
#
# `sparklog kafka-reassign-partitions` and `kafka-leader-election`: Kafka's grammar of `sparklog partitions`.
#
# Not here: what they do (partitions.py). They know no throttles and no log directories: nothing is
#     copied here, and brokers share one root.
# Sources: Kafka's ReassignPartitionsCommandOptions, LeaderElectionCommand.


ELECTIONS = {"PREFERRED": "--preferred", "UNCLEAN": "--offline"}
VERBS_WITH_FILE = ("execute", "verify", "cancel")


@click.command("kafka-reassign-partitions", cls=OnceCommand)
@click.option("--generate", "verb", flag_value="generate", help="Propose replicas.")
@click.option("--execute", "verb", flag_value="execute", help="Begin what the file says.")
@click.option("--verify", "verb", flag_value="verify", help="How far it is.")
@click.option("--cancel", "verb", flag_value="cancel", help="Call off what is not over.")
@click.option("--list", "verb", flag_value="list", help="What is not over.")
@click.option("--reassignment-json-file", "file", metavar="FILE", help="With --execute, --verify, --cancel.")
@click.option("--topics-to-move-json-file", "topics_file", metavar="FILE", help="With --generate.")
@click.option("--broker-list", "brokers", metavar="ID,...", help="With --generate.")
@click.option("--disable-rack-aware", is_flag=True, help="With --generate: racks do not matter.")
@common_options_without_broker_list
@click.pass_context
def kafka_reassign_partitions(
    ctx: click.Context,
    verb: str | None,
    file: str | None,
    topics_file: str | None,
    brokers: str | None,
    disable_rack_aware: bool,
) -> None:
    """kafka-reassign-partitions: other replicas for partitions."""
    if verb is None:
        raise click.UsageError("give one of --generate, --execute, --verify, --cancel and --list.")
    if (verb in VERBS_WITH_FILE) != (file is not None):
        raise click.UsageError(
            "--execute, --verify and --cancel want --reassignment-json-file; no other does."
        )
    words = [f"--{verb}", *([file] if file else [])]
    words += ["--topics-to-move-json-file", topics_file] if topics_file else []
    words += ["--broker-list", brokers] if brokers else []
    words += ["--disable-rack-aware"] * disable_rack_aware
    _kafka_cluster_aliases_run(ctx, reassign, words)


@click.command("kafka-leader-election", cls=OnceCommand)
@click.option(
    "--election-type",
    type=click.Choice(list(ELECTIONS), case_sensitive=False),
    required=True,
    help="PREFERRED: the first replica; UNCLEAN: any, where nobody leads. No record is lost by it here.",
)
@click.option("--topic", metavar="NAME", help="The topic.")
@click.option("--partition", metavar="N", help="The partition of --topic.")
@click.option("--all-topic-partitions", is_flag=True, help="All partitions of all topics.")
@click.option("--path-to-json-file", "file", metavar="FILE", help="Partitions, by Kafka's JSON.")
@common_options
@click.pass_context
def kafka_leader_election(
    ctx: click.Context,
    election_type: str,
    topic: str | None,
    partition: str | None,
    all_topic_partitions: bool,
    file: str | None,
) -> None:
    """kafka-leader-election: have leaders elected."""
    words = [ELECTIONS[election_type.upper()]]
    words += ["--topic", topic] if topic is not None else []
    words += ["--partition", partition] if partition is not None else []
    words += ["--all"] * all_topic_partitions
    words += ["--file", file] if file is not None else []
    _kafka_cluster_aliases_run(ctx, elect, words)


def _kafka_cluster_aliases_run(ctx: click.Context, command: click.Command, words: Sequence[str]) -> None:
    settings = ctx.find_object(Settings)
    with command.make_context(ctx.info_name, list(words), parent=ctx.parent, obj=settings) as inner:
        command.invoke(inner)


# --- kafka configs -----------------------------------------------------------------------------------
#
# `sparklog kafka-configs`: Kafka's grammar for settings, of topics and of the cluster-wide broker, our root.
#
# Not here: the commands whose meaning it has (topics.py, root.py); settings of single brokers, which only a
# broker can check (Kafka's own tool asks it), and of users, clients and addresses, which there are none of.


_COMMA = re.compile(r",(?![^\[]*\])")  # not within [a,b]


def parse_added(ctx: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, str]:
    """`a=1,b=[x,y]`: Kafka's brackets hold a list."""
    words = tuple(_COMMA.split(value)) if value else ()
    configs = parse_configs(ctx, parameter, words)
    return {key: re.sub(r"^\[(.*)\]$", r"\1", text) for key, text in configs.items()}


@click.command("kafka-configs", cls=OnceCommand)
@click.option("--describe", "verb", flag_value="describe", help="Show settings.")
@click.option("--alter", "verb", flag_value="alter", help="Change settings.")
@click.option(
    "--entity-type", "types", multiple=True, type=click.Choice(["topics", "brokers"]), help="Whose settings."
)
@click.option("--entity-name", "names", multiple=True, metavar="NAME", help="The topic.")
@click.option("--entity-default", is_flag=True, help="All brokers: the root.")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="As --entity-type topics --entity-name NAME."
)
@click.option("--broker-defaults", is_flag=True, help="As --entity-type brokers --entity-default.")
@click.option("--all", "all_settings", is_flag=True, help="With --describe, of the root: defaults, too.")
@click.option(
    "--add-config", "added", callback=parse_added, metavar="K=V,...", help="Settings; lists as [a,b]."
)
@click.option("--delete-config", "deleted", multiple=True, metavar="K,...", help="Back to the default.")
@common_options
def kafka_configs(
    verb: str | None,
    types: tuple[str, ...],
    names: tuple[str, ...],
    entity_default: bool,
    topics: tuple[str, ...],
    broker_defaults: bool,
    all_settings: bool,
    added: dict[str, str],
    deleted: tuple[str, ...],
) -> None:
    """kafka-configs: --describe or --alter settings of a topic, or of the root as all brokers'."""
    keys = [key.strip() for words in deleted for key in words.split(",") if key.strip()]
    if verb is None:
        raise click.UsageError("give --describe or --alter.")
    if (verb == "alter") != bool(added or keys):
        raise click.UsageError("--alter wants --add-config or --delete-config, and --describe none of them.")
    is_of_all = verb == "describe" and types == ("topics",) and not (names or topics or entity_default)
    if is_of_all and not broker_defaults:
        from sparklog.client.admin import describe_topic

        log = current().open_log()
        every = log.topics(include_internal=True)
        show_descriptions([topic_document(describe_topic(log.image, one)) for one in every])
        return
    name = _entity(types, names, topics, of_root=(entity_default, broker_defaults))
    log = current().open_log()
    if name is None:
        if verb == "alter":
            log.alter_root(set=added, delete=keys)
        show_root(log, all_settings=all_settings)
        return
    require_topics(log, [name])
    if verb == "alter":
        log.alter_topic(name, set=added, delete=keys)
    show_descriptions([topic_document(log.describe_topic(name))])


def _entity(
    types: tuple[str, ...], names: tuple[str, ...], topics: tuple[str, ...], *, of_root: tuple[bool, bool]
) -> str | None:
    """The topic that is meant, None for the root. Nothing that is named beside it is passed over.

    Args:
        of_root: --entity-default and --broker-defaults.
    """
    match types, names, topics, of_root:
        case (), (), (name,), (False, False):
            return name
        case ("topics",), (name,), (), (False, False):
            return name
        case ((), (), (), (False, True)) | (("brokers",), (), (), (True, False)):
            return None
        case _:
            raise click.UsageError("give one entity: --topic NAME, or --broker-defaults for the root.")


# --- kafka aliases -----------------------------------------------------------------------------------


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
