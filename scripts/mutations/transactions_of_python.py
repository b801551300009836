"""Transactions of Python: who may commit, and what is found out when an answer is lost."""

from scripts.mutations.mutant import Mutant

_PLANS = "sparklog/client/transaction.py"
_LIFE = "sparklog/client/transaction.py"
_RIGHT = "tests/client/test_transactions.py"
_WRONG = "tests/client/test_transactions_going_wrong.py"

MUTANTS = (
    Mutant(
        "transactions of Python: a commit that was tried is looked for before it is refused",
        _PLANS,
        "    if owner.has_tried and known is not None and _has_followed(known, owner):\n",
        "    if False and known is not None and _has_followed(known, owner):\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: a clone is not told that it has committed what another one did",
        _PLANS,
        "    if owner.has_tried and known is not None and _has_followed(known, owner):\n",
        "    if known is not None and _has_followed(known, owner):\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: a clone does not go on behind the other one",
        _PLANS,
        "    if goes_on or (not is_settled and _has_followed(known, owner)):\n",
        "    if goes_on or _has_followed(known, owner):\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: what a clone has staged is not committed",
        _PLANS,
        "    if known is None or not is_own or known.staged_extents > owner.staged_extents:\n",
        "    if known is None or not is_own:\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: staging that was tried is looked for before it is tried again",
        _PLANS,
        "    if again and was_staged(image, drafts[-1]):\n",
        "    if False and was_staged(image, drafts[-1]):\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: who finds its transaction open behind an unknown end aborts it",
        _PLANS,
        "    if known.is_of(*owner.producer) and known.is_ongoing:\n        producer_id",
        "    if False:\n        producer_id",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: a version is committed once",
        _PLANS,
        "    if newest == version.version:\n        return None\n",
        "    if newest == version.version:\n        newest = None\n        return plan_writer_txn(\n"
        "            image, version.application, version.version + 1, topic_ids\n        )\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: a forked child does nothing",
        _LIFE,
        "        if self._pid != os.getpid():\n            raise InvalidRequestError(\n",
        "        if False:\n            raise InvalidRequestError(\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: who was fenced does not take the id back",
        _LIFE,
        "            self._fenced = error\n",
        "            del error\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: an exception aborts",
        _LIFE,
        "            if error is None:\n                self.commit()\n",
        "            if error is None or self._pid == os.getpid():\n                self.commit()\n",
        _RIGHT,
    ),
    Mutant(
        "transactions of Python: after an append that failed nothing is committed",
        _LIFE,
        "            self._failure = error\n            raise\n\n    # --- what",
        "            raise\n\n    # --- what",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: rows that are written again have the sequences that they had",
        "sparklog/client/appender.py",
        "        self._sequencer.go_back(self._sequences)\n",
        "",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: sequences go on from batch to batch",
        "sparklog/client/appender.py",
        "(sequence + draft.record_count - before) % SEQUENCES",
        "(sequence + draft.record_count) % SEQUENCES",
        _RIGHT,
    ),
    Mutant(
        "staging: the first batch of a transaction is new, whomever the partition has forgotten",
        "sparklog/metadata/model/staging.py",
        "    if known is None and part.opens_ms != NEVER_OPENS and draft.base_sequence == 0:\n",
        "    if False:\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: stored batches say that they are transactional",
        "sparklog/client/appender.py",
        "            is_transactional=True,\n",
        "",
        _RIGHT,
    ),
    Mutant(
        "transactions of Python: topics that come to exist meanwhile can be appended to",
        "sparklog/client/appender.py",
        "        if self._appender is not None and not self._appender.topics.knows(topic):\n",
        "        if False:\n",
        _WRONG,
    ),
    Mutant(
        "transactions of Python: an interrupt at the edge of `with` leaves none open",
        "sparklog/client/transaction.py",
        "            if self._rows is not None and self._pid == os.getpid():\n",
        "            if False:\n",
        "tests/client/test_transactions_interrupted.py",
    ),
)
