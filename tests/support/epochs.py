"""Epochs of a transactional producer, used up as that many initialisations would."""

from sparklog.client import SparkLog
from sparklog.metadata.model.transactions import BeginProducer

_AT_ONCE = 5_000


def use_up_epochs(log: SparkLog, name: str, last: int) -> None:
    """The id's epoch is `last` now; whoever had it is fenced."""
    known = log.refresh(force=True).transactions[name]
    now_ms = log.clock.now_ms()
    for first in range(known.producer_epoch + 1, last + 1, _AT_ONCE):
        actions = [
            BeginProducer(
                transactional_id=name,
                producer_id=known.producer_id,
                producer_epoch=epoch,
                timeout_ms=known.timeout_ms,
                time_ms=now_ms,
            )
            for epoch in range(first, min(first + _AT_ONCE, last + 1))
        ]
        log.metadata.publish(lambda _, actions=tuple(actions): actions)  # type: ignore[misc]
