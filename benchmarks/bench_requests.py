"""What publishing, merging, compaction and a vacuum ask of an object store: requests for each GiB.

Counted at the client, on a SeaweedFS of this machine, or with --store gs or azure on an emulator (`make
test-stores` builds them); what is counted does not depend on how fast it is. `--megabytes` in publishes of
`--publish-kb`, each an object of its own with something for each of `--partitions` partitions: merged whole;
and as much with keys, each of which comes `--rewrites` times: compacted, then once more with a tenth as much
new. In the end a vacuum that keeps nothing for slow writers. GiB: of what was read for it; a vacuum's, of the
files that went.

    python -m benchmarks.bench_requests [--megabytes 256] [--publish-kb 128,1024] [--partitions 8]
                                        [--rewrites 4] [--store s3]
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sparklog
from benchmarks.bench_compaction import KEY_BYTES, VALUE_BYTES, binary
from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.maintenance import compact, optimize, vacuum
from sparklog.storage.object_store import ObjectStore
from tests.bucket_servers import NAMES, BucketServer, make_server
from tests.seaweed import SeaweedServer

GIB = 1 << 30
RECORD_BYTES = KEY_BYTES + VALUE_BYTES + 10
# As a bill tells them apart: what costs as a PUT does, what as a GET, and what costs nothing.
KINDS = {
    "PUT": (
        *("put_object", "upload_part", "create_multipart_upload", "complete_multipart_upload"),
        *("put_part", "complete_upload", "compose_object"),
    ),
    "LIST": ("list_objects_v2", "list_multipart_uploads", "list_objects"),
    "GET": ("get_object", "head_object"),
    "DELETE": ("delete_object", "delete_objects", "abort_multipart_upload"),
}

BYTES = {"received_bytes", "sent_bytes"}


def requests_of(log: SparkLog) -> Counter[str]:
    assert isinstance(log.store, ObjectStore)
    return Counter(log.store.requests)


def fill(log: SparkLog, topic: str, publishes: int, publish_kb: int, partitions: int, keys: int) -> None:
    """`keys`: so many different ones, of each partition."""
    count = publish_kb * 1024 // RECORD_BYTES
    for number in range(publishes):
        chance = np.random.default_rng((len(topic), publish_kb, log.image.commit, number))
        key = np.zeros((count, 2), np.uint64)
        key[:, 0] = chance.integers(0, keys, count)
        values = chance.integers(0, 256, count * VALUE_BYTES, np.uint8)
        table = pa.table(
            {
                "key": binary(key.tobytes(), count, KEY_BYTES),
                "value": binary(values.tobytes(), count, VALUE_BYTES),
                "partition": pa.array(np.arange(count, dtype=np.int32) % partitions),
            }
        )
        log.append(topic, table)


def measured(root: str, options: dict[str, Any], name: str, work: Callable[[SparkLog], int]) -> None:
    """`work` says how many bytes it was about."""
    with sparklog.open(root, create=False, storage_options=options) as log:
        before = requests_of(log)
        size = work(log)
        made = requests_of(log) - before
    unknown = made.keys() - {one for names in KINDS.values() for one in names} - BYTES
    assert not unknown, unknown
    counts = {kind: sum(made[one] for one in names) for kind, names in KINDS.items()}
    print(
        json.dumps(
            {"step": name, "MB": round(size / 1e6, 1)}
            | counts
            | {f"{kind} a GiB": round(count / size * GIB) for kind, count in counts.items() if size}
        ),
        flush=True,
    )


def merge(log: SparkLog) -> int:
    return sum(one.merged_bytes for one in optimize(log.metadata, SystemClock()).topics.values())


def compacted(log: SparkLog) -> int:
    return sum(one.bytes_before for one in compact(log.metadata, SystemClock(), ["keyed"]).topics.values())


def vacuumed(log: SparkLog) -> int:
    return vacuum(log.metadata, SystemClock(), retain_ms=0, force=True).dead.size_bytes


def run(
    server: SeaweedServer | BucketServer, megabytes: int, publish_kb: int, partitions: int, rewrites: int
) -> None:
    root = server.new_root()
    options = server.storage_options if isinstance(server, SeaweedServer) else {}
    publishes = megabytes * 1024 // publish_kb
    keys = max(1, megabytes * 1024 * 1024 // RECORD_BYTES // rewrites)
    with sparklog.open(root, storage_options=options) as log:
        log.create_topic("plain", partitions)
    each = f"publishes of {publish_kb} KB"

    def published(log: SparkLog) -> int:
        fill(log, "plain", publishes, publish_kb, partitions, keys)
        return publishes * publish_kb * 1024

    measured(root, options, each, published)
    measured(root, options, f"merge, {each}", merge)
    measured(root, options, "vacuum of what was merged", vacuumed)
    with sparklog.open(root, storage_options=options) as log:
        log.create_topic("keyed", partitions, {"cleanup.policy": "compact"})
        fill(log, "keyed", publishes, publish_kb, partitions, keys)
    measured(root, options, f"compaction, {each}", compacted)
    with sparklog.open(root, storage_options=options) as log:
        fill(log, "keyed", max(1, publishes // 10), publish_kb, partitions, keys)
    measured(root, options, "compaction, a tenth new", compacted)
    measured(root, options, "vacuum of what was compacted", vacuumed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--publish-kb", default="128,1024")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rewrites", type=int, default=4)
    parser.add_argument("--store", choices=("s3", *NAMES), default="s3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        server = SeaweedServer(here) if options.store == "s3" else make_server(options.store, here)
        server.start()
        if isinstance(server, BucketServer):
            os.environ.update(server.environment)
        try:
            for publish_kb in options.publish_kb.split(","):
                run(server, options.megabytes, int(publish_kb), options.partitions, options.rewrites)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
