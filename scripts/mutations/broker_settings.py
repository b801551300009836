"""Settings of running brokers: who may change what, and what is in force."""

from scripts.mutations.mutant import Mutant

CHANGING, OF_CHANGING = "sparklog_server/admin/broker_configs.py", "tests/server/api/test_broker_configs.py"
IN_FORCE, OF_IN_FORCE = "sparklog_server/settings/in_force.py", "tests/server/settings/test_updating.py"
TAKING_UP = "sparklog_server/root/settings_in_force.py"
OF_TAKING_UP = "tests/server/root/test_settings_in_force.py"

MUTANTS = (
    Mutant(
        "settings of brokers: what all share is not changed for one",
        CHANGING,
        "        if update_of(name) is Update.CLUSTER_WIDE:\n",
        "        if False:\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: what is read when they start is refused",
        CHANGING,
        "    if name in SETTINGS:\n",
        "    if False:\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: a value is checked before it is stored",
        CHANGING,
        "    config.with_values({name: value for name, value in given.items() if name in DYNAMIC})\n",
        "",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: and a topic's default of one broker, too",
        CHANGING,
        "    validate_topic_configs(defaults)\n",
        "",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: texts have an end",
        CHANGING,
        "        if len(value) > MAX_VALUE_LENGTH:\n",
        "        if False:\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: threads do not become ten times as many by a slip",
        CHANGING,
        "    if after > 2 * before:\n",
        "    if False:\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: nor a tenth",
        CHANGING,
        "    if after < before // 2:\n",
        "    if False:\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: clients do not delete what the root's owner agreed to",
        CHANGING,
        "    stored = {ROOT_KEYS[name]: value for name, value in changes.items() if name in ROOT_KEYS}\n",
        "    stored = {ROOT_KEYS.get(name, name): value for name, value in changes.items()}\n",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: another's are refused",
        CHANGING,
        "    if name and name != str(node_id):\n",
        "    if False:\n",
        "tests/server/api/test_describe_configs.py",
    ),
    Mutant(
        "settings of brokers: its own win over those of all",
        IN_FORCE,
        "    for owner in (None, node_id):\n",
        "    for owner in (node_id, None):\n",
        OF_IN_FORCE,
    ),
    Mutant(
        "settings of brokers: only those that can change count",
        IN_FORCE,
        "            if name not in DYNAMIC:\n",
        "            if False:\n",
        OF_IN_FORCE,
    ),
    Mutant(
        "settings of brokers: what cannot be keeps no broker from starting",
        IN_FORCE,
        "            except SparklogError as error:\n",
        "            except ZeroDivisionError as error:\n",
        OF_IN_FORCE,
    ),
    Mutant(
        "settings of brokers: one that starts has them",
        "sparklog_server/broker.py",
        "        self._take_up(self.settings.current)\n",
        "",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: one that runs takes them up",
        TAKING_UP,
        "            callback(self.current)\n",
        "            pass\n",
        OF_TAKING_UP,
    ),
    Mutant(
        "settings of brokers: who waits for room hears of other limits",
        "sparklog_server/network/limits.py",
        "        self._overrides = overrides\n        self._room.set()\n\n    async",
        "        self._overrides = overrides\n\n    async",
        "tests/server/network/test_limits.py",
    ),
    Mutant(
        "settings of brokers: maintenance does not sleep on for what was its interval",
        "sparklog_server/maintenance/service.py",
        "        self._changed.set()\n",
        "",
        "tests/server/maintenance/test_service.py",
    ),
    Mutant(
        "settings of brokers: and a stop is heard also while settings change",
        "sparklog_server/maintenance/service.py",
        "            async with asyncio.timeout(seconds):\n                await self._changed.wait()\n",
        "            await asyncio.wait_for(self._changed.wait(), seconds)\n",
        "tests/server/maintenance/test_service.py",
    ),
    Mutant(
        "settings of brokers: what the threads before had not begun is still done",
        "sparklog_server/root/live_root.py",
        "        before.shutdown(wait=False)\n",
        "        before.shutdown(wait=False, cancel_futures=True)\n",
        OF_TAKING_UP,
    ),
    Mutant(
        "settings of brokers: a broker has one name",
        CHANGING,
        "name != str(node_id)",
        "int(name) != node_id",
        OF_CHANGING,
    ),
    Mutant(
        "settings of brokers: a limit of many digits is none",
        "sparklog_server/settings/network.py",
        " and len(limit) <= len(str(INT_MAX))",
        "",
        OF_CHANGING,
    ),
    Mutant(
        "a week of retention that was asked for is not taken for that of Kafka's own file",
        "sparklog_server/settings/sources.py",
        " and (key not in RETENTION_UNITS or settings is of_file)",
        "",
        "tests/server/settings/test_sources.py",
    ),
    Mutant(
        "appending to a list that is empty begins with nothing",
        "sparklog_server/admin/config_increments.py",
        "if own is None else own",
        "if not own else own",
        "tests/server/api/test_incremental_alter_configs.py",
    ),
    Mutant(
        "no setting named is all settings",
        "sparklog_server/api/describe_configs.py",
        "if not wanted or",
        "if resource.configuration_keys is None or",
        "tests/server/api/test_describe_configs.py",
    ),
)
