"""What is asked of topics."""

from typing import Any


def topic(name: str, partitions: int = -1, factor: int = -1, **fields: Any) -> dict[str, Any]:
    configs = [{"_": "CreatableTopicConfig", "name": key, "value": value}
               for key, value in fields.pop("configs", {}).items()]  # fmt: skip
    assignments = [
        {"_": "CreatableReplicaAssignment", "partition_index": index, "broker_ids": brokers}
        for index, brokers in fields.pop("assignments", ())
    ]
    return {
        "_": "CreatableTopic", "name": name, "num_partitions": partitions, "replication_factor": factor,
        "configs": configs, "assignments": assignments, **fields,
    }  # fmt: skip


def more_partitions(name: str, count: int, assignments: list[list[int]] | None = None) -> dict[str, Any]:
    given = (
        None
        if assignments is None
        else [{"_": "CreatePartitionsAssignment", "broker_ids": one} for one in assignments]
    )
    return {"_": "CreatePartitionsTopic", "name": name, "count": count, "assignments": given}
