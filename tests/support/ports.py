"""Ports of 127.0.0.1: those of sparklog.testing, and whether somebody has one."""

import errno
import socket

from sparklog.testing.ports import lasting_port, reserved_port

__all__ = ["is_taken", "lasting_port", "reserved_port"]


def is_taken(port: int, *, reuses: bool = False) -> bool:
    """Has somebody this port of 127.0.0.1? `reuses`: as one sees it who shares addresses (SO_REUSEADDR)."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuses))
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
