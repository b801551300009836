"""First batches of producers that could not be appended, until they come again: `floors` of bundle_plan.py.

Invariants: only of producers that the partition does not know; MAX_FLOORS, shared among clients.
Not here: what such a batch holds back (bundle_plan.py), what was refused before it came here
    (first_batches.py).
Concurrency: the publisher's thread.
"""

from sparklog.metadata import Image
from sparklog_server.publish.bundle_plan import Floor, ProducerKey, floor_of, producer_key
from sparklog_server.publish.parts import AppendPart, UncheckedPart
from sparklog_server.publish.remembered import Remembered

MAX_FLOORS = 10_000


class FailedFirstBatches(Remembered[ProducerKey, Floor]):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__(MAX_FLOORS)

    def note(self, image: Image, part: AppendPart | UncheckedPart, *, failed: bool) -> None:
        """What became of a part."""
        if part.producer_id < 0 or part.base_sequence < 0:  # or it takes whichever sequence is next
            return
        key = producer_key(part)
        if not failed:
            self.forget(key)
        elif not _is_known(image, key):
            new, known = floor_of(image, part), self.get(key)
            if known is None or (known.producer_epoch, known.transaction) != (
                new.producer_epoch,
                new.transaction,
            ):
                self.remember(key, new, part.client)


def _is_known(image: Image, key: ProducerKey) -> bool:
    topic_id, partition, producer_id = key
    topic = image.topic_by_id.get(topic_id)
    return topic is None or producer_id in topic.partitions[partition].producers
