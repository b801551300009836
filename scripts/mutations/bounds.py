"""What one request may cost: answers are counted before they are made, and made with turns for others."""

from scripts.mutations.mutant import Mutant

METADATA, OF_METADATA = "sparklog_server/api/metadata.py", "tests/server/api/test_metadata.py"
CONFIGS = "sparklog_server/api/describe_configs.py"
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
        METADATA,
        "                await self._pace.made(len(topic.partitions) // _PARTITIONS_A_PIECE)\n",
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
)
