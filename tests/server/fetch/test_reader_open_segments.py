"""Files of segments that are open: bounded, shared, and opened again once there is more in them."""

from pathlib import Path

import sparklog
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.reader import OpenSegments, StoredReader
from tests.server.fetch.stored import TOPIC, bytes_of, offsets_of, stored_log


def test_open_files_are_bounded_and_shared(tmp_path: Path) -> None:
    with stored_log(tmp_path / "log") as stored:
        states = []
        for _ in range(5):
            stored.append(10)
            stored.log.close()  # the next append begins another segment
            states.append(stored.state)
        segments = OpenSegments(stored.log.store, limit=2)
        reader = StoredReader(stored.log.store, Leadership(1, stored.log), segments)
        found, _ = reader.read(TOPIC, stored.state, 0, max_bytes=1 << 20)
        assert offsets_of(bytes_of(found.chunks)) == list(range(50))
        assert len(segments) == 2
        reader.close()
        assert len(segments) == 0


def test_a_segment_that_grew_is_opened_again(tmp_path: Path) -> None:
    with stored_log(tmp_path / "log") as stored, sparklog.open(str(tmp_path / "log")):
        reader = StoredReader(stored.log.store, Leadership(1, stored.log))
        for count in (10, 20, 30):
            stored.append(10)
            found, _ = reader.read(TOPIC, stored.state, 0, max_bytes=1 << 20)
            assert offsets_of(bytes_of(found.chunks)) == list(range(count))
        reader.close()
