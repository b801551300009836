"""What clients felt of faults: how long no partition's producers heard anything, and how long they waited.

Figures, not promises: a test on a machine with other things to do can hold nobody to them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.brokers.faults import Struck
from tests.history.events import Event


@dataclass(frozen=True, slots=True)
class Felt:
    """Of one fault, in milliseconds."""

    fault: Struck
    longest_ms: dict[str, float]  # of each partition: between two acknowledgements
    waited_ms: Sequence[float]  # of each record that was sent meanwhile

    @property
    def worst_ms(self) -> float:
        return max(self.longest_ms.values(), default=0.0)


def felt(events: Iterable[Event], faults: Sequence[Struck]) -> list[Felt]:
    """One for each fault, in their order."""
    sent = [one for one in events if one.f == "send" and one.type == "ok" and one.t_done is not None]
    told: dict[str, list[int]] = defaultdict(list)
    for one in sent:
        assert one.t_done is not None
        told[one.key or ""].append(one.t_done)
    moments = {key: np.sort(np.array(times)) for key, times in told.items()}
    begun = np.array([one.t_inv for one in sent])
    waited = np.array([(one.t_done or 0) - one.t_inv for one in sent]) / 1000
    found = []
    for fault in faults:
        longest = {key: _longest(times, fault) for key, times in moments.items()}
        within = (begun >= fault.began_us) & (begun < fault.ended_us)
        found.append(Felt(fault, longest, waited[within].tolist()))
    return found


def _longest(times: "np.ndarray[tuple[int], np.dtype[np.int64]]", fault: Struck) -> float:
    """Of the gaps that have a part in the fault's time."""
    gaps = np.diff(times)
    touched = (times[1:] > fault.began_us) & (times[:-1] < fault.ended_us)
    return float(gaps[touched].max(initial=0)) / 1000


def summary(found: Sequence[Felt]) -> str:
    """A line for each kind of fault."""
    kinds: dict[str, list[Felt]] = defaultdict(list)
    for one in found:
        kinds[one.fault.name].append(one)
    lines = []
    for name, several in kinds.items():
        worst = sorted(one.worst_ms for one in several)
        waited = np.array([ms for one in several for ms in one.waited_ms] or [0.0])
        p50, p99 = np.percentile(waited, (50, 99))
        lines.append(
            f"{name}: {len(several)} rounds; a partition was not acknowledged anything for "
            f"{worst[len(worst) // 2]:.0f} ms (median of rounds), {worst[-1]:.0f} ms (worst); "
            f"records waited {p50:.0f} ms (p50), {p99:.0f} ms (p99), {waited.max():.0f} ms (worst)"
        )
    return "\n".join(lines)
