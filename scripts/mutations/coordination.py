"""State logs, and which of them a broker has."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "broker: what is appended to a state log is durable before it is answered",
        "sparklog_server/coordination/state_log.py",
        "        self.own.waiting.append(Waiting(records, encoded, future, at_offset, self._surprises))\n"
        "        return future\n",
        "        self.own.waiting.append(Waiting(records, encoded, loop.create_future(), at_offset))\n"
        "        future.set_result(None)\n        return future\n",
        "tests/server/coordination/test_state_log.py tests/server/groups/test_coordinator.py",
    ),
    Mutant(
        "broker: a fault in loading is no loading for ever",
        "sparklog_server/coordination/state_log.py",
        "            except Exception:  # noqa: BLE001 - who asks",
        "            except SparklogError:  # noqa: BLE001 - who asks",
        "tests/server/coordination/test_loading_faults.py",
    ),
    Mutant(
        "broker: records of others are applied before later ones of ours",
        "sparklog_server/coordination/state_log.py",
        "            await self._catch_up(base_offset)\n        if base_offset != self.next_offset:\n"
        "            return  # read from the log already\n",
        "            pass\n",
        "tests/server/coordination/test_state_log.py",
    ),
    Mutant(
        "broker: who waits for a batch that is with the publisher is told when the log is closed",
        "sparklog_server/coordination/state_log.py",
        "        for waiting in (self.own.waiting, *(one.waiting for one in self.own)):\n",
        "        for waiting in (self.own.waiting,):\n",
        "tests/server/coordination/test_state_log.py",
    ),
    Mutant(
        "broker: a record that is too large is found before it shares a batch",
        "sparklog_server/coordination/records.py",
        "    if size > MAX_RECORD_BYTES:\n",
        "    if False:\n",
        "tests/server/coordination/test_state_log.py",
    ),
    Mutant(
        "broker: a partition that another broker leads is handed over",
        "sparklog_server/coordination/shards.py",
        "        return leader.epoch if leader.node_id == leadership.node_id else None\n",
        "        return leader.epoch\n",
        "tests/server/coordination/test_shards.py",
    ),
    Mutant(
        "broker: a partition that went to another broker and came back is loaded anew",
        "sparklog_server/coordination/shards.py",
        "        return log is not None and self._epoch_here(partition) != log.led.leader_epoch\n",
        "        return log is not None and self._epoch_here(partition) is None\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: what a coordinator appends is published in the epoch that accepted it, or not at all",
        "sparklog_server/coordination/state_log.py",
        "                leader_epoch=self.led.leader_epoch,\n",
        "                leader_epoch=now.leadership.leader_epoch if (now := self.current()) else 0,\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: a coordinator answers nobody once a newer image is another's",
        "sparklog_server/coordination/shards.py",
        "        if log is None or not self.is_led(log):\n",
        "        if log is None:\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: who waits for an append looks for the next coordinator",
        "sparklog_server/coordination/shards.py",
        "            log.close(_moved(log) if is_moved else None)\n",
        "            log.close()\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: who looks for a coordinator that is about to be there waits a moment",
        "sparklog_server/coordination/shards.py",
        "            if left_ms <= 0 or not self.is_active or NO_NODE not in nodes.values():\n",
        "            if True:\n",
        "tests/server/groups/test_moving_groups.py",
    ),
    Mutant(
        "broker: the loop has its turns while a long log is loaded",
        "sparklog_server/coordination/state_log.py",
        " and number % APPLIED_AT_ONCE == 0:\n",
        " and False:\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: only some logs are loaded at once",
        "sparklog_server/coordination/state_log.py",
        "                async with self._load_turns, self._lock:\n",
        "                async with self._lock:\n",
        "tests/server/coordination/test_epochs.py",
    ),
    Mutant(
        "broker: with more partitions everything lies elsewhere",
        "sparklog_server/coordination/shards.py",
        "        if topic_id != self._topic_id or len(partitions) != self.count:\n",
        "        if topic_id != self._topic_id:\n",
        "tests/server/coordination/test_shards.py",
    ),
    Mutant(
        "broker: nobody is served before a partition is loaded",
        "sparklog_server/coordination/shards.py",
        "ErrorCode.coordinator_load_in_progress\n            case LogStatus.READY:\n",
        "ErrorCode.none\n            case LogStatus.READY:\n",
        "tests/server/coordination/test_shards.py tests/server/groups/test_coordinator.py",
    ),
    Mutant(
        "broker: what was resigned is taken up from the log",
        "sparklog_server/coordination/shards.py",
        "        self._hand_over(list(self._logs))\n        self.open()\n",
        "        self.open()\n",
        "tests/server/coordination/test_shards.py tests/server/groups/test_coordinator.py",
    ),
    Mutant(
        "broker: what is loaded after the role was lost is not taken up",
        "sparklog_server/coordination/state_log.py",
        "        if self.status is LogStatus.LOADING:\n            self.close()\n        elif",
        "        if",
        "tests/server/coordination/test_shards.py tests/server/groups/test_coordinator_expiry.py",
    ),
    Mutant(
        "broker: one that has lost its role appends nothing more",
        "sparklog_server/coordination/shards.py",
        "            log.release()\n",
        "            pass\n",
        "tests/server/coordination/test_shards.py",
    ),
)
