"""The verdicts of ACLs are those of Kafka's authorizer, for other random sets each time."""

import os
import secrets

from benchmarks.peers.fetching import Jars
from tests.client.acl_cases import answers, random_sets
from tests.peers.authorizing import kafka_answers


def test_verdicts_are_those_of_kafka(kafka_jars: Jars) -> None:
    seed = int(os.environ.get("SPARKLOG_SEED") or secrets.randbelow(1 << 32))
    print(f"SPARKLOG_SEED={seed}")
    sets = list(random_sets(seed, 2_000))
    for lines, found in zip(sets, kafka_answers(sets), strict=True):
        assert answers(lines) == found, "\n".join(lines)
