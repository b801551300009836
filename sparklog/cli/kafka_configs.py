"""`sparklog kafka-configs`: Kafka's grammar for settings, of topics and of the cluster-wide broker, our root.

Not here: the commands whose meaning it has (topics.py, root.py); settings of single brokers, which only a
broker can check (Kafka's own tool asks it), and of users, clients and addresses, which there are none of.
"""

from __future__ import annotations

import re

import click

from sparklog.cli.group import OnceCommand
from sparklog.cli.near_names import require_topics
from sparklog.cli.root import show_root
from sparklog.cli.settings import common_options, current
from sparklog.cli.topics import parse_configs, show_descriptions, topic_document

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
