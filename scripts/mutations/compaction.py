"""Compaction: what stays, what goes and when, and that a round is published as a whole."""

from scripts.mutations.mutant import Mutant

_SURVIVING = "sparklog/maintenance/surviving.py"
_BATCHES = "sparklog/maintenance/compacted_batches.py"
_ROUND = "sparklog/maintenance/run_compaction.py"
_CHOICE = "sparklog/maintenance/choose_compactions.py"
_WHOLE = "sparklog/maintenance/compact.py"
_RECORDS = "tests/maintenance/test_compact.py"
_ROUNDS = "tests/maintenance/test_compact_rounds.py"

MUTANTS = (
    Mutant(
        "compaction: the last record of a key stays",
        _SURVIVING,
        "round_.keys.latest(hashes) > offset[asked]",
        "round_.keys.latest(hashes) >= offset[asked]",
        _RECORDS,
    ),
    Mutant(
        "compaction: nothing beyond the end of a round goes",
        _SURVIVING,
        "    within = offset < round_.end_offset\n",
        "    within = offset >= 0\n",
        _ROUNDS,
    ),
    Mutant(
        "compaction: a tombstone stays until its horizon",
        _SURVIVING,
        "has_come = has_horizon & (table.first_timestamp_ms <= round_.now_ms)",
        "has_come = has_horizon",
        _RECORDS,
    ),
    Mutant(
        "compaction: a tombstone does not go before a round has seen all before it",
        _SURVIVING,
        "has_come = has_horizon & (table.first_timestamp_ms <= round_.now_ms)",
        "has_come = ~has_horizon | (table.first_timestamp_ms <= round_.now_ms)",
        _RECORDS,
    ),
    Mutant(
        "compaction: a horizon is set once",
        _SURVIVING,
        "is_new = has_tombstone & ~has_horizon & (",
        "is_new = has_tombstone & (",
        _RECORDS,
    ),
    Mutant(
        "compaction: a horizon is delete.retention.ms away",
        _SURVIVING,
        "return min(LONG_MAX, self.now_ms + self.delete_retention_ms)",
        "return self.now_ms",
        _RECORDS,
    ),
    Mutant(
        "compaction: the image knows until when tombstones are left",
        _SURVIVING,
        "int(horizon[has_tombstone].max(initial=NO_DELETE_HORIZON_MS))",
        "NO_DELETE_HORIZON_MS",
        _RECORDS,
    ),
    Mutant(
        "compaction: the last batch of a round is kept",
        _BATCHES,
        "np.flatnonzero(~self._is_empty | is_last)",
        "np.flatnonzero(~self._is_empty)",
        _RECORDS,
    ),
    Mutant(
        "compaction: timestamps are relative to the horizon",
        _BATCHES,
        "        first[has_horizon] = horizon[has_horizon]\n",
        "",
        _RECORDS,
    ),
    Mutant(
        "compaction: batches with log append time keep their times",
        _BATCHES,
        "            ((table.attributes & TIMESTAMP_TYPE_MASK) == 0)\n            & ~beyond\n",
        "            ~beyond\n",
        _RECORDS,
    ),
    Mutant(
        "compaction: the largest timestamp is that of what is left",
        _BATCHES,
        "newest[filled] = np.where(is_create_time[filled], largest, newest[filled])",
        "newest[filled] = largest",
        _ROUNDS,
    ),
    Mutant(
        "compaction: batches of different horizons are not put together",
        _BATCHES,
        " & (horizon[1:] == horizon[:-1])",
        "",
        _RECORDS,
    ),
    Mutant(
        "compaction: transactions end what can be judged",
        _ROUND,
        "        end = max(work.first_dirty_offset, int(table.base_offset[opaque[0]]))\n",
        "        end = None\n",
        _ROUNDS,
    ),
    Mutant(
        "compaction: a full map ends the round",
        _ROUND,
        "        if taken < len(rows):\n",
        "        if False:\n",
        _RECORDS,
    ),
    Mutant(
        "compaction: what is before the first change in a segment is not lost",
        _ROUND,
        "                if unchanged > 0:\n",
        "                if False:\n",
        _RECORDS,
    ),
    Mutant(
        "compaction: min.compaction.lag.ms is kept to",
        _CHOICE,
        "        stays |= newest > now_ms - config.min_compaction_lag_ms\n",
        "        pass\n",
        _RECORDS,
    ),
    Mutant(
        "compaction: by itself it leaves the newest extent alone",
        _CHOICE,
        "    if limits.only_due and len(columns) == len(state.extents):\n",
        "    if False:\n",
        _RECORDS,
    ),
    Mutant(
        "compaction: more than the ratio is dirty",
        _CHOICE,
        "work.dirty_ratio > config.min_cleanable_dirty_ratio",
        "work.dirty_ratio >= config.min_cleanable_dirty_ratio",
        _RECORDS,
    ),
    Mutant(
        "compaction: max.compaction.lag.ms is kept to",
        _CHOICE,
        "return bool(np.any(newest < now_ms - config.max_compaction_lag_ms))",
        "return False",
        _RECORDS,
    ),
    Mutant(
        "compaction: a round is published as a whole",
        _WHOLE,
        "len(plan_replacements(image, result.replacements)) == len(result.replacements)",
        "True",
        _ROUNDS,
    ),
    Mutant(
        "compaction: two compactors do not undo each other's notes",
        _WHOLE,
        "        and topic.partitions[work.partition].cleaned == work.cleaned\n",
        "",
        _ROUNDS,
    ),
    Mutant(
        "compaction: who takes the policy back keeps what is there",
        _WHOLE,
        "        and is_compacted(topic, image)\n",
        "",
        _ROUNDS,
    ),
    Mutant(
        "compaction: how far it came survives an append",
        "sparklog/metadata/model/draft.py",
        "                cleaned=before.cleaned,\n",
        "",
        "tests/metadata/test_compacting.py",
    ),
    Mutant(
        "compaction: how far it came survives a snapshot",
        "sparklog/metadata/documents/snapshot.py",
        "                    cleaned=cleaned,\n",
        "",
        "tests/metadata/test_compacting.py",
    ),
    Mutant(
        "compaction: keys are told apart by all of their hash",
        "sparklog/maintenance/offset_map.py",
        "            same = (self._high[at] == keys.high[pending]) & (self._low[at] == keys.low[pending])\n"
        "            self._raise",
        "            same = self._high[at] == keys.high[pending]\n            self._raise",
        "tests/maintenance/test_offset_map.py",
    ),
    Mutant(
        "compaction: of several rows of one key the last one counts",
        "sparklog/maintenance/offset_map.py",
        "            lower = self._next[at] < following[rows]\n",
        "            lower = self._next[at] > following[rows]\n",
        "tests/maintenance/test_offset_map.py",
    ),
    Mutant(
        "compaction: a round sees all of the clean part, or waits",
        "sparklog/maintenance/choose_compactions.py",
        "        sees_all = len(columns) >= state.extents.index_from(first_dirty)\n",
        "        sees_all = True\n",
        "tests/maintenance/test_horizons.py",
    ),
    Mutant(
        "compaction: a batch that reaches beyond the round gets no horizon",
        "sparklog/maintenance/surviving.py",
        " & ~has_horizon & (table.last_offset < round_.end_offset)",
        " & ~has_horizon",
        "tests/maintenance/test_horizons.py",
    ),
    Mutant(
        "merging: batches with a delete horizon keep it",
        "sparklog/maintenance/rewrite.py",
        "_KEPT = DELETE_HORIZON_MASK | ",
        "_KEPT = ",
        "tests/maintenance/test_horizons.py",
    ),
)
