"""Records and offsets of transactions, from their intake until they are in the log."""

from scripts.mutations.mutant import Mutant

_PUBLISH = "sparklog_server/publish"
_PARTS = "tests/server/publish/test_staged_parts.py"
_CHECKS = "tests/server/publish/test_part_checks.py"
_OTHERS = "tests/server/publish/test_bundles_by_others.py"
_PRODUCE = "tests/server/api/test_transactional_produce.py"
_COORDINATION = "sparklog_server/coordination"
_STAGING = "tests/server/coordination/test_staging.py"

MUTANTS = (
    Mutant(
        "a group's offsets are staged in the transaction that was open, and in no other",
        f"{_PUBLISH}/staged_parts.py",
        "opens_ms=found.started_ms, number=found.number)",
        "opens_ms=found.started_ms)",
        _PARTS,
    ),
    Mutant(
        "whoever publishes a group's offsets is told of which transaction they are",
        f"{_PUBLISH}/bundle_commit.py",
        "            number=NO_NUMBER if transaction is None else transaction.number,\n",
        "",
        _OTHERS,
    ),
    Mutant(
        "who publishes for others stages nothing of a transaction that is over",
        "sparklog/metadata/model/conditions.py",
        "    if number == NO_NUMBER or known is None or (known.is_ongoing and known.number == number):\n",
        "    if True:\n",
        _OTHERS,
    ),
    Mutant(
        "offsets that were refused stand in the way of none that come after",
        f"{_PUBLISH}/bundle_writer.py",
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
    Mutant(
        "staged records are known from the moment when they may be staged",
        f"{_COORDINATION}/staging.py",
        "            (outcome,) = await self._host.publisher.submit([part])\n",
        "            for record in records:\n"
        "                self._state.unstage(record)\n"
        "            (outcome,) = await self._host.publisher.submit([part])\n"
        "            for record in records:\n"
        "                self._state.stage(record)\n",
        _STAGING,
    ),
    Mutant(
        "what was committed is staged until it is applied",
        f"{_COORDINATION}/staging.py",
        "                staged.leaves_at = found.log_end_offset\n",
        "                staged.leaves_at = 0\n",
        _STAGING,
    ),
    Mutant(
        "the next transaction of a producer is another one",
        f"{_COORDINATION}/staging.py",
        "        numbers = {(one.producer_id, one.number): one for one in open_ones if one is not None}\n",
        "        numbers = {(one.producer_id, 0): one for one in open_ones if one is not None}\n",
        _STAGING,
    ),
    Mutant(
        "nobody answers before what is staged is known",
        f"{_COORDINATION}/state_log.py",
        "                    await self._staging.load()\n",
        "",
        _STAGING,
    ),
    Mutant(
        "a partition in which everything is staged is not empty",
        f"{_COORDINATION}/state_log.py",
        "        if is_empty and not self._host.root.image.transactions.is_staged_in"
        "(found.topic_id, found.partition):\n",
        "        if is_empty:\n",
        _STAGING,
    ),
    Mutant(
        "an abort is seen, which changes no partition",
        f"{_COORDINATION}/shards.py",
        "                log.follow()  # an abort changes no partition\n",
        "                pass\n",
        _STAGING,
    ),
    Mutant(
        "as long as it is not known what is staged nothing is stable",
        "sparklog_server/groups/staged_commits.py",
        "        return _EVERYTHING if shard.is_unsure else shard.state.pending.of(group_id)\n",
        "        return shard.state.pending.of(group_id)\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "who is no member commits no offsets with a transaction",
        "sparklog_server/groups/group.py",
        " and (self.state is GroupState.EMPTY or not (member_id or instance_id)):\n",
        " or True:\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "what transactions hold at a coordinator is bounded",
        "sparklog_server/groups/staged_commits.py",
        "        if not table.has_room_to_stage(records):\n",
        "        if False:\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "offsets do not expire while a transaction may commit others",
        "sparklog_server/groups/expiry.py",
        "        expired = [one for one in expired if one not in unstable]\n",
        "",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "offsets of topics that were deleted meanwhile do not come back",
        "sparklog_server/groups/expiry.py",
        "        gone = [name for name in self._staged.topics_that_are_over() if name not in image.topics]\n",
        "        gone: list[str] = []\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "a group is not deleted while a transaction may bring it back",
        "sparklog_server/groups/coordinator.py",
        " or self.staged.is_pending(group_id):\n",
        ":\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "stable offsets are told to those who ask for them",
        "sparklog_server/api/offset_fetch.py",
        "    if must_be_stable and not error:\n",
        "    if False:\n",
        "tests/server/api/test_txn_offset_commit.py",
    ),
    Mutant(
        "only the second protocol commits offsets of a group that was not added",
        "sparklog_server/api/txn_offset_commit.py",
        "    opens = version >= SECOND_PROTOCOL_FROM\n",
        "    opens = True\n",
        "tests/server/api/test_txn_offset_commit.py",
    ),
)
