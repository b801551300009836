"""Faults under load of librdkafka, kafka-python and aiokafka (Java's client: tests/peers).

Producers are idempotent, each with several requests in flight; a group of each client reads, commits, and
sees everything; an embedded writer and reader work beside them. All is there once, in its producer's order;
offsets that were committed never go back; and nobody is stuck. What the environment says: striking.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers.striking import STORES, TIMEOUT_SECONDS, strike_under_load

SHORT = ["SIGKILL of the controller", "rolling restart"]
CLIENTS = {"librdkafka": "rd", "kafka-python": "kp", "aiokafka": "aio"}


def load(bootstrap: str, root: str) -> list[tuple[str, str, str, str]]:
    """A producer and a group of each client, and those that need no broker."""
    words = [("producing", client, bootstrap, f"p-{short}") for client, short in CLIENTS.items()]
    words += [("consuming", client, bootstrap, f"{short}.0") for client, short in CLIENTS.items()]
    words += [("consuming", "librdkafka", bootstrap, "rd.1")]
    return [*words, ("beside", "writer", root, "writer"), ("beside", "reader", root, "reader")]


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize("store", STORES)
def test_faults_under_load(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, report: Callable[[str], None]
) -> None:
    server = request.getfixturevalue("s3_server") if store == "s3" else None
    strike_under_load(load, SHORT, tmp_path, server, report)
