"""SyncGroup: what it must say."""

from tests.server.api.group_requests import GROUP_SETTINGS, GROUP_TOPICS, join, sync
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


def test_sync_must_name_the_protocol(asker: WireClient) -> None:
    joined = join(asker)
    assert sync(asker, joined, protocol_name=None).error_code.name == "inconsistent_group_protocol"
    assert sync(asker, joined, protocol_type="other").error_code.name == "inconsistent_group_protocol"
