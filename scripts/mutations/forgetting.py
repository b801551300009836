"""Silent producers: who is forgotten, and that nothing they repeat is taken for new."""

from scripts.mutations.mutant import Mutant

_EXPIRING = "sparklog/metadata/model/sequences.py"
_SEQUENCES = "sparklog/metadata/model/sequences.py"
_MODEL = "tests/metadata/test_expiring.py"
_SERVER = "tests/server/publish/test_forgotten_producers.py"

MUTANTS = (
    Mutant(
        "producers: who has written since the mark is not forgotten",
        _EXPIRING,
        "if one.last_offset >= end or number in staging",
        "if one.last_offset > end or number in staging",
        _MODEL,
    ),
    Mutant(
        "producers: nobody is forgotten before an expiration is over",
        _EXPIRING,
        "now_ms - marked_ms < expiration_ms:",
        "now_ms - marked_ms < expiration_ms // 2:",
        _MODEL,
    ),
    Mutant(
        "producers: what may be a repetition of a forgotten one is not new",
        _SEQUENCES,
        "return SequenceCheck.UNKNOWN if offset is None else",
        "return SequenceCheck.NEXT if offset is None else",
        _SERVER,
    ),
    Mutant(
        "producers: an extent of before the forgotten end is not taken for the last one",
        _SEQUENCES,
        "if extent is None or extent.end_offset <= end_offset:",
        "if extent is None:",
        _MODEL,
    ),
    Mutant(
        "producers: who was forgotten is looked up in the extents",
        _SEQUENCES,
        "(len(state.producers) < MAX_PRODUCERS and not end_offset)",
        "len(state.producers) < MAX_PRODUCERS",
        _MODEL,
    ),
    Mutant(
        "producers: the times of those that are kept count for later",
        _EXPIRING,
        "        return _Largest(max_timestamp_ms=newest)\n",
        "        return _Largest()\n",
        _MODEL,
    ),
    Mutant(
        "producers: the times of before count",
        _EXPIRING,
        "max(before.max_timestamp_ms, largest.max_timestamp_ms, action.max_timestamp_ms)",
        "max(largest.max_timestamp_ms, action.max_timestamp_ms)",
        _MODEL,
    ),
    Mutant(
        "producers: times count that no extent shows any more",
        _EXPIRING,
        "max(before.max_timestamp_ms, largest.max_timestamp_ms, action.max_timestamp_ms)",
        "max(before.max_timestamp_ms, largest.max_timestamp_ms)",
        _MODEL,
    ),
    Mutant(
        "producers: who was forgotten by number is covered by what is kept of the silent ones",
        _EXPIRING,
        "max(before.producer_id, largest.producer_id, *(number for number, _ in gone), -1)",
        "max(before.producer_id, *(number for number, _ in gone), -1)",
        _MODEL,
    ),
    Mutant(
        "producers: what is forgotten survives appends",
        "sparklog/metadata/model/draft.py",
        "                producers=before.producers if self.own_producers is None else self.own_producers,\n",
        "                producers=before.producers if self.own_producers is None else self.own_producers,\n"
        "                forgotten=type(before.forgotten)(0, 0, -1, -1, -1),\n",
        _MODEL,
    ),
    Mutant(
        "producers: merged batches of before the forgotten end are forgotten",
        _EXPIRING,
        "merged_batches=merged_above(state.merged_batches, end) if state.merged_batches else {},",
        "merged_batches=state.merged_batches,",
        _MODEL,
    ),
    Mutant(
        "producers: extents of before the forgotten end may be merged",
        _SEQUENCES,
        "    producer_ids = _remembered(state, extents)\n",
        '    producer_ids = extents.column("producer_id")\n',
        "tests/maintenance/test_producer_expiry.py",
    ),
    Mutant(
        "broker: the time of the append does not make a repetition new",
        "sparklog_server/publish/bundle_plan.py",
        "        sent_ms = None if is_stamped else encoded.max_timestamp_ms\n",
        "        sent_ms = encoded.max_timestamp_ms\n",
        _SERVER,
    ),
    Mutant(
        "broker: nothing takes the place of what may be a repetition, in its bundle",
        "sparklog_server/publish/bundle_plan.py",
        "            producer.is_doubted = True\n",
        "",
        _SERVER,
    ),
    Mutant(
        "broker: nothing takes the place of what may be a repetition, in the next bundle",
        "sparklog_server/publish/bundle_writer.py",
        "{**_doubted(verdicts), **outcomes}",
        "outcomes",
        _SERVER,
    ),
)
