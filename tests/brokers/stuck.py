"""What can be seen of workers that get on no more, for whoever reads why a run failed.

Threads, what the client said last, and what the coordinator knows of the group. Nothing here fails: what
cannot be asked is told as that.
"""

from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.brokers.working import Worker, group_of

ASK_SECONDS = 10


def explain(stuck: Sequence[Worker], bootstrap: str) -> str:
    """All of it, worker after worker."""
    texts = [f"stuck: {', '.join(one.name for one in stuck)}"]
    for one in stuck:
        texts += [f"--- {one.name} said:", one.errors(), f"--- {one.name} stands:", _where(one)]
    groups = {group_of(one.name) for one in stuck if one.script in ("consuming", "transforming")}
    texts += [f"--- group {group}: {_describe(group, bootstrap)}" for group in sorted(groups)]
    return "\n".join(texts)


def _where(worker: Worker) -> str:
    if worker.process.poll() is not None:
        return f"ended: exit {worker.process.returncode}"
    try:
        return worker.where()
    except AssertionError as error:  # it is so slow, or cannot be interrupted
        return str(error)


def _describe(group: str, bootstrap: str) -> str:
    try:
        asked = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).describe_consumer_groups(
            [group], request_timeout=ASK_SECONDS
        )
        found = asked[group].result(2 * ASK_SECONDS)
    except (KafkaException, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    members = [
        f"{one.member_id} has {[place.partition for place in one.assignment.topic_partitions]}"
        for one in found.members
    ]
    return f"{found.state.name}, coordinator {found.coordinator}; members: {members}"
