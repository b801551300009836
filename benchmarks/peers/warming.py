"""Warming up until it is level.

A JVM compiles what is hot over several runs: Kafka's broker took 5.5, 3.8 and 2.3 s of CPU for the same
400 MB, and what is divided by its speed falls as it goes on. So everybody does the same work in turns,
uncounted, until nobody's CPU falls any more; how it went is noted with the results.

CPU and not time: on a machine that others use it is the steadier of the two.
"""

from collections.abc import Callable, Sequence

from benchmarks.peers.results import Results

LEVEL = 0.95  # of the least CPU before: what is not below it is no gain any more
MOST_TURNS = 8


def is_level(costs: Sequence[float]) -> bool:
    """Have the last two runs gained nothing on those before? One alone may have met a disturbance."""
    return len(costs) >= 3 and min(costs[-2:]) >= LEVEL * min(costs[:-2])


def warm_up(
    what: str,
    names: Sequence[str],
    run: Callable[[int, int], float | None],
    results: Results,
    *,
    most: int = MOST_TURNS,
) -> None:
    """All in turns, until all are level, or `most` times.

    Args:
        run: (turn, position in names) -> CPU seconds of the work; None: it failed, and was noted.
    """
    costs: list[list[float]] = [[] for _ in names]
    for turn in range(most):
        for position in range(len(names)):
            cost = run(turn, position)
            if cost is not None:
                costs[position].append(cost)
        if all(is_level(one) for one in costs):
            break
    for name, found in zip(names, costs, strict=True):
        outcome = "level" if is_level(found) else f"not level after {len(found)}"
        results.note(
            f"warm-up, {what}, {name}: {', '.join(f'{cost:.2f}' for cost in found)} s of CPU: {outcome}"
        )
