"""The operations that a client may do, as bits of Kafka's AclOperation numbers: all, without authorization.

Kafka without an authorizer returns the same; only requests that ask for these fields get them.
Sources: Kafka AclOperation, AclEntry.supportedOperations, Utils.to32BitField; KIP-430.
"""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)
NOT_ASKED_FOR = -(1 << 31)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


class Access:
    """The permitted operations by kind of resource."""

    def __init__(self) -> None:
        self.topic_operations = _bits(
            _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
        )
        self.cluster_operations = _bits(
            _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
        )
        self.group_operations = _bits(_READ, _DELETE, _DESCRIBE)
