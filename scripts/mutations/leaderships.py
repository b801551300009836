"""What one of several brokers may publish and answer."""

from scripts.mutations.mutant import Mutant

OF_API = "tests/server/api/test_several_brokers.py"
PUBLISH = "sparklog_server/publish"
OF_PUBLISH = "tests/server/publish/test_leaderships.py"
CHECKING, OF_CHECKING = "sparklog_server/fetch/checking.py", "tests/server/fetch/test_checking.py"
EPOCHS, OF_EPOCHS = (
    "sparklog_server/api/offset_for_leader_epoch.py",
    "tests/server/api/test_offset_for_leader_epoch.py",
)

MUTANTS = (
    Mutant(
        "several brokers: a bundle is judged by who leads",
        f"{PUBLISH}/bundle_plan.py",
        "        if not self.registration.may_append(image, topic_id, partition, part.leader_epoch) or (\n",
        "        if False or (\n",
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: and by the epoch in which it was accepted",
        "sparklog_server/cluster/joined.py",
        "            and leadership.leader_epoch == leader_epoch\n",
        "",
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: what comes behind a lost part goes with it",
        f"{PUBLISH}/bundle_plan.py",
        "            self.lost and producer_key(part) in self.lost\n",
        "            False\n",
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: and what comes behind it in the next bundle does not take its place",
        f"{PUBLISH}/bundle_writer.py",
        '_DOUBTS = frozenset({"UNKNOWN_PRODUCER", "NOT_LEADER", ',
        '_DOUBTS = frozenset({"UNKNOWN_PRODUCER", ',
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: one that was fenced tells each part so",
        f"{PUBLISH}/bundle_writer.py",
        'if error.code == "BROKER_FENCED" and plan.registration.is_alone:',
        'if error.code == "BROKER_FENCED":',
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: one that was fenced goes on",
        f"{PUBLISH}/publisher.py",
        "        fenced = fenced and self._membership.current().is_alone  # one of several joins again\n",
        "",
        OF_PUBLISH,
    ),
    Mutant(
        "several brokers: only a leader accepts what is produced",
        "sparklog_server/api/produce.py",
        "    if leader.node_id != services.node_id:  # also if nobody",
        "    if False:  # also if nobody",
        OF_API,
    ),
    Mutant(
        "several brokers: what comes behind a batch that was refused at once waits for it",
        "sparklog_server/api/produce.py",
        "        if first_batches.is_behind(key, records, state):\n",
        "        if False:\n",
        OF_API,
    ),
    Mutant(
        "several brokers: whom the partition knows need not wait",
        f"{PUBLISH}/first_batches.py",
        " or producer_id in state.producers\n",
        "\n",
        "tests/server/publish/test_first_batches.py",
    ),
    Mutant(
        "several brokers: the epoch of a part is that of its acceptance",
        f"{PUBLISH}/part_checks.py",
        "            leader_epoch=self._leader_epoch,\n",
        "",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "several brokers: a fenced one's changes are asked of another",
        "sparklog_server/admin/changes.py",
        "            return change.failed(Outcome(fenced, str(error)) if is_fenced else outcome_of(error))\n",
        "            return change.failed(outcome_of(error))\n",
        "tests/server/admin/test_changes.py",
    ),
    Mutant(
        "several brokers: who has no replica of a partition serves nobody",
        CHECKING,
        "    if not is_leader and (rack is None or leadership.node_id not in state.leadership.replicas):\n",
        "    if not is_leader and rack is None:\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: a replica serves only who may be sent to one",
        CHECKING,
        "    if not is_leader and (rack is None or leadership.node_id not in state.leadership.replicas):\n",
        "    if not is_leader and leadership.node_id not in state.leadership.replicas:\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: a replica says of no offset that it is beyond the log",
        CHECKING,
        "        can_tell = is_leader or not is_beyond\n",
        "        can_tell = True\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: an offset beyond the log is looked for",
        CHECKING,
        "        return Wanted(fetch, state, answer, is_unsure=is_beyond)\n",
        "        return Wanted(fetch, state, answer)\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: a later epoch than is known is looked for",
        CHECKING,
        "is_unsure=error is ErrorCode.unknown_leader_epoch)",
        "is_unsure=False)",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: consumers are not sent to who is fenced, or about to stop",
        CHECKING,
        " and not (one.is_fenced or one.in_controlled_shutdown)\n",
        "\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: consumers in the leader's rack stay there",
        CHECKING,
        "    if leader is None or leader.rack == rack:\n",
        "    if leader is None:\n",
        OF_CHECKING,
    ),
    Mutant(
        "several brokers: older versions of Fetch are for leaders",
        "sparklog_server/api/fetch.py",
        "        rack=request.rack_id if version >= PREFERRED_REPLICA_VERSION else None,\n",
        '        rack=request.rack_id if version >= PREFERRED_REPLICA_VERSION else "",\n',
        OF_API,
    ),
    Mutant(
        "several brokers: a session names the preferred replica each time",
        "sparklog_server/fetch/sessions.py",
        "            or answer.preferred_read_replica != NO_REPLICA\n",
        "",
        OF_API,
    ),
    Mutant(
        "several brokers: who cannot look refuses no offset",
        "sparklog_server/fetch/service.py",
        "            if failure is not None:  # nobody knows: the client shall ask again\n",
        "            if False:\n",
        "tests/server/api/test_fetch.py",
    ),
    Mutant(
        "several brokers: a fetch does not wait for a leader that is another one by now",
        "sparklog_server/fetch/waiting.py",
        " or state.leadership != self._leaderships[key]:\n",
        ":\n",
        "tests/server/fetch/test_waiting.py",
    ),
    Mutant(
        "several brokers: an epoch ends with the log of now",
        EPOCHS,
        "    failure = await services.root.look(force=True)\n",
        "    failure = None\n",
        OF_EPOCHS,
    ),
    Mutant(
        "several brokers: who cannot look does not say where an epoch ends",
        EPOCHS,
        "    refusal = ErrorCode.none if failure is None else error_code(failure)\n",
        "    refusal = ErrorCode.none\n",
        OF_EPOCHS,
    ),
)
