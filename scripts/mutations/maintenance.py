"""Merging and retention."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "a replacement is published only if its extents are there as they were",
        "sparklog/metadata/model/rewriting.py",
        "    if len(there) != action.removed_count or checksum_of(there) != action.removed_crc32c:\n",
        "    if len(there) != action.removed_count:\n",
        "tests/metadata/test_replacing.py",
    ),
    Mutant(
        "who applies a replacement checks what it removes",
        "sparklog/metadata/model/rewriting.py",
        "        if found != action.removed_crc32c:\n",
        "        if False:\n",
        "tests/metadata/test_replacing.py",
    ),
    Mutant(
        "the last batches of a producer are remembered when their extents are merged",
        "sparklog/metadata/model/rewriting.py",
        "        merged_batches=remember_merged(state, state.extents.columns_between(start, stop)),\n",
        "",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "five of them, the newest",
        "sparklog/metadata/model/sequences.py",
        "tuple(both[-MAX_MERGED_BATCHES:])",
        "tuple(both[:MAX_MERGED_BATCHES])",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "an append leaves them",
        "sparklog/metadata/model/draft.py",
        "                merged_batches=before.merged_batches,\n",
        "",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "a snapshot has them",
        "sparklog/metadata/documents/snapshot.py",
        "merged_batches=topic.merged_batches.get(partition, {}),\n",
        "\n",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "merged bytes are durable before anybody refers to them",
        "sparklog/maintenance/merged_segment.py",
        "        self._file.sync()\n",
        "",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "batches with log append time keep their bytes",
        "sparklog/maintenance/rewrite.py",
        "_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK",
        "_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TRANSACTIONAL_MASK",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "batches of transactions keep their bytes",
        "sparklog/maintenance/rewrite.py",
        "_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK",
        "_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "batches are checked before they are merged",
        "sparklog/maintenance/rewrite.py",
        "_absolute(*scan_stretches(view, stretches))",
        "_absolute(*scan_stretches(view, stretches, verify_crc=False))",
        "tests/maintenance/test_merge.py",
    ),
    Mutant(
        "what has gaps gets a segment of its own",
        "sparklog/maintenance/choose.py",
        'int(extents.column("size").sum()) < limits.shared_bytes and _is_dense(extents)',
        'int(extents.column("size").sum()) < limits.shared_bytes',
        "tests/maintenance/test_gaps.py",
    ),
    Mutant(
        "a damaged time index is found out",
        "sparklog/log/segment_file.py",
        "        return offset if fits else None\n",
        "        return offset\n",
        "tests/maintenance/test_time_index.py",
    ),
    Mutant(
        "records go by retention from the oldest on",
        "sparklog/maintenance/retain.py",
        "int(stays.argmax()) if stays.any() else len(columns)",
        "int((~stays).sum())",
        "tests/maintenance/test_retain.py",
    ),
    Mutant(
        "only topics that delete lose records",
        "sparklog/maintenance/retain.py",
        'if "delete" not in config.cleanup_policy or (',
        "if (",
        "tests/maintenance/test_retain.py",
    ),
)
