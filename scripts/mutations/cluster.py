"""Several brokers over one root."""

from scripts.mutations.mutant import Mutant

MODEL = "sparklog/metadata/model"
REGISTRY, LEADING, ACTING = f"{MODEL}/registry.py", f"{MODEL}/registry.py", f"{MODEL}/registry.py"
CONTROLLER, DRAFT, EXTENTS = f"{MODEL}/registry.py", f"{MODEL}/draft.py", f"{MODEL}/extents.py"
OBSERVER = "sparklog_server/cluster/liveness.py"
TESTS = "tests/metadata/test_registry.py tests/metadata/test_leading.py tests/metadata/test_acting.py"
OF_OBSERVER = "tests/server/cluster/test_observer.py"
SELECTORS, ELECTIONS = "sparklog_server/cluster/elections.py", "sparklog_server/cluster/elections.py"
OF_ELECTIONS = "tests/server/cluster/test_elections.py"
CLUSTER = "sparklog_server/cluster"
DUTIES, OF_DUTIES = f"{CLUSTER}/elections.py", "tests/server/cluster/test_duties.py"
OF_BROKERS = "tests/server/cluster/test_several_brokers.py"
OF_TAKEN = "tests/server/cluster/test_taken_node_ids.py"
OF_STATES = "tests/server/cluster/test_state_log.py"
REASSIGNMENT = "sparklog_server/cluster/elections.py"
OF_REASSIGNMENT = "tests/server/cluster/test_reassignment.py"

MUTANTS = (
    Mutant(
        "brokers: a running broker's node id is refused",
        REGISTRY,
        "    if known is not None and not known.is_fenced:\n        raise ActionRefusedError(\n",
        "    if False:\n        raise ActionRefusedError(\n",
        TESTS,
    ),
    Mutant(
        "brokers: no two registrations have one epoch",
        REGISTRY,
        "    if action.broker_epoch != draft.commit:\n",
        "    if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: a fence ends leading in the same commit",
        REGISTRY,
        "        partition.lead(_leaderless(before))\n",
        "        pass\n",
        TESTS,
    ),
    Mutant(
        "brokers: a leadership that ends by a fence is an epoch of nobody's",
        REGISTRY,
        "NO_NODE, before.leader_epoch + 1, before.adding",
        "NO_NODE, before.leader_epoch, before.adding",
        TESTS,
    ),
    Mutant(
        "brokers: a fence ends being controller",
        REGISTRY,
        "    if draft.controller.node_id == broker.node_id:\n",
        "    if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: a fence is of one registration",
        REGISTRY,
        "    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:\n"
        "        raise ActionRefused",
        "    if broker is None or broker.is_fenced:\n        raise ActionRefused",
        TESTS,
    ),
    Mutant(
        "brokers: an election is of the epoch after the last one",
        CONTROLLER,
        "    if action.controller_epoch != expected:\n",
        "    if action.controller_epoch < expected - 1:\n",
        TESTS,
    ),
    Mutant(
        "brokers: a controller's action applies in its own epoch",
        CONTROLLER,
        "    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:\n"
        "        raise ActionRefused",
        "    if now.node_id == NO_NODE:\n        raise ActionRefused",
        TESTS,
    ),
    Mutant(
        "brokers: a controller that is fenced does nothing",
        CONTROLLER,
        "    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:\n"
        "        raise ActionRefused",
        "    if controller_epoch != now.controller_epoch:\n        raise ActionRefused",
        TESTS,
    ),
    Mutant(
        "brokers: leader epochs rise by one",
        LEADING,
        "        if epoch != before.leader_epoch + 1:\n",
        "        if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: a leader is not fenced",
        LEADING,
        "        if broker is None or broker.is_fenced:\n",
        "        if broker is None:\n",
        TESTS,
    ),
    Mutant(
        "brokers: a leader is one of the replicas",
        LEADING,
        "        if leader != NO_NODE and leader not in before.replicas:\n",
        "        if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: an assignment keeps the leader",
        LEADING,
        "        if before.leader != NO_NODE and before.leader not in now:\n",
        "        if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: what a broker appends is of partitions that it leads",
        EXTENTS,
        "    if draft.acting is not None:\n",
        "    if False:\n",
        TESTS,
    ),
    Mutant(
        "brokers: ... in the epoch in which it accepted it",
        DRAFT,
        "(now.leadership.leader, now.leadership.leader_epoch) != (self.node_id, epoch)",
        "now.leadership.leader != self.node_id",
        TESTS,
    ),
    Mutant(
        "brokers: ... and of whom it accepted it",
        DRAFT,
        "(now.leadership.leader, now.leadership.leader_epoch) != (self.node_id, epoch)",
        "now.leadership.leader_epoch != epoch",
        TESTS,
    ),
    Mutant(
        "brokers: a fenced registration publishes nothing",
        ACTING,
        "    require_broker(draft, action.node_id, action.broker_epoch)\n",
        "",
        TESTS,
    ),
    Mutant(
        "brokers: a broker's actions end where they say",
        f"{MODEL}/actions.py",
        "                draft.acting = None\n",
        "                pass\n",
        TESTS,
    ),
    Mutant(
        "brokers: a lost part is left out by its epoch",
        ACTING,
        "(leadership.leader, leadership.leader_epoch) == (\n",
        "(leadership.leader, part.leader_epoch) == (\n",
        TESTS + " tests/property/test_cluster_believers.py",
    ),
    Mutant(
        "brokers: a late sign of life is none",
        OBSERVER,
        "            if beat > one.newest:\n",
        "            if beat != one.newest:\n",
        OF_OBSERVER,
    ),
    Mutant(
        "brokers: looks count that are an interval apart",
        OBSERVER,
        "        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:\n",
        "        if False:\n",
        OF_OBSERVER,
    ),
    Mutant(
        "brokers: a registration is observed anew",
        OBSERVER,
        "            if one is None or one.broker_epoch != broker.broker_epoch:\n",
        "            if one is None:\n",
        OF_OBSERVER,
    ),
    Mutant(
        "brokers: who is chosen to lead can",
        SELECTORS,
        "for node_id in replicas if node_id in usable), NO_NODE)",
        "for node_id in replicas), NO_NODE)",
        OF_ELECTIONS,
    ),
    Mutant(
        "brokers: who is about to stop is given nothing to lead",
        SELECTORS,
        "        if not broker.is_fenced and not broker.in_controlled_shutdown\n",
        "        if not broker.is_fenced\n",
        OF_ELECTIONS,
    ),
    Mutant(
        "brokers: who is about to stop keeps what nobody else can lead",
        SELECTORS,
        "    chosen = _first(partition.replicas, usable)\n"
        "    return partition.leader if chosen == NO_NODE else chosen\n",
        "    return _first(partition.replicas, usable)\n",
        OF_ELECTIONS,
    ),
    Mutant(
        "brokers: no rack has two replicas before all have one",
        "sparklog/client/cluster_view.py",
        "(racks[node_id] not in taken or len(taken) == rack_count)",
        "True",
        OF_ELECTIONS,
    ),
    Mutant(
        "brokers: a leader is one of the replicas at each step of a reassignment",
        REASSIGNMENT,
        "    both = {key: through[key] for key in leaders if key in through}\n",
        "    both: dict[TopicPartition, PartitionLeadership] = {}\n",
        OF_REASSIGNMENT,
    ),
    Mutant(
        "brokers: calling a reassignment off leaves nobody without a leader",
        REASSIGNMENT,
        "    return partition if chosen == NO_NODE else _ended(partition, original)\n",
        "    return _ended(partition, original)\n",
        OF_REASSIGNMENT,
    ),
    Mutant(
        "brokers: who failed is fenced with the elections",
        ELECTIONS,
        "*([] if fence is None else [fence])]",
        "]",
        OF_ELECTIONS,
    ),
    Mutant(
        "controller: who is not the controller does nothing while that one lives",
        DUTIES,
        "if image.controller.node_id != NO_NODE and now not in self.dead:",
        "if False:",
        OF_DUTIES,
    ),
    Mutant(
        "controller: whose registration is over does nothing",
        DUTIES,
        "        if not _stands(image, self.registration):\n            return []\n",
        "",
        OF_DUTIES,
    ),
    Mutant(
        "controller: who has joined again is not taken for the one that was dead",
        DUTIES,
        "if _stands(image, dead) else []",
        "",
        OF_DUTIES,
    ),
    Mutant(
        "controller: each part is planned against what comes before it",
        DUTIES,
        '            self.image = apply_actions(self.image, actions, commit=after, commit_uuid="planned")\n',
        "            assert after\n",
        OF_DUTIES,
    ),
    Mutant(
        "controller: a join disturbs nobody who could have himself elected",
        DUTIES,
        "    if usable_brokers(after) - {node_id}:\n        return []",
        "    if False:\n        return []",
        OF_DUTIES,
    ),
    Mutant(
        "controller: partitions that a broker makes are led in the same commit",
        f"{CLUSTER}/elections.py",
        "        if not any(isinstance(action, CreateTopic | AddPartitions) for action in making):\n",
        "        if making is not None:\n",
        OF_DUTIES,
    ),
    Mutant(
        "controller: a newcomer changes no list that left others out",
        ELECTIONS,
        "            and others == set(one.leadership.replicas)\n",
        "",
        OF_ELECTIONS,
    ),
    Mutant(
        "controller: a newcomer is added up to the factor only",
        ELECTIONS,
        "        if not few or factor_of(topic.name) < len(racks):\n",
        "        if not few:\n",
        OF_ELECTIONS,
    ),
    Mutant(
        "brokers: who is fenced joins again",
        f"{CLUSTER}/membership.py",
        "            self._background.spawn(self._join_again())\n",
        "            pass\n",
        OF_BROKERS,
    ),
    Mutant(
        "brokers: who stops hands over first",
        f"{CLUSTER}/membership.py",
        "        if not can_hand_over(root.image, node_id):\n",
        "        if node_id >= 0:\n",
        OF_BROKERS,
    ),
    Mutant(
        "brokers: who has stopped is fenced",
        f"{CLUSTER}/membership.py",
        "        self._root.metadata.publish(plan)\n",
        "        plan(self._root.image)\n",
        OF_BROKERS,
    ),
    Mutant(
        "brokers: a node id that moves is refused where no lock tells",
        f"{CLUSTER}/membership.py",
        "        if moves >= _MOVES_OF_LIFE and now_ms >= until_ms:\n            break\n",
        "        if moves >= _MOVES_OF_LIFE and now_ms >= until_ms:\n            return known.broker_epoch\n",
        OF_BROKERS,
    ),
    Mutant(
        "brokers: a start waits for the end of whoever has its node id",
        f"{CLUSTER}/membership.py",
        "                if is_over or not _is_duplicate(error):\n",
        "                if is_over or error:\n",
        OF_TAKEN,
    ),
    Mutant(
        "brokers: a node id that is taken is refused at the end",
        f"{CLUSTER}/membership.py",
        "                if is_over or not _is_duplicate(error):\n",
        "                if not _is_duplicate(error):\n",
        OF_TAKEN,
    ),
    Mutant(
        "states: a way leads through nothing that does not exist",
        f"{CLUSTER}/state_log.py",
        "                if state not in reached and state not in _NOTHING:\n",
        "                if state not in reached:\n",
        OF_STATES,
    ),
)
