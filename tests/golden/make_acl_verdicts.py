"""Rewrites acl_verdicts.txt.xz: 2,000 random sets of ACLs and requests, with the verdicts of Kafka.

SPARKLOG_PEERS=1 python tests/golden/make_acl_verdicts.py   (it fetches Kafka's jars, and starts a JVM)
"""

import lzma
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETS, SEED = 2_000, 43


def main() -> None:
    """Ask Kafka, and write the cases with its answers."""
    sys.path.insert(0, str(HERE.parents[1]))  # for what the tests share
    from tests.client.acl_cases import random_sets
    from tests.peers.authorizing import kafka_answers

    sets = list(random_sets(SEED, SETS))
    answers = kafka_answers(sets)
    text = "".join(
        "\n".join([*lines, f"ANSWERS\t{found}"]) + "\n" for lines, found in zip(sets, answers, strict=True)
    )
    (HERE / "acl_verdicts.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
