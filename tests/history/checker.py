"""The history checker: every anomaly by its name, after Jepsen's Kafka workload, with additions of ours.

    verdict = check(read_history(paths))
    assert not verdict.counts, verdict

In topics that are compacted records may go: there a record that is missing, and a gap, are no anomalies here.
What has to be left of them is known to who knows their keys (tests/simulation/compacted.py).
What is promised is more than Kafka does: one order of all commits of a root. So circles of writes (G0),
which Jepsen tolerates in Kafka, are anomalies here. Only records of others between two of one operation
(int-send-skip) are not.
Cost: linear but for sorting; NumPy over whole columns. A million operations take some seconds.
"""

from collections.abc import Collection, Iterable

from tests.history.columns import build_history
from tests.history.events import Event, completed
from tests.history.made import check_made
from tests.history.moments import check_epochs, check_groups, check_log_ends, measure_lag
from tests.history.order import check_cycles, check_polls, check_sends
from tests.history.records import check_records, find_versions, find_writers
from tests.history.verdict import Verdict


def check(events: Iterable[Event], *, compacted: Collection[str] = ()) -> Verdict:
    """Judge a whole history, of all processes. Invocations without an end are of unknown outcome.

    Args:
        compacted: topics whose records may go.
    """
    done = completed(events)
    history = build_history(done, compacted)
    verdict = Verdict(operations=history.operations + len(history.others))
    writers = find_writers(history)
    versions = find_versions(history, verdict)
    check_records(history, writers, versions, verdict)
    check_polls(history, versions, verdict)
    check_sends(history, versions, verdict)
    check_cycles(history, writers, versions, verdict)
    check_epochs(done, verdict)
    check_groups(history, verdict)
    check_made(history, verdict)
    check_log_ends(history, verdict)
    measure_lag(history, versions, verdict)
    return verdict
