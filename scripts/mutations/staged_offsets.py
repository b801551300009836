"""Offsets of transactions at their coordinator: staged, unstable, and told."""

from scripts.mutations.mutant import Mutant

_COORDINATION = "sparklog_server/coordination"
_STAGING = "tests/server/coordination/test_staging.py tests/server/coordination/test_staged_by_others.py"

MUTANTS = (
    Mutant(
        "staged records are known from the moment when they may be staged",
        f"{_COORDINATION}/staging.py",
        "            (outcome,) = await self._host.publisher.submit([part])\n",
        "            for record in records:\n"
        "                self._state.unstage(record)\n"
        "            (outcome,) = await self._host.publisher.submit([part])\n"
        "            for record in records:\n"
        "                self._state.stage(record)\n",
        _STAGING,
    ),
    Mutant(
        "what was committed is staged until it is applied",
        f"{_COORDINATION}/staging.py",
        "                staged.leaves_at = found.log_end_offset\n",
        "                staged.leaves_at = 0\n",
        _STAGING,
    ),
    Mutant(
        "what was committed before it was known is unsure until it is applied",
        f"{_COORDINATION}/staging.py",
        "                if not staged.is_whole:\n"
        "                    self._unread_until = found.log_end_offset\n",
        "",
        _STAGING,
    ),
    Mutant(
        "the next transaction of a producer is another one",
        f"{_COORDINATION}/staging.py",
        "        numbers = {(one.producer_id, one.number): one for one in open_ones if one is not None}\n",
        "        numbers = {(one.producer_id, 0): one for one in open_ones if one is not None}\n",
        _STAGING,
    ),
    Mutant(
        "nobody answers before what is staged is known",
        f"{_COORDINATION}/state_log.py",
        "                    await self._staging.load()\n",
        "",
        _STAGING,
    ),
    Mutant(
        "a partition in which everything is staged is not empty",
        f"{_COORDINATION}/state_log.py",
        "        if is_empty and not self._host.root.image.transactions.is_staged_in"
        "(found.topic_id, found.partition):\n",
        "        if is_empty:\n",
        _STAGING,
    ),
    Mutant(
        "an abort is seen, which changes no partition",
        f"{_COORDINATION}/shards.py",
        "                log.follow()  # an abort changes no partition\n",
        "                pass\n",
        _STAGING,
    ),
    Mutant(
        "as long as it is not known what is staged nothing is stable",
        "sparklog_server/groups/staged_commits.py",
        "        return _EVERYTHING if shard.is_unsure else shard.state.pending.of(group_id)\n",
        "        return shard.state.pending.of(group_id)\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "who is no member commits no offsets with a transaction",
        "sparklog_server/groups/group.py",
        " and (self.state is GroupState.EMPTY or not (member_id or instance_id)):\n",
        " or True:\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "what transactions hold at a coordinator is bounded",
        "sparklog_server/groups/staged_commits.py",
        "        if not table.has_room_to_stage(records):\n",
        "        if False:\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "offsets do not expire while a transaction may commit others",
        "sparklog_server/groups/expiry.py",
        "            expired = [one for one in expired if one not in unstable]\n",
        "",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "offsets of topics that were deleted meanwhile do not come back",
        "sparklog_server/groups/expiry.py",
        "        gone = [name for name in self._staged.topics_that_are_over() if name not in image.topics]\n",
        "        gone: list[str] = []\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "a group is not deleted while a transaction may bring it back",
        "sparklog_server/groups/expiry.py",
        " or self._staged.is_pending(group_id):\n",
        ":\n",
        "tests/server/groups/test_staged_commits.py",
    ),
    Mutant(
        "stable offsets are told to those who ask for them",
        "sparklog_server/api/offset_fetch.py",
        "    if must_be_stable and not error:\n",
        "    if False:\n",
        "tests/server/api/test_txn_offset_commit.py",
    ),
    Mutant(
        "what a transaction has committed is told to who asks next",
        "sparklog_server/api/offset_fetch.py",
        "    await services.groups.staged.settled(asked, context.answer.give_way)  # while no room is held\n",
        "",
        "tests/server/api/test_txn_offset_commit.py",
    ),
    Mutant(
        "who asks for what has ended waits until it is applied",
        f"{_COORDINATION}/staging.py",
        "            if until <= next_offset:\n",
        "            if True:\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "nobody waits for ever for what has ended",
        f"{_COORDINATION}/staging.py",
        "        alarm = self._host.timer.schedule(SETTLE_MS, lambda: _tell(settled))\n",
        "        alarm = self._host.timer.schedule(SETTLE_MS, lambda: None)\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "nobody waits for what is closed",
        f"{_COORDINATION}/staging.py",
        "        self._background.cancel()\n        self.give_up()\n",
        "        self._background.cancel()\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "nobody waits for what is released",
        f"{_COORDINATION}/state_log.py",
        "            self.status = LogStatus.RELEASED\n            self._staging.give_up()\n",
        "            self.status = LogStatus.RELEASED\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "nobody waits for what can never be read",
        f"{_COORDINATION}/state_log.py",
        "                self._is_unreadable = True\n",
        "                self._is_unreadable = False\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "who waits for what can never be read is told",
        f"{_COORDINATION}/state_log.py",
        "                self._is_unreadable = True\n                self._staging.give_up()\n",
        "                self._is_unreadable = True\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "what comes while somebody catches up is read",
        f"{_COORDINATION}/state_log.py",
        "            finally:\n                self.follow()  # what came meanwhile was left to this\n",
        "            finally:\n                pass\n",
        "tests/server/coordination/test_settled.py",
    ),
    Mutant(
        "what failed often is tried again once",
        f"{_COORDINATION}/internal_topic.py",
        "        self.cancel()\n",
        "",
        "tests/server/coordination/test_retry.py",
    ),
    Mutant(
        "who waits for what was committed holds none of the slots",
        "sparklog_server/groups/staged_commits.py",
        "            before_waiting()\n",
        "",
        "tests/server/groups/test_staged_commits.py",
    ),
)
