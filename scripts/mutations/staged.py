"""Records and offsets of transactions, from their intake until they are staged."""

from scripts.mutations.mutant import Mutant

_PUBLISH = "sparklog_server/publish"
_PARTS = "tests/server/publish/test_staged_parts.py"
_FIRST = "tests/server/publish/test_staged_first_batches.py"
_CHECKS = "tests/server/publish/test_part_checks.py"
_OTHERS = "tests/server/publish/test_bundles_by_others.py"
_PRODUCE = "tests/server/api/test_transactional_produce.py"
_COORDINATION = "sparklog_server/coordination"
_STAGING = "tests/server/coordination/test_staging.py tests/server/coordination/test_staged_by_others.py"

MUTANTS = (
    Mutant(
        "a long transactional id is not repeated in the error of each part",
        f"{_PUBLISH}/bundle_plan.py",
        "{said.transactional_id[:MOST_SHOWN]!r}, expected",
        "{said.transactional_id!r}, expected",
        _PARTS,
    ),
    Mutant(
        "what shares an extent with others is read",
        f"{_COORDINATION}/staging.py",
        "            if records is None or len(records) != extent.record_count:",
        "            if records is None:",
        _STAGING,
    ),
    Mutant(
        "what ended while it was read is not staged any more",
        f"{_COORDINATION}/staging.py",
        "                if staged.end_offset == start and self._by_transaction.get(number) is staged:\n",
        "                if staged.end_offset == start:\n",
        _STAGING,
    ),
    Mutant(
        "what is staged is read again after a failure, though nothing happens",
        f"{_COORDINATION}/staging.py",
        "                self._retry.schedule()\n",
        "                pass\n",
        _STAGING,
    ),
    Mutant(
        "a state's log is read again after a failure, though nothing happens",
        f"{_COORDINATION}/state_log.py",
        "                self._retry.schedule()\n",
        "                pass\n",
        _STAGING,
    ),
    Mutant(
        "what is committed while a state's log is read is read as well",
        f"{_COORDINATION}/state_log.py",
        "            self.follow()  # images that came meanwhile were left to this\n",
        "            pass\n",
        _STAGING,
    ),
    Mutant(
        "an abort is over where a state's log is empty",
        f"{_COORDINATION}/state_log.py",
        "            self._has_applied(found.log_end_offset)\n",
        "            self.next_offset = found.log_end_offset\n",
        _STAGING,
    ),
    Mutant(
        "an abort is over where a state's log is empty and something was staged",
        f"{_COORDINATION}/state_log.py",
        "            self._has_applied(start_offset)  # of what was below nothing is left\n",
        "",
        _STAGING,
    ),
    Mutant(
        "whoever publishes a group's offsets is told of which transaction they are",
        f"{_PUBLISH}/bundle_writer.py",
        "            number=NO_NUMBER if transaction is None else transaction.number,\n",
        "",
        _OTHERS,
    ),
    Mutant(
        "offsets that were refused stand in the way of none that come after",
        f"{_PUBLISH}/bundle_plan.py",
        "        if part.producer_id < 0 or part.base_sequence < 0:",
        "        if part.producer_id < 0:",
        _PARTS,
    ),
    Mutant(
        "a batch of a transaction needs a request with a transactional id",
        f"{_PUBLISH}/produced_batches.py",
        "    if header.is_transactional and not in_transaction:\n",
        "    if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a batch of a transaction that is checked at once has a producer",
        f"{_PUBLISH}/produced_batches.py",
        "        or (is_transactional and found.producer_id <= NO_PRODUCER_ID)\n",
        "",
        _CHECKS,
    ),
    Mutant(
        "what is checked at once needs a transactional id as well",
        f"{_PUBLISH}/produced_batches.py",
        "    if is_transactional and not in_transaction:\n",
        "    if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a batch that says nothing of a transaction is of none",
        f"{_PUBLISH}/checkers.py",
        "        if transaction is not None and not is_transactional(self._data):\n",
        "        if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a producer id is that of the request's transactional id",
        f"{_PUBLISH}/bundle_plan.py",
        "    if found is not None and found.transactional_id != said.transactional_id:\n",
        "    if False:\n",
        _PARTS,
    ),
    Mutant(
        "offsets need their group to be added",
        f"{_PUBLISH}/bundle_plan.py",
        "    if found.is_ongoing and said.group in found.groups:\n",
        "    if True:\n",
        _PARTS,
    ),
    Mutant(
        "offsets of a producer follow each other",
        f"{_PUBLISH}/bundle_plan.py",
        "        sequence = (known.last_sequence + 1) % SEQUENCES\n",
        "        sequence = 0\n",
        _PARTS,
    ),
    Mutant(
        "nobody is refused by an old image",
        f"{_PUBLISH}/bundle_writer.py",
        "        if not any(_is_early(image, *one) for one in zip(parts, verdicts, strict=True)):\n",
        "        if True:\n",
        _PARTS,
    ),
    Mutant(
        "no repetition in a transaction is acknowledged by an old image",
        f"{_PUBLISH}/bundle_plan.py",
        "        return part.transaction is not None\n",
        "        return False\n",
        _PARTS,
    ),
    Mutant(
        "who is fenced for good costs no look at the metadata log",
        f"{_PUBLISH}/bundle_plan.py",
        "    return found is None or part.producer_epoch >= found.producer_epoch\n",
        "    return True\n",
        _PARTS,
    ),
    Mutant(
        "without the newest image nobody is refused",
        f"{_PUBLISH}/bundle_writer.py",
        "                _not_known(error) if _is_early(image, part, verdict) else verdict\n",
        "                verdict\n",
        _PARTS,
    ),
    Mutant(
        "a producer with transactions sends nothing outside of them",
        f"{_PUBLISH}/bundle_plan.py",
        "        return plain_refusal(self.image, part.producer_id)\n",
        "        return None\n",
        _PARTS,
    ),
    Mutant(
        "a repetition in a transaction is acknowledged only if it is there",
        f"{_PUBLISH}/bundle_plan.py",
        "        if was_staged(image, staging_of(part).draft):\n",
        "        if True:\n",
        _PARTS,
    ),
    Mutant(
        "a repetition in a transaction is acknowledged",
        f"{_PUBLISH}/bundle_plan.py",
        "        if was_staged(image, staging_of(part).draft):\n",
        "        if False:\n",
        _PARTS,
    ),
    Mutant(
        "what failed is waited for in its own transaction only",
        f"{_PUBLISH}/bundle_plan.py",
        "            and (floor.producer_epoch, floor.transaction)\n"
        "            == (part.producer_epoch, _number_of(self.image, part))\n",
        "            and floor.producer_epoch == part.producer_epoch\n",
        _PARTS,
    ),
    Mutant(
        "nothing takes the place of a first batch for which there was no room, in the next bundle",
        f"{_PUBLISH}/bundle_writer.py",
        '"NOT_LEADER", "TRANSACTIONS_FULL", ',
        '"NOT_LEADER", ',
        _FIRST,
    ),
    Mutant(
        "nothing takes the place of a first batch for which there was no room, in its bundle",
        f"{_PUBLISH}/bundle_plan.py",
        "                    self._producer(part, state).is_doubted = True  # a smaller one may find room\n",
        "                    pass\n",
        _FIRST,
    ),
    Mutant(
        "what could not be judged is of a transaction that is not known yet",
        f"{_PUBLISH}/bundle_plan.py",
        "    return found.number if found.is_ongoing else found.number + 1\n",
        "    return found.number\n",
        _FIRST,
    ),
    Mutant(
        "what could not be judged may be of a producer's first transaction",
        f"{_PUBLISH}/bundle_plan.py",
        "        return _FIRST_NUMBER\n",
        "        return NO_NUMBER\n",
        _FIRST,
    ),
    Mutant(
        "what is staged has no offset to be told",
        f"{_PUBLISH}/bundle_writer.py",
        "            base_offset=NO_OFFSET if base_offset is None else base_offset + skipped,\n",
        "            base_offset=(base_offset or 0) + skipped,\n",
        _PARTS,
    ),
    Mutant(
        "what is staged is in no consumer's cache",
        f"{_PUBLISH}/bundle_writer.py",
        "                if isinstance(extent, DraftExtent):  # staged: nobody reads it yet\n",
        "                if False:\n",
        _PARTS,
    ),
    Mutant(
        "a repetition of what is staged in its bundle has no offset either",
        f"{_PUBLISH}/bundle_writer.py",
        "            base_offset=NO_OFFSET if is_staged else original.base_offset + verdict.skipped,\n",
        "            base_offset=original.base_offset + verdict.skipped,\n",
        _PARTS,
    ),
    Mutant(
        "whoever publishes for a broker stages what is a transaction's",
        f"{_PUBLISH}/bundle_writer.py",
        "            transactional=transaction is not None,\n",
        "            transactional=False,\n",
        _OTHERS,
    ),
    Mutant(
        "a request is of one producer",
        "sparklog_server/api/produce.py",
        "    if len(producers) > 1:\n",
        "    if False:\n",
        _PRODUCE,
    ),
)
