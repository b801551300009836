"""Ports for servers that are started some time after their port was chosen, or again on the same one.

The kernel gives any port of its range to a process that binds to port 0 or connects. So between the choice of
such a port and the start of its server, or between its end and its next start, another test's server can get
it, and may even answer in its place. These are below that range, where only a test that asks here takes one.
"""

import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_LOWEST = 32_768
_FIRST = 10_240
_TRIES = 100


def reserved_port() -> socket.socket:
    """Return a socket that holds such a port of 127.0.0.1, and does not listen; close it to use the port."""
    lowest = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else _USUAL_LOWEST
    ports = range(_FIRST, lowest)
    for port in random.SystemRandom().sample(ports, min(_TRIES, len(ports))):
        sock = socket.socket()
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:  # taken
            sock.close()
        else:
            return sock
    raise AssertionError(f"no free port found between {_FIRST} and {lowest}")


def lasting_port() -> int:
    """Return a free port of 127.0.0.1 that stays free unless another test draws it here."""
    with reserved_port() as sock:
        return int(sock.getsockname()[1])
