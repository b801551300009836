"""What one request may cost: answers are counted before they are made, and made with turns for others."""

from scripts.mutations.mutant import Mutant

METADATA, OF_METADATA = "sparklog_server/api/metadata.py", "tests/server/api/test_metadata.py"
CONFIGS = "sparklog_server/api/describe_configs.py"
LOG_DIRS, OF_LOG_DIRS = "sparklog_server/api/log_dir_listing.py", "tests/server/api/test_describe_log_dirs.py"
LISTING, OF_LISTING = "sparklog_server/api/topic_listing.py", "tests/server/api/test_topic_listing.py"
OF_COSTS = "tests/server/api/test_costs.py"

MUTANTS = (
    Mutant(
        "bounds: a topic by its id is told once, whatever names stand beside",
        METADATA,
        "    return list({_topic_id(one) or one.name: one for one in asked}.values())\n",
        "    return list(dict.fromkeys(asked))\n",
        OF_METADATA,
    ),
    Mutant(
        "bounds: topics that are asked for have a limit",
        METADATA,
        "        if context.answer.fits(of_one):\n",
        "        if True:\n",
        OF_METADATA,
    ),
    Mutant(
        "bounds: others have turns between topics of many partitions",
        LISTING,
        "            await pace.made(len(some) // _A_PIECE)\n",
        "",
        OF_METADATA,
    ),
    Mutant(
        "bounds: what lies below the settings of topics is found once",
        CONFIGS,
        "        if self._of_topics is None:\n",
        "        if True:\n",
        f"{OF_COSTS} -k settings_of_topics",
    ),
    Mutant(
        "bounds: settings that topics have in common are described once",
        CONFIGS,
        "            if key not in self._of_values:\n",
        "            if True:\n",
        f"{OF_COSTS} -k settings_of_topics",
    ),
    Mutant(
        "bounds: settings that new topics have in common are described once",
        "sparklog_server/api/create_topics.py",
        "        if key not in self._of_values:\n",
        "        if True:\n",
        f"{OF_COSTS} -k settings_of_new_topics",
    ),
    Mutant(
        "bounds: the stored bytes of all partitions have a limit",
        "sparklog_server/api/describe_log_dirs.py",
        "    if not context.answer.fits(",
        "    if context.answer is None and not context.answer.fits(",
        f"{OF_LOG_DIRS} -k too_large",
    ),
    Mutant(
        "bounds: the stored bytes of all partitions are told anew after a commit only",
        LOG_DIRS,
        "            if flexible not in self._kept:\n",
        "            if True:\n",
        f"{OF_LOG_DIRS} -k anew",
    ),
    Mutant(
        "bounds: the stored bytes of all partitions are those of the newest image",
        LOG_DIRS,
        "            if image.commit_uuid != self._commit:\n",
        "            if False:\n",
        f"{OF_LOG_DIRS} -k anew",
    ),
    Mutant(
        "bounds: the stored bytes of all partitions are made by one, for whom others wait",
        LOG_DIRS,
        "        async with self._lock:\n",
        "        if True:\n",
        f"{OF_LOG_DIRS} -k waits_for_it",
    ),
    Mutant(
        "bounds: others have turns while stored bytes are added up",
        LOG_DIRS,
        "            await pace.made(1 + len(some) // _A_PIECE)\n",
        "",
        f"{OF_LOG_DIRS} -k turns",
    ),
    Mutant(
        "bounds: the bytes of a partition are added up once",
        "sparklog/client/admin.py",
        "        extents.stored_bytes = sum(",
        "        return sum(",
        f"{OF_LOG_DIRS} -k anew",
    ),
    Mutant(
        "bounds: partitions are told alike in the versions that share them",
        LISTING,
        "        like = partitions_like(version)\n",
        "        like = version\n",
        OF_LISTING,
    ),
    Mutant(
        "bounds: topics are told alike in the versions that share them",
        LISTING,
        "        like = topics_like(version)\n",
        "        like = version\n",
        OF_LISTING,
    ),
    Mutant(
        "bounds: the partitions that are kept are bounded",
        LISTING,
        "if self._partition_bytes + _KEPT_BYTES + len(made) <= MAX_PARTITION_BYTES:",
        "if True:",
        OF_LISTING,
    ),
    Mutant(
        "bounds: the answers that are kept are bounded",
        LISTING,
        "            self._kept.popitem(last=False)\n",
        "            break\n",
        OF_LISTING,
    ),
    Mutant(
        "bounds: what is told of all topics is made by one, for whom others wait",
        LISTING,
        "        async with self._lock:\n",
        "        if True:\n",
        OF_LISTING,
    ),
    Mutant(
        "bounds: rows that are led like others have numbers of their own",
        "sparklog_server/protocol/metadata_response.py",
        "np.arange(first, first + count",
        "np.arange(0, count",
        "tests/server/protocol/test_metadata_response.py",
    ),
    Mutant(
        "bounds: names count as the bytes that they take",
        "sparklog_server/protocol/answers.py",
        "    return len(text) if text.isascii() else len(text.encode())\n",
        "    return len(text)\n",
        "tests/server/api/test_list_transactions.py -k bytes",
    ),
    Mutant(
        "bounds: topics of transactions count beside their partitions",
        "sparklog_server/api/describe_transactions.py",
        "            if context.answer.fits(_size_of_topics(one, image)):\n",
        "            if True:\n",
        "tests/server/api/test_describe_transactions.py -k bytes",
    ),
    Mutant(
        "bounds: what comes of the elements of a request that waits for a moment counts",
        "sparklog_server/dispatch/dispatcher.py",
        "        if entry.counts or not entry.waits:\n",
        "        if not entry.waits:\n",
        "tests/server/dispatch/test_work.py -k thousands",
    ),
    Mutant(
        "bounds: FindCoordinator is such a request",
        "sparklog_server/api/find_coordinator.py",
        "waits=True, counts=True)",
        "waits=True)",
        "tests/server/api/test_registry.py",
    ),
    Mutant(
        "bounds: which brokers there are is found once for many transactional ids",
        "sparklog/client/transaction_view.py",
        "    return functools.partial(_one_of, _nodes(image))\n",
        "    return lambda name: _one_of(_nodes(image), name)\n",
        "tests/client/test_transaction_view.py -k found_once",
    ),
    Mutant(
        "bounds: a new transactional id has a length in bytes",
        "sparklog/metadata/model/transaction_values.py",
        "    if size <= MAX_TRANSACTIONAL_ID_LENGTH:\n",
        "    if True:\n",
        "tests/metadata/test_transactions.py -k bytes",
    ),
    Mutant(
        "bounds: a transactional id that was begun before goes on",
        "sparklog/metadata/model/transactions.py",
        "    if reason is None and is_new:\n",
        "    if reason is None:\n",
        "tests/metadata/test_transactions.py -k before_goes_on",
    ),
)
