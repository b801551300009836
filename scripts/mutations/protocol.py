"""What clients are told: of topics by their ids, of brokers, of leaders."""

from scripts.mutations.mutant import Mutant

SESSIONS, FETCH = "sparklog_server/fetch/sessions.py", "sparklog_server/api/fetch.py"
OF_IDS = "tests/server/api/test_topic_ids.py"
NODES, OF_NODES = "sparklog_server/api/nodes.py", "tests/server/api/test_nodes.py"
LISTING, OF_LISTING = "sparklog_server/api/topic_listing.py", "tests/server/api/test_topic_listing.py"
UNREGISTERING = "sparklog_server/cluster/elections.py"
OF_UNREGISTERING = "tests/server/cluster/test_unregistering.py"
PAGES = "sparklog_server/api/describe_topic_partitions.py"
OF_PAGES = "tests/server/api/test_describe_topic_partitions.py"

OF_HELD_ANSWERS = "tests/server/dispatch/test_held_answers.py"
OF_WAITING_ANSWERS = "tests/server/dispatch/test_waiting_answers.py"

MUTANTS = (
    Mutant(
        "protocol: a fetch session does not change from names to ids",
        SESSIONS,
        "        if session.uses_topic_ids is not uses_topic_ids:\n",
        "        if False:\n",
        "tests/server/fetch/test_sessions.py",
    ),
    Mutant(
        "protocol: who says in a tagged field that it is a broker is refused, too",
        FETCH,
        "    return int(request.replica_id if state is None else state.replica_id)\n",
        "    return int(request.replica_id if state is None else CONSUMER)\n",
        OF_IDS,
    ),
    Mutant(
        "protocol: records for a topic that was deleted go nowhere",
        "sparklog_server/api/produce.py",
        "    found = image.topic_by_id.get(topic_id_text(topic.topic_id))\n",
        "    found = next(iter(image.topics.values()), None)\n",
        OF_IDS,
    ),
    Mutant(
        "protocol: what was fetched by id is of the topic of this id",
        "sparklog_server/fetch/service.py",
        "    topic = image.topic_by_id.get(topic_id) if topic_id else image.topics.get(fetch.topic)\n",
        "    topic = next(iter(image.topics.values())) if topic_id else image.topics.get(fetch.topic)\n",
        OF_IDS,
    ),
    Mutant(
        "protocol: clients are not sent to brokers that are fenced",
        NODES,
        "        if broker.is_fenced is fenced\n",
        "",
        OF_NODES,
    ),
    Mutant(
        "protocol: what was told of leaders is forgotten when a broker is fenced",
        LISTING,
        "before is not None and before._brokers == image.brokers and",
        "before is not None and",
        OF_LISTING,
    ),
    Mutant(
        "protocol: a page of partitions is bounded, whatever is asked for",
        PAGES,
        "    limit = max(1, min(request.response_partition_limit, MAX_PARTITIONS))\n",
        "    limit = max(1, request.response_partition_limit)\n",
        OF_PAGES,
    ),
    Mutant(
        "protocol: the next page begins where this one ends",
        PAGES,
        "                self.next = name, end\n",
        "                self.next = name, end - 1\n",
        OF_PAGES,
    ),
    Mutant(
        "protocol: partitions of a broker that is forgotten are led again",
        UNREGISTERING,
        "        if partition.leader == NO_NODE and (chosen",
        "        if False and (chosen",
        OF_UNREGISTERING,
    ),
    Mutant(
        "protocol: a reassignment is not called off where that would leave nobody to lead",
        "sparklog_server/admin/leaders.py",
        "            if not plan_reassignments(image, {key: None}, controller_epoch=controller_epoch):\n",
        "            if False:\n",
        "tests/server/admin/test_reassignments.py",
    ),
    Mutant(
        "protocol: a preferred leader that is away is not elected",
        "sparklog_server/admin/leaders.py",
        "            leader = wanted if wanted in usable else NO_NODE\n",
        "            leader = wanted\n",
        "tests/server/admin/test_leader_elections.py",
    ),
    Mutant(
        "protocol: nothing is assigned in the name of a controller that there is not",
        "sparklog_server/admin/assignments.py",
        "        if image.controller.node_id == NO_NODE:  # in",
        "        if False:  # in",
        "tests/server/admin/test_assignments.py",
    ),
    Mutant(
        "protocol: replicas of a broker that is forgotten are given to others in the same commit",
        "sparklog_server/cluster/elections.py",
        "            return ()  # what is there already is assigned anew\n",
        "            pass\n",
        "tests/server/api/test_answers_of_a_cluster.py",
    ),
    Mutant(
        "broker: a large answer counts until it is sent",
        "sparklog_server/dispatch/dispatcher.py",
        "                await context.answer.hold_made(held_bytes(chunks))\n",
        "",
        OF_HELD_ANSWERS,
    ),
    Mutant(
        "broker: what is told of the settings of new topics counts before it is made",
        "sparklog_server/api/create_topics.py",
        "    await context.answer.hold(_size_of(outcomes, context.types))\n",
        "",
        OF_HELD_ANSWERS,
    ),
    Mutant(
        "broker: what is told of topics counts before it is made",
        "sparklog_server/api/metadata.py",
        "    await context.answer.hold(size)\n",
        "",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: Metadata that had to wait tells of the image of then",
        "sparklog_server/api/metadata.py",
        "    await context.answer.hold(size)\n"
        "    # What is told is of one image, and not of one from before a wait for room.\n"
        "    image, brokers = services.root.image,",
        "    old = services.root.image\n    await context.answer.hold(size)\n    image, brokers = old,",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: who waits for room for its answer gives its slot back",
        "sparklog_server/dispatch/dispatcher.py",
        "HeldAnswer(self.answers, origin.peer_host, slot.give_back)",
        "HeldAnswer(self.answers, origin.peer_host)",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: a slot is given back once",
        "sparklog_server/dispatch/dispatcher.py",
        "            self._is_held = False\n",
        "",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: what is encoded already counts, if nothing else counts it",
        "sparklog_server/dispatch/dispatcher.py",
        "isinstance(answer, Response) and answer.release is not None",
        "isinstance(answer, Response)",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: an answer that was counted as less counts as it is",
        "sparklog_server/protocol/wire.py",
        "            self.raise_to(size)\n",
        "            pass\n",
        OF_WAITING_ANSWERS,
    ),
    Mutant(
        "broker: names, and messages that quote them, count in the answer of CreateTopics",
        "sparklog_server/api/create_topics.py",
        '_TOPIC_BYTES + len(name) + len(one.message or "")',
        "_TOPIC_BYTES",
        OF_HELD_ANSWERS,
    ),
    Mutant(
        "broker: what waits for room keeps its bytes counted",
        "sparklog_server/dispatch/dispatcher.py",
        "                del answer\n",
        "                del answer\n                self._leave_queue()\n",
        OF_WAITING_ANSWERS,
    ),
)
