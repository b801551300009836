"""Share groups: a record ends once, and only by the leader that gave it out."""

from scripts.mutants.mutant import Mutant, edit

_MODEL = "sparklog/metadata/model/sharing.py"
_PARTITION = "sparklog_server/share/partition.py"
_METADATA_TESTS = "tests/metadata/test_sharing.py"

MUTANTS: tuple[Mutant, ...] = (
    edit(
        "A deposed leader ends a record that another member has got since.",
        _MODEL,
        "if (node_id, action.leader_epoch) != (led.leader, led.leader_epoch):",
        "if node_id is None:",
        _METADATA_TESTS,
    ),
    edit(
        "A record that was given out before a reset ends without being delivered since.",
        _MODEL,
        "if state is None or state.state_epoch != action.state_epoch:\n        raise",
        "if state is None:\n        raise",
        _METADATA_TESTS,
    ),
    edit(
        "A record ends twice.",
        "sparklog/metadata/model/share_values.py",
        "if before.has_ended:",
        "if False:",
        "tests/metadata/test_share_values.py",
    ),
    edit(
        "A record is acquired again while its acknowledgement is written.",
        _PARTITION,
        "if lock is not None and lock.first <= first:",
        "if lock is not None and lock.first <= first and not lock.is_writing:",
        "tests/server/share/test_partition.py",
    ),
    edit(
        "A lock expires while its acknowledgement is written.",
        _PARTITION,
        "for one in locks if not one.is_writing]",
        "for one in locks]",
        "tests/server/share/test_partition.py",
    ),
    edit(
        "A member acknowledges what another one has.",
        _PARTITION,
        "if lock.member != member or lock.is_writing:",
        "if lock.is_writing:",
        "tests/server/share/test_partition.py",
    ),
    edit(
        "A dead letter is appended although its record is not archived.",
        "sparklog_server/share/writer.py",
        "return (drafts if actions else ()), actions",
        "return drafts, actions",
        "tests/server/share/test_writer.py",
    ),
)
