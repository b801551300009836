"""Two machines that merge one bucket beside writers: nothing is lost, doubled or put in another order."""

import threading

import pyarrow as pa

import sparklog
from sparklog.maintenance import MergeLimits, optimize


def test_two_at_once_on_s3(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", 2)
        failed: list[Exception] = []

        def write(writer: int) -> None:
            with sparklog.open(s3_root, create=False) as own:
                for number in range(25):
                    value = pa.array([b"%d-%d" % (writer, number)], pa.binary())
                    own.append("t", pa.table({"value": value}), partition=writer % 2)

        def merge(shared_bytes: int) -> None:
            limits = MergeLimits(fan_in=None, shared_bytes=shared_bytes)
            try:
                with sparklog.open(s3_root, create=False) as own:
                    while any(one.is_alive() for one in writers):
                        optimize(own.metadata, own.clock, limits=limits)
            except Exception as error:
                failed.append(error)

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        mergers = [threading.Thread(target=merge, args=(shared,)) for shared in (0, 4 << 20)]
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
                assert own == [b"%d-%d" % (writer, number) for number in range(25)]
            assert len(found) == 50
