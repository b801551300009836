"""Consumer groups and their offsets."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "broker: groups that were resigned are taken up from the log",
        "sparklog_server/coordinator/directory.py",
        "        self._topic_id, self.shards = None, []\n",
        "        pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "broker: members that waited are told nothing by one that lost its role meanwhile",
        "sparklog_server/coordinator/directory.py",
        "        if not result.error and not self.host.role.is_in_charge:\n",
        "        if False:\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "broker: a member that was never told its id goes with its connection",
        "sparklog_server/coordinator/coordinator.py",
        "            if member_id is not None and directory.groups.get(group_id) is handle:\n",
        "            if False:\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: a member has a hundred protocols at most",
        "sparklog_server/coordinator/coordinator.py",
        "        if len(request.protocols) > MAX_PROTOCOLS:\n",
        "        if False:\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: offsets do not expire by a wall clock that was set forward",
        "sparklog_server/coordinator/retention.py",
        "        return min(now.wall_ms, began.wall_ms + ",
        "        return max(now.wall_ms, began.wall_ms + ",
        "tests/server/coordinator/test_coordinator_expiry.py",
    ),
    Mutant(
        "broker: a record without a key closes nobody's groups",
        "sparklog_server/coordinator/replay.py",
        "    latest.pop(None, None)\n",
        "    pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "group: an old generation is refused",
        "sparklog_server/coordinator/group.py",
        "        if not error and generation_id != self.generation_id:\n",
        "        if False:\n",
        "tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: an assignment of an old generation is not handed out",
        "sparklog_server/coordinator/group.py",
        "        if write.generation_id == self.generation_id:\n",
        "        if True:\n",
        "tests/server/coordinator/test_group.py tests/server/coordinator/test_group_schedules.py",
    ),
    Mutant(
        "group: a rebalance waits for all members",
        "sparklog_server/coordinator/rebalancing.py",
        "            and self.roster.joining == len(self.roster)\n",
        "",
        "tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: offsets are refused while assignments are under way",
        "sparklog_server/coordinator/transitions.py",
        "            _C: ErrorCode.rebalance_in_progress,\n",
        "            _C: ErrorCode.none,\n",
        "tests/server/coordinator/test_transitions.py tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: an offset commit is durable before it is answered",
        "sparklog_server/coordinator/shard.py",
        "        self._waiting.append(_Waiting(records, encoded, future))\n        return future\n",
        "        self._waiting.append(_Waiting(records, encoded, loop.create_future()))\n"
        "        future.set_result(None)\n        return future\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "group: offsets of others are applied before later ones of ours",
        "sparklog_server/coordinator/shard.py",
        "            await self._catch_up(base_offset)\n        if base_offset != self.next_offset:\n"
        "            return  # read from the log already\n",
        "            pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "group: nobody is served before the offsets are loaded",
        "sparklog_server/coordinator/coordinator.py",
        "ErrorCode.coordinator_load_in_progress\n            case ShardStatus.READY:\n",
        "ErrorCode.none\n            case ShardStatus.READY:\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "a SyncGroup that waits keeps no assignments",
        "sparklog_server/coordinator/coordinator.py",
        "        del request  # of a follower's nothing is needed\n",
        "",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "assignments on their way to the log count",
        "sparklog_server/coordinator/directory.py",
        "        self._count(handle, group.held_bytes)\n",
        "        self._count(handle, group.roster.held_bytes)\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "ids given to members to be count",
        "sparklog_server/coordinator/roster.py",
        " + PENDING_BYTES * len(self.pending)\n",
        "\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
)
