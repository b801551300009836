"""Records and offsets of transactions, from their intake until they are in the log."""

from scripts.mutations.mutant import Mutant

_PUBLISH = "sparklog_server/publish"
_PARTS = "tests/server/publish/test_staged_parts.py"
_CHECKS = "tests/server/publish/test_part_checks.py"
_OTHERS = "tests/server/publish/test_bundles_by_others.py"
_PRODUCE = "tests/server/api/test_transactional_produce.py"

MUTANTS = (
    Mutant(
        "a batch of a transaction needs a request with a transactional id",
        f"{_PUBLISH}/produced_batches.py",
        "    if header.is_transactional and not in_transaction:\n",
        "    if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a batch of a transaction that is checked at once has a producer",
        f"{_PUBLISH}/at_once.py",
        "        or (is_transactional and found.producer_id <= NO_PRODUCER_ID)\n",
        "",
        _CHECKS,
    ),
    Mutant(
        "what is checked at once needs a transactional id as well",
        f"{_PUBLISH}/at_once.py",
        "    if is_transactional and not in_transaction:\n",
        "    if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a batch that says nothing of a transaction is of none",
        f"{_PUBLISH}/part_checks.py",
        "        if transaction is not None and not is_transactional(self._data):\n",
        "        if False:\n",
        _CHECKS,
    ),
    Mutant(
        "a producer id is that of the request's transactional id",
        f"{_PUBLISH}/staged_parts.py",
        "    if found is not None and found.transactional_id != said.transactional_id:\n",
        "    if False:\n",
        _PARTS,
    ),
    Mutant(
        "offsets need their group to be added",
        f"{_PUBLISH}/staged_parts.py",
        "    if found.is_ongoing and said.group in found.groups:\n",
        "    if True:\n",
        _PARTS,
    ),
    Mutant(
        "offsets of a producer follow each other",
        f"{_PUBLISH}/staged_parts.py",
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
        "who is fenced for good costs no look at the metadata log",
        f"{_PUBLISH}/staged_parts.py",
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
        f"{_PUBLISH}/bundle_commit.py",
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
    Mutant(
        "only the second protocol adds partitions by batches",
        "sparklog_server/api/produce.py",
        "    opens = context.api_version >= SECOND_PROTOCOL_FROM\n",
        "    opens = True\n",
        _PRODUCE,
    ),
)
