"""Makes a root, and says what it held: to be run by the code of a commit, for all later ones.

    python tests/golden/make_roots.py OUT

It never replaces a root. README.md has the list.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import sparklog
from sparklog import metadata
from sparklog.metadata.model import settings

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
PUBLISHER = "P" * 22
# Of no meaning, and known to the tests alone: that they are needed is in the root.
READERS, WRITERS = ("golden.read",), ("golden.write",)


def rows(first: int, count: int) -> pa.Table:
    """Keys, values and headers, some of them null."""
    return pa.Table.from_pylist(
        [
            {
                "key": None if number % 3 == 0 else f"k{number % 5}".encode(),
                "value": None if number % 7 == 6 else f"value {number}".encode(),
                "timestamp": 1_700_000_000_000 + number,
                "headers": [{"key": "n", "value": str(number).encode()}] if number % 2 else None,
            }
            for number in range(first, first + count)
        ],
        SCHEMA,
    )


def fill(log: Any) -> None:
    """Every kind of action."""
    log.metadata.publish(lambda _: [metadata.RequireFeatures(readers=READERS, writers=WRITERS)])
    log.create_topic("orders", 2, {"retention.ms": "-1", "max.message.bytes": "100000"})
    log.create_topic("gone", 1)
    log.create_topic("events", 1, {"cleanup.policy": "delete"})
    log.append("orders", rows(0, 10), partition=0, compression_type="none")
    log.append("orders", rows(10, 5), partition=1, txn=("query-1", 3), compression_type="none")
    log.append("gone", rows(0, 3))
    log.metadata.publish(
        lambda image: [metadata.plan_restore_root(image, incarnation_id="R" * 22, now_ms=1_700_000_000_000)]
    )
    log.delete_topic("gone")
    log.create_topic("gone", 1)  # another one of that name
    log.create_topic("kept", 1)
    log.add_partitions("orders", 3)
    log.metadata.publish(
        lambda image: [metadata.plan_set_configs(image, "orders", {"max.message.bytes": None})]
    )
    log.metadata.publish(lambda image: [metadata.plan_set_configs(image, None, {"compression.type": "lz4"})])
    log.commit_offsets("group-1", {("orders", 0): 4, ("orders", 1): 2}, metadata="m")
    log.metadata.publish(lambda image: [metadata.plan_allocate_producer_ids(image, 1000)])
    produce(log, 41, 0, rows(20, 4))
    log.metadata.publish(lambda image: [settled(image, 5)])
    topic_id = log.image.topic("orders").topic_id
    log.metadata.publish(lambda image: [metadata.plan_advance_log_start(image, topic_id, 0, 3)])
    replace_last(log, "kept")
    log.metadata.publish(lambda image: [metadata.plan_move_sweep_horizon(image, image.birth)])
    log.metadata.publish(lambda image: [retiring(image)])
    done = metadata.Cleaned(8, 1_800_000_000_000)
    log.metadata.publish(lambda image: [metadata.plan_note_cleaned(image, topic_id, 0, done)])
    produce(log, 40, 0, rows(25, 1))
    log.metadata.publish(lambda _: [metadata.ExpireProducers(time_ms=1_700_000_000_000, marks_only=True)])
    transact(log)
    serve(log)
    log.metadata.write_snapshot()
    log.append("orders", rows(30, 6), partition=0, txn=("query-1", 4), compression_type="gzip")
    produce(log, 41, 4, rows(40, 2))
    log.metadata.publish(lambda _: [metadata.ExpireProducers(time_ms=1_700_086_400_000)])
    log.metadata.publish(lambda image: [settled(image, 6)])
    transact_again(log)
    serve_again(log)
    log.append("events", rows(50, 3), txn=("query-2", 0), compression_type="zstd")
    log.create_topic("wide", 12)
    log.append("wide", in_partitions(12), compression_type="none")
    log.append("wide", in_partitions(9), txn=("query-2", 1), compression_type="lz4")


def retiring(image: Any) -> Any:
    """A segment that nothing refers to stays dead."""
    segment = f"segments/{'a' * 32}/00000003.{image.birth}.log"
    return metadata.RetireSegments(time_ms=1_700_000_000_000, segments=(segment,))


def transact(log: Any) -> None:
    """One transaction is committed, one aborted, one open, one unused."""
    for name in ("over", "dropped", "open", "unused"):
        log.metadata.publish(lambda image, name=name: beginning(image, name))
    for name, first in (("over", 26), ("dropped", 27), ("open", 28)):
        stage(log, name, rows(first, 1))
    log.metadata.publish(lambda image: ending(image, "over", committed=True))
    log.metadata.publish(lambda image: ending(image, "dropped", committed=False))


def transact_again(log: Any) -> None:
    """Two are open in the end: of the first protocol, and of the second."""
    log.metadata.publish(lambda image: adding(image, "over"))
    stage(log, "over", rows(29, 1))
    log.metadata.publish(lambda _: [metadata.ForgetTransactions(transactional_ids=("unused",))])
    log.metadata.publish(lambda image: ending(image, "open", committed=True))
    stage(log, "open", rows(30, 2))


def beginning(image: Any, name: str) -> Any:
    return metadata.plan_begin_producer(image, name, timeout_ms=60_000, now_ms=1_700_000_000_000).actions


def adding(image: Any, name: str) -> Any:
    one = image.transactions[name]
    return metadata.plan_add_to_transaction(
        image,
        name,
        one.producer_id,
        one.producer_epoch,
        partitions=[(image.topic("events").topic_id, 0)],
        groups=["group-1"],
        now_ms=1_700_000_000_001,
    )


def ending(image: Any, name: str, *, committed: bool) -> Any:
    """In the second protocol."""
    one = image.transactions[name]
    return metadata.plan_end_transaction(
        image,
        name,
        one.producer_id,
        one.producer_epoch,
        committed=committed,
        second=True,
        now_ms=1_700_000_000_002,
    ).actions


def stage(log: Any, name: str, table: pa.Table) -> None:
    """The first batch of a transaction of the second protocol."""
    appender = log.appender()
    appender.add(table, "events")
    one = log.image.transactions[name]
    producer = {"producer_id": one.producer_id, "producer_epoch": one.producer_epoch, "base_sequence": 0}
    parts = [
        metadata.Staging(draft=msgspec.structs.replace(draft, **producer), opens_ms=1_700_000_000_003)
        for draft in appender.finish().drafts
    ]
    log.metadata.publish(lambda image: [metadata.plan_stage(image, parts)])


def serve(log: Any) -> None:
    """Three brokers serve the root: one is fenced, one leads, one is controller; a reassignment goes on."""
    for node in (1, 2, 3):
        log.metadata.publish(lambda image, node=node: [joining(image, node)])
    log.metadata.publish(
        lambda image: [metadata.plan_elect_controller(image, 3, image.brokers[3].broker_epoch)]
    )
    topic_id = log.image.topic("orders").topic_id
    assigned = {
        (topic_id, 0): metadata.PartitionLeadership((1, 2)),
        (topic_id, 1): metadata.PartitionLeadership((2, 1, 3), adding=(3,), removing=(1,)),
    }
    log.metadata.publish(lambda image: [metadata.plan_assign_replicas(image, assigned, controller_epoch=1)])
    leaders = {(topic_id, 0): 1, (topic_id, 1): 2}
    log.metadata.publish(lambda image: [metadata.plan_elect_leaders(image, leaders, controller_epoch=1)])
    as_broker(log, 1, rows(80, 2))
    log.metadata.publish(lambda image: [fencing(image, 1)])


def serve_again(log: Any) -> None:
    """Another broker leads and appends."""
    topic_id = log.image.topic("orders").topic_id
    log.metadata.publish(
        lambda image: [metadata.plan_elect_leaders(image, {(topic_id, 0): 2}, controller_epoch=1)]
    )
    as_broker(log, 2, rows(82, 2))


def joining(image: Any, node: int) -> Any:
    listeners = [metadata.BrokerListener(host=f"broker-{node}", port=9092)]
    return metadata.plan_join_broker(
        image,
        node,
        incarnation_id=f"{node}" * 22,
        listeners=listeners,
        rack=f"rack {node}",
    )


def fencing(image: Any, node: int) -> Any:
    return metadata.plan_fence_broker(image, node, image.brokers[node].broker_epoch, controller_epoch=1)


def as_broker(log: Any, node: int, table: pa.Table) -> None:
    """Appended to partition 0 of orders as a broker does."""
    appender = log.appender()
    appender.add(table.append_column("partition", pa.array([0] * len(table), pa.int32())), "orders")
    drafts = appender.finish().drafts
    epoch = log.image.brokers[node].broker_epoch
    leader_epoch = log.image.partition("orders", 0).leadership.leader_epoch
    log.metadata.publish(
        lambda image: metadata.plan_act_as_broker(
            image,
            [metadata.plan_append(image, drafts)],
            node_id=node,
            broker_epoch=epoch,
            leader_epochs=[leader_epoch] * len(drafts),
        )
    )


def in_partitions(count: int) -> pa.Table:
    """Two rows for each of so many partitions: a commit of many extents."""
    table = rows(100, 2 * count)
    return table.append_column("partition", pa.array([n % count for n in range(2 * count)], pa.int32()))


def produce(log: Any, producer_id: int, base_sequence: int, table: pa.Table) -> None:
    """As an idempotent producer, of which the embedded client has none."""
    appender = log.appender()
    appender.add(table, "events")
    staged = appender.finish()
    drafts = [
        msgspec.structs.replace(draft, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
        for draft in staged.drafts
    ]
    log.metadata.publish(lambda image: [metadata.plan_append(image, drafts)])


def settled(image: Any, sequence: int) -> Any:
    """A request that was taken back, by a publisher that is remembered."""
    return metadata.RequestApplied(publisher=PUBLISHER, sequence=sequence, base=image.commit, nonce="N" * 22)


def replace_last(log: Any, topic: str) -> None:
    """Two extents make way for the first, as compaction leaves them."""
    log.append(topic, rows(60, 2), compression_type="none")
    log.append(topic, rows(62, 2), compression_type="none")
    state = log.image.partition(topic, 0)
    action = metadata.replacement(
        state.extents.columns(),
        list(state.extents)[:1],
        topic_id=state.topic_id,
        partition=state.partition,
    )
    log.metadata.publish(lambda image: [metadata.plan_replace_extents(image, action)])


def contents(log: Any) -> dict[str, Any]:
    """What the root holds, in the words of JSON."""
    image = log.image
    topics = {}
    for name, topic in image.topics.items():
        partitions = []
        for number, state in enumerate(topic.partitions):
            records = []
            if state.log_start_offset < state.log_end_offset:
                found = log.read(name, number, state.log_start_offset, include_headers=True).to_pylist()
                records = [
                    [
                        record["offset"],
                        round(record["timestamp"].timestamp() * 1000),
                        text(record["key"]),
                        text(record["value"]),
                        [[one["key"], text(one["value"])] for one in record["headers"] or ()],
                    ]
                    for record in found
                ]
            producers = {str(key): list(msgspec.to_builtins(one)) for key, one in state.producers.items()}
            partitions.append(
                {
                    "log_start_offset": state.log_start_offset,
                    "log_end_offset": state.log_end_offset,
                    "extents": len(state.extents),
                    "producers": producers,
                    "records": records,
                    "forgotten": list(msgspec.to_builtins(state.forgotten)),
                }
            )
        topics[name] = {
            "topic_id": topic.topic_id,
            "configs": dict(topic.configs),
            "writer_txns": msgspec.to_builtins(dict(topic.writer_txns)),
            "partitions": partitions,
        }
    return {
        "cluster_id": image.cluster_id,
        "commit": image.commit,
        "configs": dict(image.configs),
        "features": [sorted(image.reader_features), sorted(image.writer_features)],
        "next_producer_id": image.next_producer_id,
        "sweep_horizon": image.sweep_horizon,
        "publishers": {key: list(msgspec.to_builtins(one)) for key, one in image.publishers.items()},
        "topics": topics,
        "brokers": msgspec.to_builtins(list(image.brokers.values())),
        "controller": msgspec.to_builtins(image.controller),
        "leaderships": {
            name: [msgspec.to_builtins(state.leadership) for state in topic.partitions]
            for name, topic in image.topics.items()
        },
        "transactions": {name: transaction(one) for name, one in image.transactions.items()},
    }


def transaction(one: Any) -> dict[str, Any]:
    """What is known of a transaction; of each staged extent its segment, offset and number of records."""
    return {
        "producer": [one.producer_id, one.producer_epoch],
        "previous": [one.previous_producer_id, one.previous_producer_epoch],
        "state": [one.phase.value, one.number, one.timeout_ms, one.started_ms, one.changed_ms],
        "groups": list(one.groups),
        "staged": [
            [*place, [[extent.segment, extent.base_offset, extent.record_count] for extent in extents]]
            for place, extents in one.staged.items()
        ],
        "partitions": [list(place) for place in one.partitions],
    }


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def main(out: str) -> None:
    settings.READER_FEATURES, settings.WRITER_FEATURES = frozenset(READERS), frozenset(WRITERS)
    directory = Path(out)
    directory.mkdir()
    log = sparklog.open(str(directory / "root"), create=True)
    fill(log)
    log.close()
    again = sparklog.open(str(directory / "root"), create=False)
    (directory / "expected.json").write_text(json.dumps(contents(again), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
