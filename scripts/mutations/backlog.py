"""What waits to be published, or to be sent, and how much memory that takes."""

from scripts.mutations.mutant import Mutant

PUBLISH, OF_BACKLOG = "sparklog_server/publish", "tests/server/publish/test_backlog.py"

MUTANTS = (
    Mutant(
        "what batches become when they are compressed anew is counted",
        f"{PUBLISH}/backlog.py",
        "                self.used_bytes += growth_bytes\n",
        "                pass\n",
        OF_BACKLOG,
    ),
    Mutant(
        "batches that may grow are begun when there is room",
        f"{PUBLISH}/checkers.py",
        "            self._backlog.wait_for_room()\n",
        "",
        OF_BACKLOG,
    ),
    Mutant(
        "nobody waits for room while the publisher waits",
        f"{PUBLISH}/backlog.py",
        "self._is_idle or self.used_bytes",
        "self.used_bytes",
        f"{OF_BACKLOG} -k nobody_waits",
    ),
    Mutant(
        "what one request becomes has a bound",
        f"{PUBLISH}/backlog.py",
        "                if submission.has_grown and size > ",
        "                if False and size > ",
        OF_BACKLOG,
    ),
    Mutant(
        "what a request has no room for is not made",
        f"{PUBLISH}/checkers.py",
        "        if not submission.is_full or not _may_grow(job):\n",
        "        if True:\n",
        OF_BACKLOG,
    ),
    Mutant(
        "a first batch that comes again for lack of room keeps its place",
        f"{PUBLISH}/publisher.py",
        "                    self._writer.refuse(one.parts[index])\n",
        "                    pass\n",
        OF_BACKLOG,
    ),
    Mutant(
        "of a request that comes again something fits each time",
        f"{PUBLISH}/backlog.py",
        "if submission.has_grown and size > ",
        "if size > ",
        OF_BACKLOG,
    ),
    Mutant(
        "parts that wait are counted beside their bytes",
        f"{PUBLISH}/backlog.py",
        "self.size_bytes + PART_BYTES * len(self.parts)",
        "self.size_bytes",
        OF_BACKLOG,
    ),
    Mutant(
        "a batch that is compressed anew is not checked in the publisher's thread",
        f"{PUBLISH}/checkers.py",
        "is_quick=not may_grow and ",
        "is_quick=",
        OF_BACKLOG,
    ),
    Mutant(
        "what Fetch says of thousands of partitions counts until it is sent",
        "sparklog_server/api/fetch.py",
        "        await context.answer.hold(",
        "        print(",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "Fetch keeps nothing of what an answer was made of until it is sent",
        "sparklog_server/api/fetch.py",
        "        fetched.answers = []\n",
        "",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "Fetch tells of the image by which it has read",
        "sparklog_server/fetch/service.py",
        "                    one.answer.tell(state)",
        "                    pass",
        "tests/server/fetch/test_rounds.py",
    ),
    Mutant(
        "only so many batches are looked at before they are sent from their file",
        "sparklog_server/fetch/reader.py",
        "itertools.islice(headers, MAX_WALKED)",
        "headers",
        "tests/server/fetch/test_reader.py",
    ),
)
