"""`sparklog kafka-reassign-partitions` and `kafka-leader-election`: Kafka's grammar of `sparklog partitions`.

Not here: what they do (reassign.py, elect.py). They know no throttles and no log directories: nothing is
    copied here, and brokers share one root.
Sources: Kafka's ReassignPartitionsCommandOptions, LeaderElectionCommand.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from sparklog.cli.elect import elect
from sparklog.cli.group import OnceCommand
from sparklog.cli.reassign import reassign
from sparklog.cli.settings import Settings, common_options, common_options_without_broker_list

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
    _run(ctx, reassign, words)


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
    _run(ctx, elect, words)


def _run(ctx: click.Context, command: click.Command, words: Sequence[str]) -> None:
    settings = ctx.find_object(Settings)
    with command.make_context(ctx.info_name, list(words), parent=ctx.parent, obj=settings) as inner:
        command.invoke(inner)
