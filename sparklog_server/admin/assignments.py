"""What clients may say of replicas: there is one of each partition, at this broker.

Sources: Kafka ReplicationControlManager.validateManualPartitionAssignment, StripedReplicaPlacer.
"""

from collections.abc import Sequence

from sparklog_server.admin.changes import RefusedError
from sparklog_server.protocol.errors import ErrorCode


def validate_replication_factor(brokers: Sequence[int], factor: int) -> None:
    """-1 (the default) or at most the number of brokers."""
    if factor == 0 or factor < -1:
        raise RefusedError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > len(brokers):
        raise RefusedError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered. Records are on shared "
            "storage, whose own copies protect them: use 1, or -1.",
        )


def validate_assignment(brokers: Sequence[int], replicas: Sequence[int]) -> None:
    """A list that names a broker, once."""
    if not replicas:
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        )
    strangers = [one for one in replicas if one not in brokers]
    if strangers:
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes broker {strangers[0]}, but no such broker is "
            "registered.",
        )
    if len(replicas) > 1:
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes the broker {replicas[0]} more than once.",
        )
