"""Limits so small that every history meets them: what the code remembers, and for how long.

Invariant: the same for all processes of a history, and for whoever reads it in the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from sparklog.maintenance import compacted_batches
from sparklog.maintenance import compacted_batches as offset_map
from sparklog.metadata.model import sequences, writers
from tests.simulation.setting import Setting


@contextmanager
def small_limits(setting: Setting) -> Iterator[None]:
    """Within: the limits that the history's dice have thrown."""
    joined_bytes = compacted_batches.JOINED_BYTES
    if setting.compaction is not None:
        joined_bytes = setting.compaction.joined_bytes
    with (
        mock.patch.object(offset_map, "MIN_SLOTS", 4),
        mock.patch.object(compacted_batches, "JOINED_BYTES", joined_bytes),
        mock.patch.object(writers, "REQUEST_WINDOW", setting.request_window),
        mock.patch.object(writers, "MAX_PUBLISHERS", setting.publishers_remembered),
        mock.patch.object(sequences, "MAX_PRODUCERS", setting.producers_remembered),
    ):
        yield
