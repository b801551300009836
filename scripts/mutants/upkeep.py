"""Maintenance: only what nothing refers to goes, and no record changes."""

from scripts.mutants.mutant import Mutant, edit, patch

MUTANTS: tuple[Mutant, ...] = (
    # A file goes only if nothing refers to it, and nothing can come to refer to it.
    edit(
        "Vacuum removes a segment that an extent refers to.",
        "sparklog/maintenance/sweep.py",
        "if key in self._live:",
        "if False:",
        "tests/maintenance/test_sweep.py",
    ),
    edit(
        "A file system that ignores case shows a live segment in another topic's directory: it goes.",
        "sparklog/maintenance/sweep.py",
        'return segment.split("/", 2)[2] if is_isolated(segment) else segment',
        "return segment",
        "tests/maintenance/test_sweep_isolated.py",
    ),
    edit(
        "A merge puts records of an isolated topic where readers of other topics read them.",
        "sparklog/maintenance/merging.py",
        "if piece.config.segment_isolation else SHARED",
        "if False else SHARED",
        "tests/maintenance/test_merging_isolated.py",
    ),
    edit(
        "Vacuum judges by an image from before its horizon: what was published between is removed.",
        "sparklog/maintenance/sweep.py",
        "classifier = Classifier(self._with_horizon(horizon), past)",
        "moved = self._with_horizon(horizon).sweep_horizon\n"
        "            classifier = Classifier(image, past, planned_horizon=moved)",
        "tests/maintenance/test_sweep.py",
    ),
    edit(
        "Vacuum runs on an older copy of the log: it removes newer records.",
        "sparklog/maintenance/sweep.py",
        "raise _older_copy(self._store, image, evidence, lost)",
        "pass",
        "tests/maintenance/test_sweep_older_copy.py",
    ),
    edit(
        "Vacuum looks at the image before it lists files: new segments look dead.",
        "sparklog/maintenance/sweep.py",
        "evidence = self._survey()\n        image = self._metadata.refresh(force=True)",
        "image = self._metadata.refresh(force=True)\n        evidence = self._survey()",
        "tests/maintenance/test_sweep_stores.py",
    ),
    patch(
        "Staged extents are no references for vacuum.",
        "sparklog.metadata.model.transaction_values.Transactions.staged_lists",
        "tests/maintenance/test_rounds_staged.py",
        returns=(),
    ),
    patch(
        "A publisher plans with segments that a sweep may have removed.",
        "sparklog.metadata.model.extents.validate_births",
        "tests/metadata/test_sweeping.py",
    ),
    patch(
        "A commit applies with segments that a sweep may have removed.",
        "sparklog.metadata.model.extents.refuse_expired",
        "tests/metadata/test_sweeping.py",
    ),
    edit(
        "A snapshot forgets the sweep horizon: swept segments are published.",
        "sparklog/metadata/documents/snapshot.py",
        "sweep_horizon=state.sweep_horizon,",
        "",
        "tests/metadata/test_sweeping.py",
    ),
    # A merge changes no record, offset or timestamp.
    edit(
        "A merged segment is published before it is synced.",
        "sparklog/maintenance/merging.py",
        "self._file.sync()",
        "pass",
        "tests/maintenance/test_merging.py",
    ),
    edit(
        "A replacement is planned by the image and not by those before it: extents overlap.",
        "sparklog/metadata/model/extents.py",
        "replace_extents(draft, action)\n            planned.append(action)",
        "replace_extents(ImageDraft(image), action)\n            planned.append(action)",
        "tests/metadata/test_extents_replacing.py",
    ),
    # Records go as retention and compaction say.
    edit(
        "Retention removes from the middle of a log: off by the records between.",
        "sparklog/maintenance/retain.py",
        "int(stays.argmax()) if stays.any() else len(columns)",
        "int((~stays).sum())",
        "tests/maintenance/test_retain.py",
    ),
    edit(
        "A topic that does not delete loses records.",
        "sparklog/maintenance/retain.py",
        'if "delete" not in config.cleanup_policy or (',
        "if (",
        "tests/maintenance/test_retain.py",
    ),
    edit(
        "Compaction removes the last record of a key.",
        "sparklog/maintenance/compacted_batches.py",
        "round_.keys.latest(hashes) > offset[asked]",
        "round_.keys.latest(hashes) >= offset[asked]",
        "tests/maintenance/test_compaction.py",
    ),
    edit(
        "A tombstone goes before its horizon: a reader never learns of the delete.",
        "sparklog/maintenance/compacted_batches.py",
        "has_come = has_horizon & (table.first_timestamp_ms <= round_.now_ms)",
        "has_come = has_horizon",
        "tests/maintenance/test_compaction.py",
    ),
    edit(
        "A part of a round is published: an old value comes back.",
        "sparklog/maintenance/compaction.py",
        "len(plan_replacements(image, result.replacements)) == len(result.replacements)",
        "True",
        "tests/maintenance/test_compaction_rounds.py",
    ),
    edit(
        "A round that does not see all of the clean part sets horizons: an old value comes back.",
        "sparklog/maintenance/choose.py",
        "if not len(columns) or len(columns) < state.extents.index_from(first_dirty):",
        "if not len(columns):",
        "tests/maintenance/test_compaction_horizons.py",
    ),
)
