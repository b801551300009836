"""The command line: what it prints, and what it asks before it destroys."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "command line: a name cannot forge a row of a table",
        "sparklog/cli/output.py",
        "    return plain(_words(value))\n",
        "    return _words(value)\n",
        "tests/cli/test_plain_text.py -k forge",
    ),
    Mutant(
        "command line: a name cannot forge a line of a result",
        "sparklog/cli/output.py",
        '"\\t".join(map(plain, fields))',
        '"\\t".join(fields)',
        "tests/cli/test_plain_text.py",
    ),
    Mutant(
        "command line: internal topics are deleted only where that is said",
        "sparklog/cli/topics.py",
        "    if not internal:\n        refuse_internal(log, wanted)\n",
        "",
        "tests/cli/test_topic_deletion.py -k internal",
    ),
    Mutant(
        "command line: a pattern deletes nothing that nobody has confirmed",
        "sparklog/cli/topic_deletion.py",
        "    elif by_pattern:\n",
        "    elif False:\n",
        "tests/cli/test_topic_deletion.py -k pattern",
    ),
    Mutant(
        "command line: lines are not written among groups' offsets",
        "sparklog/cli/produce.py",
        "    refuse_internal(topic)  # before the first line, and before a root is made\n",
        "",
        "tests/cli/test_topic_deletion.py -k lines",
    ),
    Mutant(
        "client: __consumer_offsets keeps its number of partitions, by which groups are found",
        "sparklog/client/admin.py",
        "    validate_partitions(image, name, total)\n",
        "",
        "tests/client/test_offsets_topic.py",
    ),
    Mutant(
        "client: __consumer_offsets loses records by compaction only",
        "sparklog/client/admin.py",
        "        validate_settings(image, name, configs)\n",
        "",
        "tests/client/test_offsets_topic.py",
    ),
    Mutant(
        "admin: __consumer_offsets loses records by compaction only",
        "sparklog_server/admin/config_changes.py",
        "    validate_settings(image, name, changes)\n",
        "",
        "tests/server/api/test_incremental_alter_configs.py",
    ),
    Mutant(
        "admin: __consumer_offsets keeps its number of partitions",
        "sparklog_server/admin/partitions.py",
        "    if topic.name == OFFSETS_TOPIC:\n",
        "    if False:\n",
        "tests/server/api/test_create_partitions.py",
    ),
    Mutant(
        "command line: an empty --root does not mean the environment's",
        "sparklog/cli/settings.py",
        '    if value == "":  # a variable',
        "    if False:  # a variable",
        "tests/cli/test_scripts.py -k empty",
    ),
    Mutant(
        "a signal wakes who waits for long",
        "sparklog/cli/stopping.py",
        '            os.write(self._writer, b"\\0")\n',
        "            pass\n",
        "tests/cli/test_stopping.py",
    ),
    Mutant(
        "command line: an option of one value is refused when it is given twice",
        "sparklog/cli/group.py",
        "            if twice is not None:\n",
        "            if False:\n",
        "tests/cli/test_given_twice.py",
    ),
    Mutant(
        "command line: a capital M is no minute",
        "sparklog/cli/durations.py",
        '    if unit == "M":',
        "    if False:",
        "tests/cli/test_given_twice.py -k capital",
    ),
    Mutant(
        "command line: what a group has missed is told",
        "sparklog/cli/cursors.py",
        "committed is not None and committed < next_offset:\n",
        "committed is None:\n",
        "tests/cli/test_offsets_groups.py -k missed",
    ),
)
