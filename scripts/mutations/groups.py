"""Consumer groups and their offsets."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "broker: what committed offsets hold is bounded",
        "sparklog_server/groups/coordinator.py",
        "        if not table.has_room_for(shard, records):\n",
        "        if False:\n",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: offsets that are deleted give their room back",
        "sparklog_server/groups/committed_offsets.py",
        "            self.held_bytes -= _group_bytes(key.group)\n",
        "",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: groups of a partition that is handed over are sent away",
        "sparklog_server/groups/table.py",
        "            if handle.shard in gone:\n",
        "            if False:\n",
        "tests/server/groups/test_hand_over.py",
    ),
    Mutant(
        "broker: members that waited are told nothing by one that lost its role meanwhile",
        "sparklog_server/groups/table.py",
        "        if not result.error and not self._host.role.is_in_charge:\n",
        "        if False:\n",
        "tests/server/groups/test_coordinator.py",
    ),
    Mutant(
        "broker: a member that was never told its id goes with its connection",
        "sparklog_server/groups/coordinator.py",
        "            if member_id is not None and table.groups.get(group_id) is handle:\n",
        "            if False:\n",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: a member has a hundred protocols at most",
        "sparklog_server/groups/coordinator.py",
        "        if len(request.protocols) > MAX_PROTOCOLS:\n",
        "        if False:\n",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: offsets do not expire by a wall clock that was set forward",
        "sparklog_server/groups/expiry.py",
        "        return min(now.wall_ms, began.wall_ms + ",
        "        return max(now.wall_ms, began.wall_ms + ",
        "tests/server/groups/test_coordinator_expiry.py",
    ),
    Mutant(
        "group: an old generation is refused",
        "sparklog_server/groups/group.py",
        "        if not error and generation_id != generation.generation_id:\n",
        "        if False:\n",
        "tests/server/groups/test_group.py",
    ),
    Mutant(
        "group: an assignment of an old generation is not handed out",
        "sparklog_server/groups/group.py",
        "        if write.generation_id == self.generation_id:\n",
        "        if True:\n",
        "tests/server/groups/test_group.py tests/server/groups/test_group_schedules.py",
    ),
    Mutant(
        "group: a rebalance waits for all members",
        "sparklog_server/groups/rebalancing.py",
        "            and self._roster.joining == len(self._roster)\n",
        "",
        "tests/server/groups/test_group.py",
    ),
    Mutant(
        "group: offsets are refused while assignments are under way",
        "sparklog_server/groups/transitions.py",
        "            _C: ErrorCode.rebalance_in_progress,\n",
        "            _C: ErrorCode.none,\n",
        "tests/server/groups/test_transitions.py tests/server/groups/test_group.py",
    ),
    Mutant(
        "a SyncGroup that waits keeps no assignments",
        "sparklog_server/groups/coordinator.py",
        "        del request  # of a follower's nothing is needed\n",
        "",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "assignments on their way to the log count",
        "sparklog_server/groups/table.py",
        "        self._count(handle, group.held_bytes)\n",
        "        self._count(handle, group.roster.held_bytes)\n",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
    Mutant(
        "ids given to members to be count",
        "sparklog_server/groups/roster.py",
        " + PENDING_BYTES * len(self.pending)\n",
        "\n",
        "tests/server/groups/test_coordinator_bounds.py",
    ),
)
