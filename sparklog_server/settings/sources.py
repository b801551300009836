"""The sources of settings: flags, else the environment, else server.properties, else the defaults.

Invariants: every key from every source is known, or refused with a reason, or named in one warning because it
    has no effect here (kafka_only.py); all errors are reported together, with their places.
Names in the environment: SPARKLOG_SERVER_ and the key in capitals, with underscores for dots. Kubernetes also
    sets such variables, in every pod of a namespace with a service called sparklog-server: they are skipped.
Sources: Kafka's server.properties; Java's Properties format (javaproperties).
"""

import dataclasses
import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import javaproperties

from sparklog.client.client_config import resolved
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.log.config import TopicConfig
from sparklog.log.setting import LONG_MAX, declared_settings, lookup_setting
from sparklog_server import CONFIG_VARIABLE
from sparklog_server.settings.config import SETTINGS, ServerConfig
from sparklog_server.settings.kafka_only import why_harmless, why_kafka_only
from sparklog_server.settings.security import PREFIX, is_secret, parse_override

_log = logging.getLogger("sparklog_server")
_MINUTE_MS = 60_000
# Kafka's units of one setting; the smallest comes first, and wins.
RETENTION_UNITS = {
    "log.retention.ms": 1,
    "log.retention.minutes": _MINUTE_MS,
    "log.retention.hours": 60 * _MINUTE_MS,
}
ENVIRONMENT_PREFIX = "SPARKLOG_SERVER_"
_OF_A_SERVICE = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|(\w+_)?PORT=(tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)
SYNONYMS = {
    "broker.id": "node.id",
    "log.dir": "log.dirs",
}


def load_config(
    *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]
) -> ServerConfig:
    """Return the settings in force.

    Raises:
        InvalidRequestError: UNKNOWN_CONFIG, INVALID_CONFIG_VALUE; names all wrong keys.
    """
    of_file = {} if file is None else read_properties(file)
    sources = [
        (of_file, f"{file}"),
        (environment_settings(environment), "the environment"),
        (flags, "flags"),
    ]
    values: dict[str, str] = {}
    problems: list[SparklogError] = []
    harmless: dict[str, str] = {}
    controllers: set[str] = set()
    retention: dict[str, tuple[str, str]] = {}
    for settings, where in sources:
        for key, text in canonical(settings, where).items():
            why = why_harmless(key, text)
            # Kafka's own file has its default for all units; a flag, or the environment, is an explicit
            # choice.
            if why is not None and (key not in RETENTION_UNITS or settings is of_file):
                harmless[key] = why
                if key == "controller.listener.names":
                    controllers |= {name.strip().upper() for name in text.split(",")}
                continue
            if key in RETENTION_UNITS:
                retention[key] = text, where
                continue
            problem = _why_secret(key) if settings is flags else None
            problem = problem or _why_wrong(key, text, where)
            if problem is None:
                values[key] = text
            else:
                problems.append(problem)
    _add_retention(values, retention, problems)
    _raise(problems)
    for key in ("listeners", "advertised.listeners"):
        if controllers and key in values:
            values[key] = _without(values[key], controllers)
    of_services = [name for name, text in environment.items() if _is_of_a_service(name, text)]
    if of_services:
        _log.warning(
            "ignoring variables that Kubernetes sets for services: %s", ", ".join(sorted(of_services))
        )
    if harmless:
        ignored = "; ".join(f"{key} ({why})" for key, why in sorted(harmless.items()))
        _log.warning("ignoring Kafka settings without effect: %s", ignored)
    return ServerConfig.parse(values)


def _raise(problems: list[SparklogError]) -> None:
    """Raise one error with all problems."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InvalidRequestError(
            problems[0].code,
            "\n  ".join([f"found {len(problems)} invalid settings:", *(one.message for one in problems)]),
            fix="; ".join(dict.fromkeys(one.fix for one in problems)),
        )


def _add_retention(
    values: dict[str, str], retention: Mapping[str, tuple[str, str]], problems: list[SparklogError]
) -> None:
    """Set log.retention.ms from any unit; the smallest unit wins, from whichever source."""
    for key, unit_ms in reversed(RETENTION_UNITS.items()):
        if key in retention:
            try:
                values["log.retention.ms"] = _retention_ms(key, *retention[key], unit_ms)
            except InvalidRequestError as error:
                problems.append(error)


def _retention_ms(key: str, text: str, where: str, unit_ms: int) -> str:
    """Return log.retention.ms of a value in another unit; below 0 is forever, as in Kafka."""
    one = dataclasses.replace(SETTINGS["log.retention.ms"][1], key=key, maximum=LONG_MAX // unit_ms)
    try:
        found = one.parse(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.code, f"{where}: {error.message}", fix=error.fix) from None
    return str(found * unit_ms if found >= 0 else found)


def _without(listeners: str, names: Collection[str]) -> str:
    """Return the listeners without those of controllers."""
    kept = [one for one in listeners.split(",") if one.partition("://")[0].strip().upper() not in names]
    return ",".join(kept)


def read_properties(path: Path) -> dict[str, str]:
    """Read a file in Java's format; ${env:NAME} and ${file:PATH} are replaced (client/client_config.py)."""
    try:
        data = path.read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("iso-8859-1")  # the encoding that Java uses
        settings = dict(javaproperties.loads(text))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            "INVALID_OPTION", f"{path}: {error}", fix="give --config a readable file of key=value lines"
        ) from error
    return resolved(settings, str(path), os.environ)


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings from SPARKLOG_SERVER_*; a name that fits no key becomes one that is refused."""
    names = {key.upper().replace(".", "_"): key for key in (*SETTINGS, *SYNONYMS, *RETENTION_UNITS)}
    settings = {}
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE:
            bare = name.removeprefix(ENVIRONMENT_PREFIX)
            if not _is_of_a_service(name, text):
                settings[names.get(bare, bare.lower().replace("_", "."))] = text
    return settings


def _is_of_a_service(name: str, text: str) -> bool:
    """True if Kubernetes sets the variable, for clients of a service of this name."""
    if not name.startswith(ENVIRONMENT_PREFIX):
        return False
    return _OF_A_SERVICE.fullmatch(f"{name.removeprefix(ENVIRONMENT_PREFIX)}={text}") is not None


def canonical(settings: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the settings with synonyms replaced."""
    result: dict[str, str] = {}
    for key, text in settings.items():
        name = SYNONYMS.get(key, key)
        if name in result and result[name] != text:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{where}: found {key}={text} and another value of {name}, which means the same",
                fix=f"give {name} once",
            )
        result[name] = text
    return result


def _why_secret(key: str) -> SparklogError | None:
    """Other users of the machine see a command line (ps)."""
    if not is_secret(key, SETTINGS):
        return None
    return InvalidRequestError(
        "INVALID_OPTION",
        f"flags: found {key}, a secret",
        fix=f"put it in the file of settings, such as {key}=${{file:/run/secrets/NAME}} or ${{env:NAME}}",
    )


def _why_wrong(key: str, text: str, where: str) -> SparklogError | None:
    if key.startswith(PREFIX):
        return _why_wrong_listener(key, text, where)
    why = None if key in SETTINGS else why_kafka_only(key)
    if why is not None:
        return InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"{where}: found {key}, a Kafka setting that means nothing here: {why}",
            fix=f"remove {key}",
        )
    if key not in SETTINGS and key in declared_settings(TopicConfig):
        return InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"{where}: found {key}, a setting of topics",
            fix=f"set it on a topic, or for all: sparklog root alter --config {key}={text}",
        )
    try:
        lookup_setting(key, SETTINGS, "broker").parse(text)
    except SparklogError as error:
        return InvalidRequestError(error.code, f"{where}: {error.message}", fix=error.fix)
    return None


def _why_wrong_listener(key: str, text: str, where: str) -> SparklogError | None:
    try:
        parse_override(key, text)
    except SparklogError as error:
        return InvalidRequestError(error.code, f"{where}: {error.message}", fix=error.fix)
    return None
