"""Listeners that other machines reach, and that let everybody in: a warning, or no start.

Not here: authentication (sasl.py, network/tls.py).
"""

import logging

from sparklog.errors import InvalidRequestError
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.network import ListenerAddress, is_loopback, plain_host

_log = logging.getLogger("sparklog_server.security")


def check_listeners(config: ServerConfig) -> None:
    """Warn about each open listener.

    Raises:
        InvalidRequestError: OPEN_LISTENER, with sparklog.require.authentication.
    """
    found = open_listeners(config)
    http = config.http.parsed_http_listener()
    required = config.security.require_authentication
    if required and http and not config.secured_http().authenticates and not _is_local(http.host):
        raise InvalidRequestError(
            "OPEN_LISTENER",
            f"sparklog.http.listener={config.http.http_listener}: found no authentication, and "
            "sparklog.require.authentication=true",
            fix="set sparklog.http.security.protocol=SASL_SSL, or listen on localhost",
        )
    if not found:
        return
    names = ", ".join(map(str, found))
    if config.security.require_authentication:
        raise InvalidRequestError(
            "OPEN_LISTENER",
            f"{names}: found no authentication, and sparklog.require.authentication=true",
            fix="use SASL_SSL, or SSL with ssl.client.auth=required, or listen on localhost",
        )
    for one in found:
        _log.warning(
            "%s LETS EVERYBODY IN: who can connect can read, write and delete every topic. Use SASL_SSL, or "
            "SSL with ssl.client.auth=required, or listen on localhost; "
            "sparklog.require.authentication=true refuses such listeners",
            one,
        )


def open_listeners(config: ServerConfig) -> list[ListenerAddress]:
    """Return the listeners without authentication that are not on a loopback address."""
    secured = config.secured_listeners()
    return [
        one
        for one in config.network.parsed_listeners()
        if not secured[one.name].authenticates and not _is_local(one.host)
    ]


def _is_local(host: str) -> bool:
    return host.lower() == "localhost" or is_loopback(plain_host(host))
