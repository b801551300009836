"""What one of several brokers may publish and answer."""

from scripts.mutations.mutant import Mutant

PUBLISH = "sparklog_server/publish"
OF_PUBLISH = "tests/server/publish/test_leaderships.py"

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
        '_DOUBTS = frozenset({"UNKNOWN_PRODUCER", "NOT_LEADER"})',
        '_DOUBTS = frozenset({"UNKNOWN_PRODUCER"})',
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
        "several brokers: the epoch of a part is that of its acceptance",
        f"{PUBLISH}/part_checks.py",
        "            leader_epoch=leader_epoch,\n        )\n",
        "        )\n",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "several brokers: a fenced one's changes are asked of another",
        "sparklog_server/admin/changes.py",
        "            return change.failed(Outcome(fenced, str(error)) if is_fenced else outcome_of(error))\n",
        "            return change.failed(outcome_of(error))\n",
        "tests/server/admin/test_changes.py",
    ),
)
