"""What producers send."""

from tests.server.publish.batches import batch


def now_batch(values: list[bytes | None], **fields: int) -> bytes:
    """A batch with today's timestamps: the broker has the machine's clock."""
    return batch(values, timestamps=[-1] * len(values), **fields)  # type: ignore[arg-type]


ONE = now_batch([b"one", b"two"])


def sequenced(producer_id: int, sequence: int, epoch: int = 0, count: int = 2) -> bytes:
    return now_batch(
        [b"%d" % (sequence + n) for n in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
