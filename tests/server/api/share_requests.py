"""A worker of a share group, at the level of requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog_server.protocol.responses import topic_uuid
from tests.support.wire_client import WireClient

SHARE_HEARTBEAT, SHARE_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 77, 78, 79
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
SHARE_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "sparklog.shutdown.timeout.ms": "600000",
    "group.share.record.lock.duration.ms": "30000",
    "group.share.assignment.interval.ms": "0",
}
Ranges = Sequence[tuple[int, int, int | tuple[int, ...]]]  # first, last, type or types


class Got(NamedTuple):
    """Acquired records: first and last offset, deliveries."""

    first: int
    last: int
    deliveries: int


class Worker:
    """A member with its session; all requests are of one version."""

    def __init__(
        self,
        asker: WireClient,
        topic_id: str,
        *,
        group: str = "workers",
        member: str = "m-1",
        partitions: Iterable[int] = (0,),
        version: int = 2,
    ) -> None:
        self.asker, self.topic_id, self.group, self.member = asker, topic_id, group, member
        self.partitions, self.version = list(partitions), version
        self.epoch = 0

    def request(self, said: Mapping[int, Ranges], partitions: Iterable[int] = (), *, kind: str) -> Any:
        """The topics of a request."""
        places = dict.fromkeys([*partitions, *said])
        entries = [
            {
                "_": f"{kind}Partition",
                "partition_index": number,
                "acknowledgement_batches": [
                    {
                        "_": "AcknowledgementBatch",
                        "first_offset": first,
                        "last_offset": last,
                        "acknowledge_types": one if isinstance(one, tuple) else (one,),
                    }
                    for first, last, one in said.get(number, ())
                ],
            }
            for number in places
        ]
        topic = {"_": f"{kind}Topic", "topic_id": topic_uuid(self.topic_id), "partitions": entries}
        return [topic] if entries else []

    def fetch_all(self, said: Mapping[int, Ranges] | None = None, **more: Any) -> Any:
        """The whole answer; the session goes on."""
        epoch = more.get("epoch", self.epoch)
        answer = self.sent(said, **more)()
        if answer.error_code.name == "none" and epoch == self.epoch:
            self.epoch += 1
        return answer

    def sent(self, said: Mapping[int, Ranges] | None = None, **more: Any) -> Callable[[], Any]:
        """Send a fetch; return what waits for the answer."""
        epoch = more.pop("epoch", self.epoch)
        is_first = self.epoch == 0
        fields = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            **more,
        }
        self.asker.send(
            SHARE_FETCH,
            self.version,
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=epoch,
            topics=self.request(said or {}, self.partitions if is_first else (), kind="Fetch"),
            **fields,
        )
        return lambda: self.asker.receive(SHARE_FETCH, self.version)[1]

    def fetch(self, said: Mapping[int, Ranges] | None = None, **more: Any) -> list[Got]:
        """What was acquired, in all partitions."""
        answer = self.fetch_all(said, **more)
        assert answer.error_code.name == "none", answer
        return acquired_of(answer)

    def acknowledge(self, said: Mapping[int, Ranges], **more: Any) -> str:
        """The error, of the answer or of its first partition."""
        epoch = more.pop("epoch", self.epoch)
        answer = self.asker.ask(
            SHARE_ACKNOWLEDGE,
            self.version,
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=epoch,
            topics=self.request(said, kind="Acknowledge"),
            **more,
        )
        if answer.error_code.name == "none" and epoch == self.epoch:
            self.epoch += 1
        found = [answer.error_code, *(p.error_code for topic in answer.responses for p in topic.partitions)]
        return next((one.name for one in found if one.value), "none")

    def close(self) -> None:
        """End the session."""
        self.fetch_all(epoch=-1)
        self.epoch = 0


def acquired_of(answer: Any) -> list[Got]:
    """What an answer says was acquired."""
    return [
        Got(one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def beat(
    asker: WireClient,
    epoch: int = 0,
    *,
    group: str = "workers",
    member: str = "m-1",
    topics: Sequence[str] | None = ("orders",),
) -> Any:
    """A heartbeat."""
    return asker.ask(
        SHARE_HEARTBEAT,
        1,
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=topics,
    )


def describe(asker: WireClient, group: str = "workers") -> Any:
    answer = asker.ask(SHARE_DESCRIBE, 1, group_ids=[group], include_authorized_operations=True)
    (found,) = answer.groups
    return found


def set_group(asker: WireClient, **configs: str) -> None:
    """Set a group's settings; names with underscores for dots."""
    answer = asker.ask(
        44,
        1,
        resources=[
            {
                "_": "AlterConfigsResource",
                "resource_type": 32,
                "resource_name": "workers",
                "configs": [
                    {
                        "_": "AlterableConfig",
                        "name": name.replace("_", "."),
                        "config_operation": 0,
                        "value": value,
                    }
                    for name, value in configs.items()
                ],
            }
        ],
        validate_only=False,
    )
    assert [one.error_code.name for one in answer.responses] == ["none"], answer
