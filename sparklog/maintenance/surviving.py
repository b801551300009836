"""Which records survive a round of compaction: Kafka's promises, for many records at once.

A record below the end of what is mapped stays if no later one has its key, and

    - it has a value; or
    - it is a tombstone whose delete horizon has not come. The horizon is set, once, by the first round that
      could have removed the tombstone: delete.retention.ms from then on. It stands in the batch's header.

Records without a key go: nothing says which of them is the latest. Beyond the end everything stays.
Invariants: pure. A tombstone goes only in a round after the one that has seen all records before it, so that
    nothing it has hidden comes back.
Not here: the batches that come of it (compacted_batches.py).
Sources: Kafka Cleaner.shouldRetainRecord, KIP-534.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.format.batch_table import BatchTable
from sparklog.format.byte_views import Int64Array
from sparklog.format.decode import ParsedBodies
from sparklog.format.key_hashes import KeyHasher
from sparklog.format.record_batch import CONTROL_MASK, DELETE_HORIZON_MASK
from sparklog.log.setting import LONG_MAX
from sparklog.maintenance.offset_map import OffsetMap
from sparklog.metadata import NO_DELETE_HORIZON_MS

BoolArray = npt.NDArray[np.bool_]
# Nobody here interprets markers. Of transactions only committed records are in the log: they are as others.
OPAQUE_MASK = CONTROL_MASK


@dataclass(slots=True)
class Counts:
    """Records of a round.

    Fields:
        read, kept: of those that may go, in all batches that were looked at.
        superseded: a later record has their key.
        keyless: had no key, and went.
        tombstones_removed: their horizon had come; tombstones_kept: it has not.
    """

    read: int = 0
    kept: int = 0
    superseded: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    tombstones_kept: int = 0

    def add(self, other: "Counts") -> None:
        """Count these as well."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Round:
    """What a round of compaction over one partition goes by, and what it has found so far.

    Fields:
        keys: the last offset of each key of the dirty part.
        end_offset: of what is mapped; nothing beyond it is changed.
        now_ms: which tombstones may go.
        marked_ms: when those that are found now were, no earlier than any clock says.
        horizon_ms: until when those are kept that could have gone for the first time.
        latest_horizon_ms: of all tombstones that are kept.
    """

    hasher: KeyHasher
    keys: OffsetMap
    end_offset: int
    now_ms: int
    marked_ms: int
    delete_retention_ms: int
    counts: Counts = field(default_factory=Counts)
    latest_horizon_ms: int = NO_DELETE_HORIZON_MS

    @property
    def horizon_ms(self) -> int:
        """Of tombstones that this round keeps, and could have removed."""
        return min(LONG_MAX, self.marked_ms + self.delete_retention_ms)


@dataclass(frozen=True, slots=True)
class Survivors:
    """Of the records and batches that were parsed together.

    Fields:
        records: which of them stay.
        counts: how many stay of each batch.
        horizon_ms: of each batch, the delete horizon that it has from now on; NO_DELETE_HORIZON_MS: none.
        is_new_horizon: of which batches it is set by this round.
    """

    records: BoolArray
    counts: Int64Array
    horizon_ms: Int64Array
    is_new_horizon: BoolArray


def surviving(round_: Round, parsed: ParsedBodies, table: BatchTable) -> Survivors:
    """Decide on all records of these batches, whose offsets are absolute, and count them."""
    fields, batch_of = parsed.fields, parsed.batch_of
    offset = table.base_offset[batch_of] + fields.offset_delta
    within = offset < round_.end_offset
    has_key, is_tombstone = fields.key_length >= 0, fields.value_length < 0
    superseded = np.zeros(len(offset), np.bool_)
    asked = np.flatnonzero(within & has_key)
    if len(round_.keys) and len(asked):
        hashes = round_.hasher.hash(parsed.bodies.data, fields.key_position[asked], fields.key_length[asked])
        superseded[asked] = round_.keys.latest(hashes) > offset[asked]
    has_horizon = (table.attributes & DELETE_HORIZON_MASK) != 0
    has_come = has_horizon & (table.first_timestamp_ms <= round_.now_ms)
    keyless = within & ~has_key
    expired = within & is_tombstone & has_key & ~superseded & has_come[batch_of]
    stays = ~(superseded | keyless | expired)
    tombstone = stays & within & is_tombstone
    count = len(table)
    has_tombstone = np.bincount(batch_of[tombstone], minlength=count) > 0
    # A batch that reaches beyond the end is looked at again by the next round.
    is_new = has_tombstone & ~has_horizon & (table.last_offset < round_.end_offset)
    keeps_tombstone = np.bincount(batch_of[stays & is_tombstone], minlength=count) > 0
    horizon = np.where(has_horizon & keeps_tombstone, table.first_timestamp_ms, NO_DELETE_HORIZON_MS)
    horizon[is_new] = round_.horizon_ms
    round_.latest_horizon_ms = max(
        round_.latest_horizon_ms, int(horizon[has_tombstone].max(initial=NO_DELETE_HORIZON_MS))
    )
    round_.counts.add(
        Counts(
            read=int(within.sum()),
            kept=int((stays & within).sum()),
            superseded=int(superseded.sum()),
            keyless=int(keyless.sum()),
            tombstones_removed=int(expired.sum()),
            tombstones_kept=int(tombstone.sum()),
        )
    )
    return Survivors(stays, np.bincount(batch_of[stays], minlength=count), horizon, is_new)
