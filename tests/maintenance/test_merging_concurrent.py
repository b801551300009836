"""Two machines that merge one bucket beside writers: nothing is lost, doubled or put in another order."""

import threading

import pyarrow as pa

import sparklog
from sparklog.maintenance import MergeLimits, optimize


def test_two_at_once_on_s3(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", 2)
        failed: list[Exception] = []
        merged: dict[int, int] = {0: 0, 4 << 20: 0}
        written: dict[int, int] = {}

        def write(writer: int) -> None:
            """So often, and on until something was merged beside them."""
            number = 0
            with sparklog.open(s3_root, create=False) as own:
                while number < 25 or not (any(merged.values()) or failed):
                    value = pa.array([b"%d-%d" % (writer, number)], pa.binary())
                    own.append("t", pa.table({"value": value}), partition=writer % 2)
                    number += 1
                    written[writer] = number

        def merge(shared_bytes: int) -> None:
            limits = MergeLimits(fan_in=None, shared_bytes=shared_bytes)
            try:
                with sparklog.open(s3_root, create=False) as own:
                    while any(one.is_alive() for one in writers):
                        report = optimize(own.metadata, own.clock, limits=limits)
                        merged[shared_bytes] += report.topics["t"].merged_extents
            except Exception as error:
                failed.append(error)

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        mergers = [threading.Thread(target=merge, args=(shared,)) for shared in merged]
        for one in [*writers, *mergers]:
            one.start()
        for one in [*writers, *mergers]:
            one.join()
        assert failed == []
        log.refresh()
        for partition in range(2):
            found = log.read("t", partition, 0)["value"].to_pylist()
            for writer in (partition, partition + 2):
                own = [value for value in found if value.startswith(b"%d-" % writer)]
                assert own == [b"%d-%d" % (writer, number) for number in range(written[writer])]
            assert len(found) == written[partition] + written[partition + 2]
