"""Removing data files."""

from scripts.mutations.mutant import Mutant

DEAD = "sparklog/maintenance/sweep.py"
SWEEP = "sparklog/maintenance/sweep.py"

MUTANTS = (
    Mutant(
        "vacuum: what an extent refers to stays",
        DEAD,
        "        if key in self._live:\n",
        "        if False:\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: what is live is of the image that has the horizon",
        SWEEP,
        "            judge = Judge(self._with_horizon(horizon), past)\n",
        "            judge = ForeseeingJudge(image, self._with_horizon(horizon).sweep_horizon, past)\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: what is staged may be published for as long as is retained",
        SWEEP,
        "        evidence = Evidence(self._now_ms - self._retain_ms)\n",
        "        evidence = Evidence(self._now_ms)\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: less than a week must be forced",
        SWEEP,
        "    if retain_ms < 0 or (retain_ms < RETAIN_MS and not force):\n",
        "    if retain_ms < 0:\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: an older copy of the log is refused",
        SWEEP,
        "            raise _older_copy(self._store, image, evidence, lost)\n",
        "            pass\n",
        "tests/maintenance/test_older_copy.py",
    ),
    Mutant(
        "vacuum: names that are not sparklog's are left alone",
        "sparklog/log/segment_file.py",
        r'_WRITERS = re.compile(r"(segments/[0-9a-f]{32}/',
        r'_WRITERS = re.compile(r"(segments/[^/]+/',
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: a segment is live however its directory is spelt",
        DEAD,
        '    return segment.rpartition("/")[2] if is_merged(segment) else segment\n',
        "    return segment\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: what was live within the hour stays for readers",
        DEAD,
        "        self._spared = frozenset() if past is None else _live_keys(past) - self._live\n",
        "        self._spared: AbstractSet[str] = frozenset()\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: the horizon is moved only where that frees something",
        SWEEP,
        "        if evidence.oldest_unused is None or evidence.oldest_unused >= horizon:\n",
        "        if False:\n",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: a dry run removes nothing",
        SWEEP,
        "            if dry_run:\n                report.named",
        "            if False:\n                report.named",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "vacuum: a directory stays for a day",
        SWEEP,
        "        if directory.modified_ms > self._now_ms - min(self._retain_ms, DAY_MS):\n",
        "        if False:\n",
        "tests/maintenance/test_vacuum_stores.py",
    ),
    Mutant(
        "a file is made although its directory goes meanwhile",
        "sparklog/storage/local.py",
        "            with contextlib.suppress(FileNotFoundError):  # it was empty",
        "            with contextlib.nullcontext():  # it was empty",
        "tests/storage/test_local_walk.py",
    ),
    Mutant(
        "a file that was swept has no name to be made durable",
        "sparklog/storage/local.py",
        "        if os.fstat(fd).st_nlink:  # else",
        "        if True:  # else",
        "tests/storage/test_local_walk.py",
    ),
    Mutant(
        "a removal that the store refuses is told",
        "sparklog/storage/s3.py",
        '                if refused.get("Code") != "NoSuchKey":\n',
        "                if False:\n",
        "tests/storage/test_walk.py",
    ),
    Mutant(
        "vacuum: what is born while it looks is no older copy",
        SWEEP,
        "        evidence = self._survey()\n        image = self._metadata.refresh(force=True)\n",
        "        image = self._metadata.refresh(force=True)\n        evidence = self._survey()\n",
        "tests/maintenance/test_vacuum_stores.py",
    ),
    Mutant(
        "vacuum: what was live within the hour is that of an image from before",
        "sparklog/metadata/loading.py",
        "limit=found.before - snapshot)[0]",
        "limit=found.before - snapshot + 1)[0]",
        "tests/metadata/test_past.py",
    ),
    Mutant(
        "vacuum: commit 0 stays when those after it are cleaned, and says nothing of them",
        "sparklog/metadata/loading.py",
        " and (1 in found.commits or image.commit == 0):",
        ":",
        "tests/metadata/test_past.py",
    ),
    Mutant(
        "vacuum: a clock that was ahead does not keep it from its turn",
        "sparklog/maintenance/maintain.py",
        "abs(now_ms - int(text)) >= DAY_MS",
        "now_ms - int(text) >= DAY_MS",
        "tests/maintenance/test_rounds.py",
    ),
)
