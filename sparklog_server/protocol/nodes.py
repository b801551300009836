"""Where a broker is, as clients are told; and as bytes, in the responses that are written by hand.

Concurrency: values.
Sources: KIP-951 (NodeEndpoint of ProduceResponse.json, FetchResponse.json).
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from sparklog_server.protocol.varints import compact_length, uvarint

_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">ii")
_NODE_ENDPOINTS_TAG = b"\x00"
_NO_TAGS = b"\x00"


class Node(NamedTuple):
    """A broker, as clients of one listener reach it; `rack` None: it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class LeaderHint(NamedTuple):
    """Who leads a partition that was asked for at the wrong place; of no use to clients if not newer."""

    node_id: int
    leader_epoch: int


def leader_tag(tag: int, leader: LeaderHint) -> bytes:
    """All tagged fields of a partition that has this one: its current leader."""
    inside = _LEADER.pack(*leader) + _NO_TAGS
    return b"\x01" + uvarint(tag) + uvarint(len(inside)) + inside


def endpoints_tags(nodes: Iterable[Node]) -> bytes:
    """All tagged fields of a response: the nodes, or nothing."""
    told = [
        b"".join(
            (
                _I32.pack(one.node_id),
                _text(one.host),
                _I32.pack(one.port),
                b"\x00" if one.rack is None else _text(one.rack),
                _NO_TAGS,
            )
        )
        for one in nodes
    ]
    if not told:
        return _NO_TAGS
    inside = compact_length(len(told)) + b"".join(told)
    return b"\x01" + _NODE_ENDPOINTS_TAG + uvarint(len(inside)) + inside


def _text(value: str) -> bytes:
    encoded = value.encode()
    return compact_length(len(encoded)) + encoded
