"""Applied once: versions of writers, sequences of producers, transactions."""

from scripts.mutants.mutant import Mutant, edit, patch

OF_TRANSACTIONS = (
    "tests/metadata/test_transactions.py tests/metadata/test_staging.py "
    "tests/metadata/test_transactions_ending.py"
)

MUTANTS: tuple[Mutant, ...] = (
    # One (application, version) for each topic.
    edit(
        "A version is applied again: a repeated micro-batch doubles its records.",
        "sparklog/metadata/model/writers.py",
        "if found is None:\n            left.append(topic_id)\n        elif",
        "left.append(topic_id)\n        if found is not None and",
        "tests/client/test_publish.py",
    ),
    edit(
        "A version with other content counts as the same: records of the second are dropped.",
        "sparklog/metadata/model/writers.py",
        "content != found.content",
        "content is None",
        "tests/metadata/test_writers_txns.py",
    ),
    edit(
        "A write that one topic is past and another lacks is applied in part.",
        "sparklog/metadata/model/writers.py",
        "if left and later is not None:",
        "if False:",
        "tests/metadata/test_writers_txns.py",
    ),
    # One (producer, epoch, sequence) for each partition.
    edit(
        "A producer that the image forgot counts as new: its repetition is appended twice.",
        "sparklog/metadata/model/sequences.py",
        "extent = state.extents.last_of_producer(producer_id)",
        "extent = None",
        "tests/metadata/test_extents_plan_and_apply.py",
    ),
    patch(
        "Merging forgets the producers of what it removes: repetitions are appended twice.",
        "sparklog.metadata.model.extents.remember_merged",
        "tests/maintenance/test_merging.py",
        returns={},
    ),
    edit(
        "A merged batch that the log start cuts is forgotten: its repetition is appended twice.",
        "sparklog/metadata/model/sequences.py",
        "if batch.base_offset + batch.record_count > offset)",
        "if batch.base_offset > offset)",
        "tests/maintenance/test_merging_forgotten_producers.py",
    ),
    edit(
        "A producer that wrote at the mark is forgotten: off by one offset.",
        "sparklog/metadata/model/sequences.py",
        "if known.last_offset >= end or producer_id in staging",
        "if known.last_offset > end or producer_id in staging",
        "tests/metadata/test_sequences_expiring.py",
    ),
    # Transactions: whole, once, in the epoch of the producer, or never.
    edit(
        "An abort publishes what was staged.",
        "sparklog/metadata/model/transactions.py",
        "if action.committed:\n        for extents",
        "if True:\n        for extents",
        OF_TRANSACTIONS,
    ),
    edit(
        "InitProducerId leaves the open transaction of the process before: both are published together.",
        "sparklog/metadata/model/transactions.py",
        "draft.transactions.clear(known),\n            producer_id",
        "known,\n            producer_id",
        OF_TRANSACTIONS,
    ),
    edit(
        "An action applies in an epoch that is over: a fenced process goes on.",
        "sparklog/metadata/model/transactions.py",
        "not known.is_of(producer_id, epoch)",
        "known.producer_id != producer_id",
        OF_TRANSACTIONS,
    ),
    edit(
        "A batch of an epoch that is over is staged: a zombie's records are committed.",
        "sparklog/metadata/model/staging.py",
        "if found.producer_epoch != extent.producer_epoch:",
        "if False:",
        OF_TRANSACTIONS,
    ),
    edit(
        "Sequences do not count while they are staged: a repetition is staged twice.",
        "sparklog/metadata/model/staging.py",
        "remember(producers, extent.producer_id, state, partition.state.merged_batches, staging)",
        "pass",
        OF_TRANSACTIONS,
    ),
    edit(
        "Any repetition counts as staged: a batch that was lost is acknowledged.",
        "sparklog/metadata/model/staging.py",
        "return appended_offset(state, *batch, draft.record_count) is not None",
        "return True",
        OF_TRANSACTIONS,
    ),
    edit(
        "An end does not say which transaction it means: a late one ends the next.",
        "sparklog/metadata/model/transactions.py",
        "if action.number not in (NO_NUMBER, known.number):",
        "if False:",
        OF_TRANSACTIONS,
    ),
    edit(
        "A second end applies: a committed transaction is aborted.",
        "sparklog/metadata/model/transactions.py",
        "if not known.is_ongoing and (action.committed or not raises):",
        "if False:",
        OF_TRANSACTIONS,
    ),
    edit(
        "A time-out keeps the epoch: a late commit succeeds after the abort.",
        "sparklog/metadata/model/transactions.py",
        "next_id, next_epoch = next_producer(known, fresh)",
        "next_id, next_epoch = NO_ID, NO_PRODUCER_EPOCH",
        OF_TRANSACTIONS,
    ),
    edit(
        "What was staged so long ago that a sweep may have removed it is committed.",
        "sparklog/metadata/model/staging.py",
        "refuse_expired(draft, segments)",
        "pass",
        OF_TRANSACTIONS,
    ),
    edit(
        "A staged extent is no reference: vacuum removes it before it is committed.",
        "sparklog/metadata/model/image.py",
        "return self.transactions.refers_to(segment) or any(",
        "return any(",
        OF_TRANSACTIONS,
    ),
    edit(
        "Committed extents keep the offsets of their segment: readers get wrong offsets.",
        "sparklog/metadata/model/extent_list.py",
        "for column in (_BASE_OFFSET, _OFFSET_DELTA):",
        "for column in (_BASE_OFFSET,):",
        OF_TRANSACTIONS,
    ),
    # Transactions of Python.
    edit(
        "A commit without an answer is repeated without a look: an applied one is reported as failed.",
        "sparklog/client/transaction.py",
        "if owner.has_tried and known is not None and _has_followed(known, owner):",
        "if False and known is not None and _has_followed(known, owner):",
        "tests/client/test_transaction_failures.py",
    ),
    edit(
        "Staging without an answer is repeated: rows are staged twice.",
        "sparklog/client/transaction.py",
        "if again and was_staged(image, drafts[-1]):",
        "if False:",
        "tests/client/test_transaction_failures.py",
    ),
    edit(
        "A forked child uses the transaction of its parent: both stage the same sequences.",
        "sparklog/client/transaction.py",
        "if self._pid != os.getpid():\n            raise InvalidRequestError(",
        "if False:\n            raise InvalidRequestError(",
        "tests/client/test_transaction_failures.py",
    ),
    edit(
        "A fenced producer begins again and fences the one that replaced it.",
        "sparklog/client/transaction.py",
        "self._fenced = error",
        "del error",
        "tests/client/test_transaction_failures.py",
    ),
    edit(
        "A transaction commits after an append of it has failed: a part of its rows is lost.",
        "sparklog/client/transaction.py",
        "self._failure = error\n            raise\n\n    # --- what",
        "raise\n\n    # --- what",
        "tests/client/test_transaction_failures.py",
    ),
)
