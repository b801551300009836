"""What small requests about consumer groups may cost, and what groups may hold."""

from scripts.mutations.mutant import Mutant

GROUPS = "sparklog_server/groups"
API = "sparklog_server/api"
OF_BOUNDS = "tests/server/groups/test_coordinator_bounds.py"
OF_STATIC_MEMBERS = "tests/server/groups/test_static_members.py"
OF_COSTS = "tests/server/api/test_costs.py"
OF_SUBSCRIPTIONS = "tests/server/groups/test_subscription.py"
OF_DELETIONS = "tests/server/groups/test_deleting_many_groups.py"
OF_JOINS = "tests/server/api/test_join_group.py"

MUTANTS = (
    Mutant(
        "groups: what a leader is told counts before it is made",
        f"{API}/join_group.py",
        "    await context.answer.hold(sum(_MEMBER_BYTES + len(one.metadata) for one in result.members))\n",
        "",
        OF_JOINS,
    ),
    Mutant(
        "groups: an assignment counts before its answer is made",
        f"{API}/sync_group.py",
        "        await context.answer.hold(len(result.assignment))  # before it is made, as JoinGroup's\n",
        "",
        OF_JOINS,
    ),
    Mutant(
        "groups: what leaders are told of members is made once",
        f"{GROUPS}/roster.py",
        "        if protocol not in self._joined_members:\n",
        "        if True:\n",
        "tests/server/groups/test_group.py",
    ),
    Mutant(
        "groups: what leaders are told of members is that of now",
        f"{GROUPS}/roster.py",
        "    def _add_protocols(self, member: Member) -> None:\n        self._joined_members = {}\n",
        "    def _add_protocols(self, member: Member) -> None:\n",
        "tests/server/groups/test_static_members.py",
    ),
    Mutant(
        "groups: a member fits the group's record",
        f"{GROUPS}/table.py",
        "        return of_record <= self._settings.group_max_record_bytes\n",
        "        return True\n",
        OF_BOUNDS,
    ),
    Mutant(
        "groups: the longest group that may be set fits its record",
        "sparklog_server/settings/groups.py",
        "        maximum=15 * MIB,",
        "        maximum=16 * MIB,",
        f"{OF_BOUNDS} -k longest",
    ),
    Mutant(
        "groups: an assignment fits the group's record",
        f"{GROUPS}/table.py",
        "            and of_record <= self._settings.group_max_record_bytes\n",
        "",
        OF_BOUNDS,
    ),
    Mutant(
        "groups: a static member that comes back takes its own place",
        f"{GROUPS}/roster.py",
        "            return self.static_member_id(instance_id) or member_id\n",
        "            return member_id\n",
        OF_BOUNDS,
    ),
    Mutant(
        "groups: one write of static members that come back is on its way at a time",
        f"{GROUPS}/roster.py",
        "        if self._coming_back and not self._are_on_their_way(Stores.STATIC_MEMBER):\n",
        "        if self._coming_back:\n",
        OF_STATIC_MEMBERS,
    ),
    Mutant(
        "groups: static members that came meanwhile are written next",
        f"{GROUPS}/rebalancing.py",
        "            self._answer(one, error, now)\n        self._writes.store_who_came_back(now)\n",
        "            self._answer(one, error, now)\n",
        OF_STATIC_MEMBERS,
    ),
    Mutant(
        "groups: others have turns while the offsets of one group are put in order",
        f"{API}/offset_fetch.py",
        "        await pace.made(len(some))\n",
        "",
        OF_COSTS,
    ),
    Mutant(
        "groups: a subscription is walked over when it comes",
        f"{GROUPS}/roster.py",
        "        if protocol not in self.topics_ends:  # it comes from the log\n",
        "        if True:\n",
        OF_SUBSCRIPTIONS,
    ),
    Mutant(
        "groups: what a member subscribes to is that of now",
        f"{GROUPS}/roster.py",
        "        member.protocols = protocols\n        member.walk_topics()\n",
        "        member.protocols = protocols\n",
        OF_SUBSCRIPTIONS,
    ),
    Mutant(
        "groups: the same topics are gone through once",
        f"{GROUPS}/group.py",
        "            subscriptions.add(of_member)\n",
        "            subscriptions.add(of_member + bytes(len(subscriptions)))\n",
        OF_SUBSCRIPTIONS,
    ),
    Mutant(
        "groups: subscriptions to too many topics are not gone through",
        f"{GROUPS}/messages.py",
        "        return None\n    wanted = ",
        "        pass\n    wanted = ",
        OF_SUBSCRIPTIONS,
    ),
    Mutant(
        "groups: few groups with much are looked at in one turn",
        f"{GROUPS}/expiry.py",
        "        return _GROUP_WEIGHT + topics + ",
        "        return 0 * topics + ",
        "tests/server/groups/test_coordinator_expiry.py",
    ),
    Mutant(
        "groups: so many are deleted at once",
        f"{GROUPS}/coordinator.py",
        "self.committed_count(one), DELETED_AT_ONCE)",
        "self.committed_count(one), 1 << 30)",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: those that are deleted share an append",
        f"{GROUPS}/coordinator.py",
        "self.committed_count(one), DELETED_AT_ONCE)",
        "self.committed_count(one), 0)",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: whom somebody joined meanwhile stays, the others are deleted",
        f"{GROUPS}/expiry.py",
        "                results[group_id] = self._refuse(group_id)\n",
        "                results.setdefault(group_id, self._refuse(group_id))\n",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: why one is not deleted is not why the others are not",
        f"{GROUPS}/expiry.py",
        "[one for one, refused in results.items() if not refused]",
        "[*results]",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: what is deleted at once is of few partitions",
        f"{GROUPS}/coordinator.py",
        "        every = itertools.chain.from_iterable(in_order.values())\n",
        "        every = group_ids\n",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: tombstones on their way need no room",
        f"{GROUPS}/offsets.py",
        "            growth = 0 if record.value is None else self.growth([record])\n",
        "            growth = self.growth([record])\n",
        OF_DELETIONS,
    ),
    Mutant(
        "groups: who asks for no topic goes through no subscription",
        f"{GROUPS}/group.py",
        "        if not topics:\n            return frozenset()\n",
        "",
        OF_SUBSCRIPTIONS,
    ),
)
