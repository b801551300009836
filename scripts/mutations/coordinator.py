"""The coordinator of transactions: what it decides by, what it shares, what it refuses."""

from scripts.mutations.mutant import Mutant

AT = "sparklog_server/transactions"
COORDINATOR, OF_COORDINATOR = f"{AT}/coordinator.py", "tests/server/transactions/test_coordinator.py"
GATHERING, OF_GATHERING = f"{AT}/gathering.py", "tests/server/transactions/test_gathering.py"
OF_REFUSALS = "tests/server/api/test_refused_transactions.py"
SWEEP, OF_SWEEP = f"{AT}/sweep.py", "tests/server/transactions/test_sweep.py"
API = "sparklog_server/api"
OF_PRODUCERS = "tests/server/api/test_transactional_producers.py"
VIEW, OF_VIEW = "sparklog/client/transaction_view.py", "tests/client/test_transaction_view.py"
PATTERNS = "sparklog/client/patterns.py"
CLI, OF_CLI = "sparklog/cli/transactions.py", "tests/cli/test_transactions.py"

MUTANTS = (
    Mutant(
        "transactions: an end names the transaction that was open when it was taken in",
        COORDINATOR,
        "                _validate_number(image, transactional_id, producer, number)\n",
        "                pass\n",
        OF_COORDINATOR,
    ),
    Mutant(
        "transactions: and not the one that is open by the time of a look",
        COORDINATOR,
        "else self._number_of(transactional_id, producer)\n",
        "else (await self._root.look(force=True), self._number_of(transactional_id, producer))[1]\n",
        OF_COORDINATOR,
    ),
    Mutant(
        "transactions: a time-out is one that brokers allow",
        COORDINATOR,
        "        if not 1 <= timeout_ms <= longest_ms:\n",
        "        if False:\n",
        OF_COORDINATOR,
    ),
    Mutant(
        "transactions: an administrator means a producer in one epoch",
        COORDINATOR,
        "    if known.producer_epoch != producer.producer_epoch:\n",
        "    if False:\n",
        OF_COORDINATOR,
    ),
    Mutant(
        "transactions: and a transaction with one of these partitions",
        COORDINATOR,
        "    if not any(place in known.partitions for place in marked.partitions):\n",
        "    if False:\n",
        OF_COORDINATOR,
    ),
    Mutant(
        "transactions: those of one id are not in one commit",
        GATHERING,
        "            if one.transactional_id in ids:\n",
        "            if False:\n",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: an error that is kept has no frames, which have the operations",
        GATHERING,
        "            one.error = as_value(error)\n",
        "            one.error = error\n",
        OF_REFUSALS,
    ),
    Mutant(
        "transactions: nor has one that is everybody's",
        GATHERING,
        "            _fail(operations, as_value(error))\n        else",
        "            _fail(operations, error)\n        else",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: what is raised of an outcome is not kept by the frame that raised it",
        "sparklog_server/coordination/staging.py",
        "                    del outcome  # it has the error, whose traceback has this frame\n",
        "                    pass\n",
        OF_REFUSALS,
    ),
    Mutant(
        "producers of many partitions are looked at in one call of a thread",
        f"{API}/describe_producers.py",
        "_LOOKED_AT_TOGETHER = 64 ",
        "_LOOKED_AT_TOGETHER = 1 ",
        "tests/server/api/test_costs.py",
    ),
    Mutant(
        "transactions: those of one commit take different producer ids",
        GATHERING,
        "            image = _without(image, wanted)\n",
        "",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: what does not apply together is tried alone",
        GATHERING,
        "            if len(operations) == 1:\n",
        "            if True:\n",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: what waits is bounded",
        GATHERING,
        "        if len(self._waiting) >= MOST_WAITING:\n",
        "        if False:\n",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: what is heavy has a commit of its own",
        GATHERING,
        "            if taken and weight + one.weight > MOST_WEIGHT:\n",
        "            if False:\n",
        OF_GATHERING,
    ),
    Mutant(
        "transactions: what has taken too long is asked of the image of the commit",
        SWEEP,
        "            late = _late(image, seen, now_ms, monotonic_ms)\n",
        "            late = [*self._root.image.transactions]\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: a clock that is set forward aborts nothing",
        SWEEP,
        "        return min(self._clock.now_ms(), self._began_ms + elapsed_ms + _ROUNDING_MS)\n",
        "        return self._clock.now_ms() + 0 * elapsed_ms\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: nor does it keep what was seen open for its time",
        SWEEP,
        "            late[name] = None\n",
        "            pass\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: what was seen is one transaction of its id",
        SWEEP,
        "(one.producer_id, one.number) == (seen.producer_id, seen.number)\n",
        "one.producer_id == seen.producer_id\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: what was seen is over when it is not open any more",
        SWEEP,
        "    found: dict[str, _Seen] = {}\n",
        "    found: dict[str, _Seen] = dict(before)\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: what was seen is as old as that by the monotonic clock",
        SWEEP,
        "monotonic_ms - known.monotonic_ms >= one.timeout_ms:\n",
        "now_ms - one.started_ms >= 0 * monotonic_ms:\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: one broker looks",
        SWEEP,
        "        if not (self._membership.is_in_charge and self._is_controller()):\n",
        "        if not self._membership.is_in_charge:\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: a look that fails is not the last",
        SWEEP,
        "            if self._alarm is not None:\n                await self.start()\n",
        "            pass\n",
        OF_SWEEP,
    ),
    Mutant(
        "transactions: older clients are told in their words",
        f"{AT}/refusals.py",
        "        return ErrorCode.invalid_producer_epoch\n",
        "        return error\n",
        "tests/server/api/test_end_txn.py",
    ),
    Mutant(
        "transactions: a root whose owner has not agreed offers none",
        f"{API}/api_versions.py",
        "    if agreed >= TRANSACTIONS_VERSION:\n",
        "    if True:\n",
        OF_PRODUCERS,
    ),
    Mutant(
        "transactions: nor names a coordinator",
        f"{API}/find_coordinator.py",
        "        if why_not is None:\n",
        "        if True:\n",
        OF_PRODUCERS,
    ),
    Mutant(
        "transactions: internal topics are no client's to write to",
        f"{API}/add_partitions_to_txn.py",
        "        if is_internal(name):\n",
        "        if False:\n",
        "tests/server/api/test_add_partitions_to_txn.py",
    ),
    Mutant(
        "transactions: partitions are added all or none",
        f"{API}/add_partitions_to_txn.py",
        "    if not errors:\n",
        "    if len(errors) < len(asked):\n",
        "tests/server/api/test_add_partitions_to_txn.py",
    ),
    Mutant(
        "transactions: an abort that is refused harms no other of its request",
        "sparklog_server/transactions/coordinator.py",
        "                if isinstance(found, str):\n",
        "                if isinstance(found, str) and refused == [None] * len(refused):\n",
        "tests/server/transactions/test_coordinator.py",
    ),
    Mutant(
        "transactions: an administrator does not commit",
        f"{API}/write_txn_markers.py",
        "    if marker.transaction_result:\n",
        "    if False:\n",
        "tests/server/api/test_write_txn_markers.py",
    ),
    Mutant(
        "transactions: what is told of many is bounded",
        f"{API}/describe_transactions.py",
        "    return ErrorCode.none if fits else ErrorCode.unknown_server_error\n",
        "    return ErrorCode.none\n",
        "tests/server/api/test_describe_transactions.py",
    ),
    Mutant(
        "transactions: and what is listed, with what nobody knows",
        f"{API}/list_transactions.py",
        "size + sum(_STATE_BYTES + 2 * len(state) for state in unknown)",
        "size",
        "tests/server/api/test_list_transactions.py",
    ),
    Mutant(
        "transactions: a pattern is one by itself",
        PATTERNS,
        '        pc.match_substring_regex(pa.array([""]), pattern=pattern)\n',
        "",
        OF_VIEW,
    ),
    Mutant(
        "transactions: and not a long one",
        PATTERNS,
        "    if len(pattern) > MOST_CHARACTERS:\n",
        "    if False:\n",
        OF_VIEW,
    ),
    Mutant(
        "transactions: each id is told of by one broker",
        VIEW,
        "        if _one_of(nodes, transactional_id) == node_id:\n",
        "        if nodes:\n",
        OF_VIEW,
    ),
    Mutant(
        "transactions: clients are not sent to a broker that is dead",
        VIEW,
        "        if not broker.is_fenced and not broker.in_controlled_shutdown\n",
        "",
        OF_VIEW,
    ),
    Mutant(
        "transactions: what hangs is past its own time-out, too",
        CLI,
        "        if one.is_timed_out(now_ms) and now_ms - one.started_ms > minutes * _MINUTE_MS\n",
        "        if one.is_ongoing and now_ms - one.started_ms >= minutes\n",
        OF_CLI,
    ),
)
