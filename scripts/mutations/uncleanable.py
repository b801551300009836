"""What maintenance cannot read."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "what cannot be merged keeps nothing else from it",
        "sparklog/maintenance/merge.py",
        "    if not isinstance(result, SparklogError) or len(work.pieces) == 1:\n",
        "    if True:\n",
        "tests/maintenance/test_damaged.py",
    ),
    Mutant(
        "what looks newer keeps nothing else from being merged or compacted",
        "sparklog/maintenance/budget.py",
        "UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError, UnreadableSegmentError)\n",
        "UNREADABLE = (CorruptLogError, DataLossError, UnreadableSegmentError)\n",
        "tests/maintenance/test_damaged.py",
    ),
    Mutant(
        "a segment that the storage does not give keeps nothing else from being merged or compacted",
        "sparklog/maintenance/budget.py",
        "UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError, UnreadableSegmentError)\n",
        "UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError)\n",
        "tests/maintenance/test_unreadable.py",
    ),
    Mutant(
        "a segment that the storage does not give is asked for once for all that share it",
        "sparklog/maintenance/merge.py",
        "    if isinstance(result, UnreadableSegmentError):\n",
        "    if False:\n",
        "tests/maintenance/test_unreadable.py",
    ),
    Mutant(
        "an object that the store does not give is asked for once for all works that read it",
        "sparklog/maintenance/rewrite.py",
        "            raise as_value(self._refused[span.segment])\n",
        "            return False\n",
        "tests/maintenance/test_unreadable.py",
    ),
    Mutant(
        "a round waits for one segment that is not answered for",
        "sparklog/log/segment_file.py",
        '    return error.code == "STORE_UNAVAILABLE"\n',
        "    return False\n",
        "tests/maintenance/test_unreadable.py",
    ),
    Mutant(
        "too many open files are no segment's fault",
        "sparklog/log/segment_file.py",
        "    if error.code in _OURS:\n        return error\n",
        "",
        "tests/maintenance/test_unreadable.py",
    ),
    Mutant(
        "what cannot be merged is told of",
        "sparklog/maintenance/merge.py",
        "    if failed and raises:\n        raise failed[0]\n",
        "",
        "tests/maintenance/test_damaged.py",
    ),
    Mutant(
        "compaction: a budget that is spent hides no damage",
        "sparklog/maintenance/compact.py",
        "            if raises:\n                compactor.raise_failure()\n",
        "            if raises and not report.is_cut:\n                compactor.raise_failure()\n",
        "tests/maintenance/test_damaged.py",
    ),
)
