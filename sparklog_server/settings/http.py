"""Settings of the HTTP server: metrics and health."""

import dataclasses

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import setting
from sparklog_server.settings.addresses import ListenerAddress, parse_addresses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The fields' names are the keys with underscores."""

    http_listener: str = setting(
        "sparklog.http.listener",
        default="",
        doc="""Where /metrics (Prometheus), /health and /ready are served, as host:port; an empty host means
        all addresses, port 0 any free port. Empty: nowhere. There is no login: keep it to a network you
        trust.""",
    )

    def __post_init__(self) -> None:
        """What one declaration cannot say."""
        self.parsed_http_listener()

    def parsed_http_listener(self) -> ListenerAddress | None:
        """Where metrics are served, if anywhere."""
        text = self.http_listener.strip()
        if not text:
            return None
        try:
            (address,) = parse_addresses("sparklog.http.listener", f"HTTP://{text.removeprefix('http://')}")
        except (InvalidRequestError, ValueError):  # ValueError: several
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"sparklog.http.listener: found {text[:100]!r}, expected one host:port",
                fix="write localhost:9404",
            ) from None
        return address
