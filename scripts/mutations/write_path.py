"""Writing from Spark and Python, from rows to what is published."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "client: extents that become many are ordered by partition",
        "sparklog/client/appender.py",
        "        return PartitionSpool() if self._sequencer is None and extents > SCATTERED_EXTENTS else",
        "        return None if extents else",
        "tests/client/test_partition_spool.py",
    ),
    Mutant(
        "client: what waits on the disk goes before what finds no room there",
        "sparklog/client/appender.py",
        "        self._write_spooled()\n        return self._spool.add(",
        "        return self._spool.add(",
        "tests/client/test_partition_spool.py",
    ),
    Mutant(
        "client: batches of several times count on",
        "sparklog/client/waiting_rows.py",
        "        set_base_offsets(memoryview(data), self.batches.position, offsets, leader_epoch=None)\n",
        "",
        "tests/client/test_partition_spool.py",
    ),
    Mutant(
        "a replacement that does not apply after those before it takes nobody with it",
        "sparklog/metadata/model/extents.py",
        "            replace_extents(draft, action)\n            planned.append(action)\n",
        "            replace_extents(ImageDraft(image), action)\n            planned.append(action)\n",
        "tests/metadata/test_replacing.py tests/maintenance/test_forgotten.py",
    ),
    Mutant(
        "client: a time before 1970 does not become now, nor 1970",
        "sparklog/client/rows.py",
        "    if oldest is None or oldest >= 0:\n",
        "    if oldest is None or oldest >= -1:\n",
        "tests/client/test_rows.py",
    ),
    Mutant(
        "what one topic is past, and another one lacks, is refused as a whole",
        "sparklog/metadata/model/writers.py",
        "if left and later is not None:",
        "if False:",
        "tests/metadata/test_writer_txns.py tests/spark/test_writers.py",
    ),
    Mutant(
        "a topic remembers a bounded number of applications",
        "sparklog/metadata/model/writers.py",
        "if len(writer_txns) > MAX_WRITER_TXNS:",
        "if False:",
        "tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "what waits on a local disk leaves it to others as they fill it",
        "sparklog/client/waiting_rows.py",
        "min(self._limit_bytes, _share(self._end))",
        "self._limit_bytes",
        "tests/client/test_partition_spool.py",
    ),
    Mutant(
        "what has waited on a local disk is given back at once",
        "sparklog/client/waiting_rows.py",
        "                os.ftruncate(self._file.fileno(), 0)",
        "                pass",
        "tests/client/test_partition_spool.py",
    ),
)
