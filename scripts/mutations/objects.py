"""Reading from object stores: each object once, behind nobody, and no older than it may be."""

from scripts.mutations.mutant import Mutant

FETCHED, OF_FETCHED = "sparklog/log/reader.py", "tests/log/test_fetched.py"
TOGETHER, OF_TOGETHER = "sparklog/log/partition_reader.py", "tests/log/test_read_together.py"
ROUNDS, OF_ROUNDS = "sparklog_server/fetch/service.py", "tests/server/fetch/test_rounds.py"
LIVE_ROOT, OF_READING = "sparklog_server/root/live_root.py", "tests/server/coordination/test_reading.py"
ATTENTION = "sparklog_server/root/live_root.py"
OF_ATTENTION = "tests/server/root/test_attention.py tests/server/cluster/test_following.py"
OF_AGE = "tests/metadata/test_image_age.py"
LOOKS = "sparklog/metadata/log.py"
NODE_LOCK, OF_NODE_LOCK = "sparklog_server/cluster/node_lock.py", "tests/server/cluster/test_node_lock.py"
OF_SPOOL = "tests/maintenance/test_spool.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "S3: parts of a job's last snapshot are put although its interpreter ends",
        "sparklog/storage/s3_client.py",
        "            return _done_here(work)\n",
        "            raise\n",
        "tests/storage/test_s3_connections.py",
    ),
    Mutant(
        "objects: ranges of one object are asked for once",
        FETCHED,
        "        if joined is not None and _is_near(joined, span, wanted):\n",
        "        if False:\n",
        f"{OF_FETCHED} {OF_ROUNDS}",
    ),
    Mutant(
        "objects: what is needed first is fetched first",
        FETCHED,
        "min(number for number, _ in of_segment)",
        "0",
        OF_FETCHED,
    ),
    Mutant(
        "objects: nothing is waited for when the time is over",
        FETCHED,
        "                    if is_time_over():\n",
        "                    if False:\n",
        OF_FETCHED,
    ),
    Mutant(
        "objects: partitions are read together by the time of their records",
        TOGETHER,
        "heapq.merge(*timed, key=itemgetter(0))",
        "itertools.chain(*timed)",
        OF_TOGETHER,
    ),
    Mutant(
        "objects: an error ends its own partition, for good",
        TOGETHER,
        "                left[number] = 0\n",
        "                pass\n",
        OF_TOGETHER,
    ),
    Mutant(
        "fetch: when the time is over there is something of each partition",
        ROUNDS,
        "                if not gathered.has_any(number):\n",
        "                if True:\n",
        OF_ROUNDS,
    ),
    Mutant(
        "fetch: what was fetched for files that are gone is not looked for again",
        ROUNDS,
        "                    gathered = None\n",
        "                    pass\n",
        OF_ROUNDS,
    ),
    Mutant(
        "broker: coordinators wait behind no consumer",
        LIVE_ROOT,
        "            self._apart, functools.partial(function, *args)\n",
        "            self._threads, functools.partial(function, *args)\n",
        OF_READING,
    ),
    Mutant(
        "broker: following the log waits behind no consumer",
        LIVE_ROOT,
        "run_in_executor(self._follower, self.log.refresh)",
        "run_in_executor(self._threads, self.log.refresh)",
        OF_READING,
    ),
    Mutant(
        "broker: state logs are read together",
        "sparklog_server/coordination/records.py",
        "            self._background.spawn(self._read_all(wanted))\n",
        "            for one in wanted:\n                self._background.spawn(self._read_all([one]))\n",
        OF_READING,
    ),
    Mutant(
        "s3: reading ahead leaves requests to others",
        "sparklog/storage/s3_client.py",
        "self.options.max_concurrency - _LEFT_BY_READING_AHEAD",
        "self.options.max_concurrency",
        "tests/storage/test_s3_connections.py",
    ),
    Mutant(
        "broker: who asks after a long time waits for a look",
        ATTENTION,
        "        if self._looked is not None:\n",
        "        if False:\n",
        OF_ATTENTION,
    ),
    Mutant(
        "broker: nobody waits for a look for ever",
        ATTENTION,
        "                async with asyncio.timeout(LOOK_SECONDS):\n",
        "                async with asyncio.timeout(None):\n",
        OF_ATTENTION,
    ),
    Mutant(
        "brokers: the note of a lock proves the death of its own registration alone",
        NODE_LOCK,
        "                known.incarnation_id,\n",
        '                note["incarnation"],\n',
        OF_NODE_LOCK,
    ),
    Mutant(
        "brokers: a copy of the machine proves nothing",
        NODE_LOCK,
        '(note["incarnation"], note["boot"]) == (',
        '(note["incarnation"], self._boot) == (',
        OF_NODE_LOCK,
    ),
    Mutant(
        "metadata: each look of a publish makes the image new",
        "sparklog/metadata/following.py",
        "                self._on_end(image, asked)\n",
        "",
        OF_AGE,
    ),
    Mutant(
        "metadata: who waits for others to publish looks for the end",
        "sparklog/metadata/combining.py",
        "        if self._follower.is_confirmed(image.commit, within_ms=_END_KNOWN_MS):\n",
        "        if True:\n",
        OF_AGE,
    ),
    Mutant(
        "metadata: a publish makes no image older",
        LOOKS,
        "        if asked.monotonic_ms >= self._last.monotonic_ms:\n",
        "        if True:\n",
        OF_AGE,
    ),
    Mutant(
        "metadata: looks that wait are made once",
        "sparklog/metadata/log.py",
        "            if self._looks.has_since(began):\n                return self._image\n"
        "            if max_age_ms",
        "            if max_age_ms",
        OF_AGE,
    ),
    Mutant(
        "metadata: who looks does not wait for a publish that looks",
        LOOKS,
        "        while not take(lock.acquire, taken, PEEK_SECONDS):\n",
        "        while not take(lock.acquire, taken, -1):\n",
        OF_AGE,
    ),
    Mutant(
        "metadata: a store that fails is not looked at all the time beside a publish",
        LOOKS,
        "            if self._beside_ms is not None and now_ms - self._beside_ms < BESIDE_MS:\n",
        "            if False:\n",
        OF_AGE,
    ),
    Mutant(
        "metadata: who looks beside a publish knows the end only if nothing can have been cleaned",
        "sparklog/metadata/following.py",
        "if error is None and self.is_confirmed(image.commit) else None\n",
        "if error is None else None\n",
        OF_AGE,
    ),
    Mutant(
        "metadata: a look beside a publish takes no image back",
        "sparklog/metadata/log.py",
        "            if image.commit >= self._image.commit:\n                self._image = image\n",
        "            if True:\n                self._image = image\n",
        OF_AGE,
    ),
    Mutant(
        "works that read the same objects have them fetched once",
        "sparklog/maintenance/rewrite.py",
        "            if len(group) > 1 or reads > 1:\n",
        "            if reads > 1:\n",
        OF_SPOOL,
    ),
    Mutant(
        "what waits on the local disk is bounded",
        "sparklog/maintenance/rewrite.py",
        "is_full = count > MAX_SPANS or size > room or",
        "is_full = count > MAX_SPANS or",
        OF_SPOOL,
    ),
    Mutant(
        "what waits on the local disk leaves most of it free",
        "sparklog/maintenance/rewrite.py",
        ".free // _FREE_SHARE",
        ".free",
        OF_SPOOL,
    ),
    Mutant(
        "a round is no faster than it may be when it reads ahead",
        "sparklog/maintenance/rewrite.py",
        "        pace(one.size)\n",
        "",
        OF_SPOOL,
    ),
    Mutant(
        "what is read ahead is not pushed out before it is taken",
        "sparklog/maintenance/rewrite.py",
        "or len(announced) >= AHEAD_PIECES",
        "or len(announced) > AHEAD_PIECES",
        OF_SPOOL,
    ),
    Mutant(
        "extents that could not be fetched are asked for by whoever reads them",
        "sparklog/maintenance/rewrite.py",
        "        except (CorruptLogError, DataLossError):\n            return\n",
        "        except CorruptLogError:\n            return\n",
        OF_SPOOL,
    ),
    Mutant(
        "a sweep aborts no upload of a task of days",
        "sparklog/storage/s3.py",
        "        uploads = sweep_uploads(self.client, self.url, self._prefix, began_s, dry_run=dry_run)\n",
        "        uploads = sweep_uploads(self.client, self.url, self._prefix, limit_s, dry_run=dry_run)\n",
        "tests/storage/test_s3_uploads.py",
    ),
    Mutant(
        "vacuum: an upload is left as long as a segment that nothing refers to",
        "sparklog/maintenance/sweep.py",
        "            unfinished_older_than_ms=max(DAY_MS, self._retain_ms),\n",
        "",
        "tests/maintenance/test_vacuum.py",
    ),
    Mutant(
        "a full disk keeps nothing from being merged",
        "sparklog/maintenance/rewrite.py",
        "        except OSError as error:  # what was fetched",
        "        except MemoryError as error:  # what was fetched",
        OF_SPOOL,
    ),
    Mutant(
        "fetch: an object that is refused is told to its partition alone",
        "sparklog_server/fetch/reader.py",
        "                    if took_patience(error):\n                        raise\n",
        "                    raise\n",
        OF_ROUNDS,
    ),
    Mutant(
        "fetch: an object that took all patience is not asked for again at once",
        "sparklog_server/fetch/reader.py",
        "        if why is not None and monotonic() < until:\n",
        "        if why is not None and until < 0:\n",
        OF_ROUNDS,
    ),
    Mutant(
        "fetch: an object that took all patience is tried again after a while",
        "sparklog_server/fetch/reader.py",
        "        if why is not None and monotonic() < until:\n",
        "        if why is not None:\n",
        OF_ROUNDS,
    ),
)
