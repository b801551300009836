"""`sparklog partitions elect`: another leader for partitions, by Kafka's two rules.

Preferred: the first of the replicas leads, if it is there. Offline: any replica that is there leads where
nobody does; Kafka calls that unclean, but here every replica has all records, and none can be lost by it.
Not here: the request (sparklog/client/controller.py).
Sources: Kafka's LeaderElectionCommand, and its sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import click

from sparklog.cli.controller_answers import answer_rows, raise_failures
from sparklog.cli.group import OnceCommand
from sparklog.cli.near_names import require_topics
from sparklog.cli.output import show_json, tell
from sparklog.cli.reassignment_files import TopicPartition, read_partitions
from sparklog.cli.settings import common_options, current


@click.command("elect", cls=OnceCommand)
@click.option("--preferred", "election", flag_value="preferred", help="The first replica, where it is there.")
@click.option("--offline", "election", flag_value="offline", help="Any replica, where nobody leads.")
@click.option("--topic", "-t", metavar="NAME", help="The topic.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--all", "all_partitions", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--file",
    "file",
    type=click.File(),
    metavar="FILE",
    help="Partitions by Kafka's JSON; replicas do not matter.",
)
@common_options
def elect(
    election: str | None,
    topic: str | None,
    numbers: tuple[int, ...],
    all_partitions: bool,
    file: IO[str] | None,
) -> None:
    """Have leaders elected."""
    from sparklog.client.controller_requests import ELECTION_NOT_NEEDED, NO_ERROR, Election

    if election is None:
        raise click.UsageError("give --preferred or --offline.")
    if sum((topic is not None, all_partitions, file is not None)) != 1 or (numbers and topic is None):
        raise click.UsageError("give --topic NAME, perhaps with --partition N, or --all, or --file FILE.")
    log = current().open_log()
    wanted: Sequence[TopicPartition] | None = None
    if topic is not None:
        require_topics(log, [topic])
        chosen = numbers or range(len(log.image.topic(topic).partitions))
        wanted = [(topic, number) for number in sorted(set(chosen))]
    elif file is not None:
        wanted = read_partitions(file)
    answers = current().controller(log).elect(Election[election.upper()], wanted)
    if current().json:
        show_json(answer_rows(answers))
    elif not answers.partitions and not answers.whole.error_code:
        tell("No election was needed.")
    else:
        for code, sentence in (
            (NO_ERROR, f"Successfully completed leader election ({election.upper()}) for partitions"),
            (ELECTION_NOT_NEEDED, "Valid replica already elected for partitions"),
        ):
            keys = [key for key, one in sorted(answers.partitions.items()) if one.error_code == code]
            if keys:
                tell(f"{sentence} {', '.join(f'{name}-{number}' for name, number in keys)}")
    raise_failures(answers, fine=(NO_ERROR, ELECTION_NOT_NEEDED))
