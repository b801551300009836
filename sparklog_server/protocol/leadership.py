"""Leader epochs: this broker leads everything, and its epoch is 0.

Sources: KIP-320; Kafka Partition.checkCurrentLeaderEpoch.
"""

from kio.schema.errors import ErrorCode

LEADER_EPOCH = 0
NO_EPOCH = -1


def leader_epoch_error(current_leader_epoch: int) -> ErrorCode:
    """What to answer a client that takes `current_leader_epoch` for the leader's; -1: it does not say."""
    if current_leader_epoch in {NO_EPOCH, LEADER_EPOCH}:
        return ErrorCode.none
    if current_leader_epoch < LEADER_EPOCH:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch
