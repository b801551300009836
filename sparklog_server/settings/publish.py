"""Settings of producing: what is checked, gathered and published at once.

Sources: Kafka has no counterpart for most; there each partition syncs alone.
"""

import dataclasses

from sparklog.format.decode import DEFAULT_MAX_DECOMPRESSED_BYTES
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.units import INT_MAX, MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """The fields' names are the keys with underscores."""

    max_decompressed_message_bytes: int = setting(
        "max.decompressed.message.bytes",
        default=DEFAULT_MAX_DECOMPRESSED_BYTES,
        minimum=1024,
        maximum=DEFAULT_MAX_DECOMPRESSED_BYTES,
        unit="bytes",
        doc="""Largest record batch after decompression; checked while it is decompressed. No more than
        readers without a broker decompress. Smaller: one request can make the broker hold less. Beside it, no
        batch may decompress to more than 512 times its size, or max.message.bytes where that is more.""",
    )
    produce_check_bytes: int = setting(
        "sparklog.produce.check.bytes",
        default=32 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory in which compressed batches are looked at, over all connections; a batch that needs more
        is looked at alone. Larger: more large batches at once; smaller: less memory.""",
    )
    publish_linger_ms: int = setting(
        "sparklog.publish.linger.ms",
        default=0,
        minimum=0,
        maximum=60_000,
        unit="ms",
        doc="""Under load, wait at most so long for as many requests as the last bundle had, before the next
        bundle is published; never when idle. Larger: fewer, larger commits, for slow storage; 0: whatever
        came while the last bundle was being written.""",
    )
    publish_bundle_bytes: int = setting(
        "sparklog.publish.bundle.bytes",
        default=32 * MIB,
        minimum=1024,
        maximum=1024 * MIB,
        unit="bytes",
        doc="""Most bytes in one bundle (a larger request is a bundle by itself). Larger: fewer syncs under
        load; smaller: a request waits less for the others in its bundle.""",
    )
    publish_bundle_parts: int = setting(
        "sparklog.publish.bundle.parts",
        default=10_000,
        minimum=1,
        maximum=100_000,
        unit="parts",
        doc="""Most partitions' shares of requests in one bundle, which is one metadata commit of some 300
        bytes for each.""",
    )
    publish_backlog_bytes: int = setting(
        "sparklog.publish.backlog.bytes",
        default=1024 * MIB,
        minimum=1024,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Most bytes that wait to be published, or are being published: batches as they will be stored,
        and 2,000 bytes for each partition's share of a request. Beyond it produce requests are refused with
        an error that clients retry, and batches that their topic's compression.type makes larger wait; when
        those of one request have an eighth of it, the rest of the request is refused with that error, too.
        queued.max.request.bytes mostly pushes back long before.""",
    )
    publish_backlog_requests: int = setting(
        "sparklog.publish.backlog.requests",
        default=100_000,
        minimum=1,
        maximum=INT_MAX,
        unit="requests",
        doc="""As sparklog.publish.backlog.bytes, in requests.""",
    )
