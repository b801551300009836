"""What coordinators plan: by what is in the log and on its way to it, and what they tell of it."""

from scripts.mutations.mutant import Mutant

OF_PLANS = "tests/server/groups/test_what_is_planned.py"

MUTANTS = (
    Mutant(
        "groups: planned: it is handed over when what it was planned by has arrived",
        "sparklog_server/coordination/state_log.py",
        "            if is_planned and self._batches:\n",
        "            if False:\n",
        "tests/server/groups/test_coordinator_tombstones.py -k commits_wait_for_no",
    ),
    Mutant(
        "groups: planned: what was read meanwhile was not planned by",
        "sparklog_server/coordination/state_log.py",
        "(first.at_offset, first.surprises) != (self.next_offset, self._surprises)",
        "first.at_offset != self.next_offset",
        f"{OF_PLANS} -k made_up",
    ),
    Mutant(
        "groups: planned: where a plan would be is where everything has been applied up to",
        "sparklog_server/coordination/state_log.py",
        "(first.at_offset, first.surprises) != (self.next_offset, self._surprises)",
        "first.surprises != self._surprises",
        f"{OF_PLANS} -k twice",
    ),
    Mutant(
        "groups: planned: that nothing is to be done is told when what was counted on is durable",
        "sparklog_server/coordination/state_log.py",
        "            if await log.own.arrived():\n",
        "            if True:\n",
        f"{OF_PLANS} -k before_it_is_durable",
    ),
    Mutant(
        "groups: planned: what came behind goes on when the plan was handed over",
        "sparklog_server/coordination/state_log.py",
        "            if self.own.waiting and not self.own:\n                self._flush()\n",
        "            pass\n",
        f"{OF_PLANS} -k put_a_deletion_off",
    ),
    Mutant(
        "groups: a topic's deletion waits for what was committed before",
        "sparklog_server/coordination/state_log.py",
        "        if self.next_offset >= end_offset:\n            reached()\n",
        "        if True:\n            reached()\n",
        f"{OF_PLANS} -k not_read",
    ),
    Mutant(
        "groups: a topic's deletion stops where it was",
        "sparklog_server/coordination/internal_topic.py",
        "min((one for one, _ in self._ahead if start_offset < one < end_offset), default=end_offset)",
        "end_offset",
        f"{OF_PLANS} -k next_one_stays",
    ),
    Mutant(
        "groups: what was read while a topic was deleted and a partition loaded goes",
        "sparklog_server/groups/expiry.py",
        "                _add_to(self._deleted_while_loading.setdefault(shard, {}), coming)\n",
        "                pass\n",
        f"{OF_PLANS} -k being_loaded",
    ),
    Mutant(
        "groups: a deletion that fails does not keep a deleted topic's offsets",
        "sparklog_server/groups/offsets.py",
        "        for key in self.offsets.of_topics(topics):\n            yield",
        "        for key in filter(self.planned_offset, self.offsets.of_topics(topics)):\n            yield",
        f"{OF_PLANS} -k has_failed",
    ),
    Mutant(
        "groups: a group of which a later generation is in the log is held",
        "sparklog_server/groups/expiry.py",
        "            and handle.group.generation_id == generation_id\n",
        "",
        f"{OF_PLANS} -k comes_and_goes",
    ),
    Mutant(
        "groups: a static member's client id counts as the new one",
        "sparklog_server/groups/rebalancing.py",
        "  # they count, too\n        self._update(member, request)\n",
        "\n",
        f"{OF_PLANS} -k client_id",
    ),
    Mutant(
        "groups: an assignment that cannot be kept ends everybody's wait",
        "sparklog_server/groups/group.py",
        "            self.rebalancing.assign({}, error, now)\n        return error, self._drain()\n",
        "            pass\n        return error, self._drain()\n",
        f"{OF_PLANS} -k end_for_all",
    ),
    Mutant(
        "groups: what followers assign needs no room",
        "sparklog_server/groups/table.py",
        "        if not growth or handle.group.roster.leader != request.member_id:\n",
        "        if not growth:\n",
        f"{OF_PLANS} -k end_for_all",
    ),
    Mutant(
        "groups: a static member has a place in a full group",
        "sparklog_server/groups/rebalancing.py",
        "self._is_full_for(roster.place_of(request.member_id, request.instance_id))",
        "self._is_full_for(request.member_id)",
        f"{OF_PLANS} -k group_that_is_full",
    ),
    Mutant(
        "groups: who is nobody is told so before there is a question of room",
        "sparklog_server/groups/table.py",
        "        if handle is not None and _is_refused_anyway(handle.group.roster, request):\n",
        "        if False:\n",
        f"{OF_PLANS} -k who_is_nobody",
    ),
    Mutant(
        "groups: the offsets of a topic go in parts",
        "sparklog_server/groups/expiry.py",
        "in_turns(offsets, lambda _: 1, DELETED_AT_ONCE)",
        "[[*offsets]]",
        "tests/server/groups/test_coordinator_tombstones.py -k in_parts",
    ),
    Mutant(
        "groups: what could not be deleted of a topic is tried again, the parts behind it with it",
        "sparklog_server/groups/expiry.py",
        "                    self._host.timer.schedule(RETRY_MS, again)\n                    break\n",
        "                    break\n",
        "tests/server/groups/test_coordinator_tombstones.py -k deleted_later",
    ),
)
