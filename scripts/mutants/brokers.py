"""Brokers: one leader and one controller an epoch, and an answer only for what is durable."""

from scripts.mutants.mutant import Mutant, edit, patch

MUTANTS: tuple[Mutant, ...] = (
    # Registrations, epochs, fences: kept by the commit.
    edit(
        "A node id that a running broker has is given to another process.",
        "sparklog/metadata/model/registry.py",
        "if known is not None and not known.is_fenced:\n        raise ActionRefusedError(",
        "if False:\n        raise ActionRefusedError(",
        "tests/metadata/test_registry.py",
    ),
    edit(
        "Two registrations have one epoch: a dead broker is taken for its successor.",
        "sparklog/metadata/model/registry.py",
        "if action.broker_epoch != draft.commit:",
        "if False:",
        "tests/metadata/test_registry.py",
    ),
    patch(
        "A fence leaves the leader: nobody leads the partition.",
        "sparklog.metadata.model.draft.PartitionDraft.lead",
        "tests/metadata/test_registry.py",
    ),
    edit(
        "A fence does not raise the leader epoch: a late append of the dead broker applies.",
        "sparklog/metadata/model/registry.py",
        "NO_NODE, before.leader_epoch + 1, before.adding",
        "NO_NODE, before.leader_epoch, before.adding",
        "tests/metadata/test_registry.py",
    ),
    edit(
        "A late fence ends a later registration.",
        "sparklog/metadata/model/registry.py",
        "broker.broker_epoch != broker_epoch or broker.is_fenced:\n        raise ActionRefused",
        "broker.is_fenced:\n        raise ActionRefused",
        "tests/metadata/test_registry.py",
    ),
    edit(
        "Two controllers are elected in one epoch.",
        "sparklog/metadata/model/registry.py",
        "if action.controller_epoch != expected:",
        "if action.controller_epoch < expected - 1:",
        "tests/metadata/test_registry.py",
    ),
    patch(
        "The actions of a controller apply in a later epoch.",
        "sparklog.metadata.model.registry.require_controller",
        "tests/metadata/test_leading.py",
    ),
    patch(
        "A broker appends to a partition that it does not lead, or did not when it accepted the batch.",
        "sparklog.metadata.model.draft.Acting.require_leadership",
        "tests/metadata/test_acting.py",
    ),
    patch(
        "A fenced registration publishes.",
        "sparklog.metadata.model.registry.require_broker",
        "tests/metadata/test_acting.py tests/metadata/test_registry.py",
    ),
    # Membership, controller, liveness.
    edit(
        "A broker goes on after another process has taken its registration.",
        "sparklog_server/cluster/membership.py",
        "self._lifecycle.fail(lost)",
        "pass",
        "tests/server/cluster/test_membership.py",
    ),
    edit(
        "A broker that cannot follow the log answers as leader.",
        "sparklog_server/cluster/membership.py",
        "return self.lost() is None and self.left_ms > 0",
        "return self.lost() is None",
        "tests/server/cluster/test_membership.py",
    ),
    edit(
        "A late heartbeat counts as a new one: a dead broker looks alive.",
        "sparklog_server/cluster/liveness.py",
        "if beat > one.newest:",
        "if beat != one.newest:",
        "tests/server/cluster/test_observer.py",
    ),
    edit(
        "Silence of all brokers counts against each: a slow store fences everybody.",
        "sparklog_server/cluster/liveness.py",
        "or beats == self._beats_counted:",
        ":",
        "tests/server/cluster/test_looking.py",
    ),
    edit(
        "A look that began before an answer counts as a later one: a living broker is fenced.",
        "sparklog_server/cluster/liveness.py",
        "return self._looked_ms is None or began_ms >= self._looked_ms",
        "return True",
        "tests/server/cluster/test_looking_threads.py tests/server/cluster/test_observer.py",
    ),
    edit(
        "A broker whose registration is over acts as controller.",
        "sparklog_server/cluster/elections.py",
        "if not _stands(image, self.registration):\n            return []",
        "",
        "tests/server/cluster/test_duties.py",
    ),
    # Produce: durable, committed, then acknowledged; once; in the epoch of its acceptance.
    patch(
        "A group of produce requests is committed before it is synced.",
        "sparklog.log.writer.LogWriter.sync",
        "tests/server/publish/test_bundle_writer_failures.py",
    ),
    patch(
        "A batch is published that was accepted in a leader epoch that is over.",
        "sparklog_server.cluster.membership.Registration.may_append",
        "tests/server/publish/test_leaderships.py",
        returns=True,
    ),
    edit(
        "A producer id is given out twice: two producers take each other's batches for repetitions.",
        "sparklog_server/publish/publisher.py",
        "self._next += 1",
        "pass",
        "tests/server/api/test_init_producer_id.py",
    ),
    edit(
        "A small batch unpacks to any size.",
        "sparklog_server/publish/checkers.py",
        "return min(self.rules.max_decompressed_bytes, max(MAX_RATIO * size, granted))",
        "return self.rules.max_decompressed_bytes",
        "tests/server/publish/test_part_checks.py",
    ),
    # Fetch.
    patch(
        "Batches are sent with the offsets of their segment.",
        "sparklog_server.fetch.reader.set_base_offsets",
        "tests/server/fetch/test_reader.py",
    ),
    edit(
        "Records that were compacted are served from memory.",
        "sparklog_server/fetch/service.py",
        "if one.fetch.offset < one.state.cleaned.first_dirty_offset:",
        "if one.fetch.offset < 0:",
        "tests/server/fetch/test_compacted.py",
    ),
    edit(
        "A broker that misses a file plans by its old image: a merged segment counts as lost.",
        "sparklog_server/root/live_root.py",
        "self.log.refresh(force=True).partition_of(topic_id, partition)",
        "self.log.image.partition_of(topic_id, partition)",
        "tests/server/api/test_files_that_go.py",
    ),
    # Coordinators.
    edit(
        "A coordinator answers before its record is durable.",
        "sparklog_server/coordination/state_log.py",
        "future, at_offset, self._surprises))\n        return future",
        "loop.create_future(), at_offset))\n        future.set_result(None)\n        return future",
        "tests/server/coordination/test_state_log.py",
    ),
    edit(
        "Records of others are applied after ours: an older offset wins.",
        "sparklog_server/coordination/state_log.py",
        "await self._catch_up(base_offset)\n        if base_offset != self.next_offset:",
        "pass\n        if False:",
        "tests/server/coordination/test_state_log.py",
    ),
    edit(
        "A partition that came back is not loaded again: offsets that another broker committed are lost.",
        "sparklog_server/coordination/shards.py",
        "return log is not None and self._epoch_here(partition) != log.led.leader_epoch",
        "return log is not None and self._epoch_here(partition) is None",
        "tests/server/coordination/test_epochs.py",
    ),
    edit(
        "A coordinator's record is published in an epoch that did not accept it.",
        "sparklog_server/coordination/state_log.py",
        "leader_epoch=self.led.leader_epoch,",
        "leader_epoch=now.leadership.leader_epoch if (now := self.current()) else 0,",
        "tests/server/coordination/test_epochs.py",
    ),
    edit(
        "Tombstones do not say by what they were planned: they delete an offset committed meanwhile.",
        "sparklog_server/coordination/state_log.py",
        "appended = log.append(records, planned=True)",
        "appended = log.append(records)",
        "tests/server/groups/test_coordinator_tombstones.py",
    ),
    edit(
        "A group is served before its partition is loaded: it has no offsets.",
        "sparklog_server/coordination/shards.py",
        "ErrorCode.coordinator_load_in_progress\n            case LogStatus.READY:",
        "ErrorCode.none\n            case LogStatus.READY:",
        "tests/server/coordination/test_shards.py",
    ),
    edit(
        "Offsets of a transaction count as stable before they are applied: records are read twice.",
        "sparklog_server/coordination/staging.py",
        "staged.leaves_at = found.log_end_offset",
        "staged.leaves_at = 0",
        "tests/server/coordination/test_staging.py tests/server/coordination/test_staged_by_others.py",
    ),
    edit(
        "A coordinator answers before it knows what is staged.",
        "sparklog_server/coordination/state_log.py",
        "await self._staging.load()",
        "pass",
        "tests/server/coordination/test_staging.py tests/server/coordination/test_staged_by_others.py",
    ),
    patch(
        "Offsets that a transaction may change are returned as stable.",
        "sparklog_server.groups.staged_commits.StagedCommits.unstable",
        "tests/server/groups/test_staged_commits.py",
        returns=frozenset(),
    ),
    edit(
        "A clock that is set forward aborts transactions.",
        "sparklog_server/transactions/sweep.py",
        "return min(self._clock.now_ms(), self._began_ms + elapsed_ms + _ROUNDING_MS)",
        "return self._clock.now_ms() + 0 * elapsed_ms",
        "tests/server/transactions/test_sweep.py",
    ),
    # One client cannot take what the others need.
)
