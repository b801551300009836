"""What `sparklog doctor` says of the brokers of a root: fenced ones, partitions nobody leads.

Only the root is looked at: that a broker was killed is seen once the controller has fenced it.
Not here: other checks of a root (root_checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparklog.cli.environment_checks import Finding, Status
from sparklog.cli.output import human_age

if TYPE_CHECKING:
    from sparklog.client.cluster_view import BrokerView
    from sparklog.metadata import Image

CHECK = "brokers"
MAX_NAMED = 5
SILENT_MS = 60_000  # far above any session that is worth having


def check_brokers(image: Image, seen: Mapping[int, int]) -> Finding | None:
    """How those are that serve the root; None where nobody does, and nobody did.

    Args:
        seen: how many ms ago each gave a sign of life.
    """
    from sparklog.client.cluster_view import describe_brokers, is_served

    if not is_served(image):
        return None
    found = describe_brokers(image)
    problem, fix = _problem(image, found, seen)
    return Finding(CHECK, Status.WARN if fix else Status.OK, _told(found) + problem, fix)


def _problem(image: Image, found: list[BrokerView], seen: Mapping[int, int]) -> tuple[str, str]:
    """What is wrong, and what to do; nothing for nothing."""
    from sparklog.client.cluster_view import describe_controller, describe_partitions
    from sparklog.metadata import NO_NODE

    running = [one for one in found if not one.is_fenced]
    if not running:
        return (
            ": no broker runs, so that Kafka clients are served by nobody",
            "start one; Spark and the command line need none",
        )
    silent = [one.node_id for one in running if seen.get(one.node_id, 0) > SILENT_MS]
    if silent:
        ages = ", ".join(f"{node_id} ({human_age(seen[node_id])})" for node_id in silent[:MAX_NAMED])
        return (
            f"; last seen: {ages}: dead, and nobody has fenced them",
            "start a broker; Spark and the command line need none",
        )
    if describe_controller(image).node_id == NO_NODE:
        return (
            ": no controller",
            "one is elected within broker.session.timeout.ms, if a broker runs: look at controller.log",
        )
    unavailable = sum(one.is_unavailable for one in describe_partitions(image))
    if unavailable:
        return (
            f"; partitions that nobody leads: {unavailable:,}",
            "`sparklog partitions list --unavailable` names them: start one of their replicas",
        )
    if len(running) < len(found):
        return (
            "",
            "start the fenced brokers; or, if they will not come back, `sparklog brokers unregister ID`",
        )
    return "", ""


def _told(found: list[BrokerView]) -> str:
    """`1 (controller), 2, 3 (fenced)`, the first few of each kind."""
    words = [_word(one) for one in found[:MAX_NAMED]]
    more = [f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
    return ", ".join([*words, *more]) or "none is registered"


def _word(one: BrokerView) -> str:
    marks = [one.state] if one.state != "running" else []
    marks += ["controller"] if one.is_controller else []
    return f"{one.node_id} ({', '.join(marks)})" if marks else str(one.node_id)
