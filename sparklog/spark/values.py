"""Parsers of option values; every error names the option, the found value and the expected one."""

import json
import re
from collections.abc import Mapping
from typing import overload

from sparklog.errors import InvalidRequestError, shown

# --- schema ------------------------------------------------------------------------------------------
#
# The fixed schema of the source: the columns of Spark's Kafka connector.
#
# Not in rows.py, so that planning does not import Arrow.


# TIMESTAMP would be a type without a zone if spark.sql.timestampType is TIMESTAMP_NTZ.
SCHEMA_SQL = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp_ltz, timestampType int"
)
HEADERS_SQL = "headers array<struct<key:string,value:binary>>"
_NAMES = [column.split()[0] for column in SCHEMA_SQL.split(", ")]


def sql_schema(*, include_headers: bool) -> str:
    """Return the columns and their types, in Spark SQL."""
    return f"{SCHEMA_SQL}, {HEADERS_SQL}" if include_headers else SCHEMA_SQL


def check_user_schema(names: list[str], *, include_headers: bool) -> None:
    """Refuse a schema of the user: the schema is fixed, as that of Kafka's connector.

    Raises:
        InvalidRequestError: the names differ.
    """
    expected = [*_NAMES, "headers"] if include_headers else _NAMES
    if names != expected:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"the source has a fixed schema ({', '.join(expected)}), and a schema with "
            f"{', '.join(names)} was given",
            fix="remove schema(...), and parse the column value instead",
        )


# --- values ------------------------------------------------------------------------------------------


_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_DURATION_UNITS_MS = {
    "": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def invalid(name: str, found: object, expected: str) -> InvalidRequestError:
    """Return the error for a malformed option value."""
    return InvalidRequestError(
        "INVALID_OPTION",
        f"option {name}: found {shown(name, found)}, expected {expected}",
        fix=f"correct {name}",
    )


@overload
def parse_int(given: Mapping[str, str], name: str, *, minimum: int, unit: str = "") -> int | None: ...
@overload
def parse_int(given: Mapping[str, str], name: str, *, minimum: int, default: int) -> int: ...
def parse_int(
    given: Mapping[str, str], name: str, *, minimum: int, default: int | None = None, unit: str = ""
) -> int | None:
    """Parse a whole number; `unit` is for the error."""
    text = given.get(name.lower())
    if text is None:
        return default
    expected = f"a whole number of at least {minimum}{unit and f', {unit}'}"
    try:
        value = int(text)
    except ValueError:
        raise invalid(name, text, expected) from None
    if not minimum <= value < 2**63:
        raise invalid(name, text, expected)
    return value


@overload
def parse_bool(given: Mapping[str, str], name: str, *, default: bool) -> bool: ...
@overload
def parse_bool(given: Mapping[str, str], name: str, *, default: None) -> bool | None: ...
def parse_bool(given: Mapping[str, str], name: str, *, default: bool | None) -> bool | None:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise invalid(name, text, "true or false")
    return text.strip().lower() == "true"


def parse_switch(given: Mapping[str, str], name: str, *, default: str) -> bool:
    """Return True for auto, False for off. `default` is validated too."""
    text = given.get(name.lower(), default)
    if text.strip().lower() not in ("auto", "off"):
        raise invalid(name, text, "auto or off")
    return text.strip().lower() == "auto"


def parse_duration_ms(given: Mapping[str, str], name: str, *, default_ms: int) -> int:
    """Parse a duration in Spark's format: 15m, 30s, 500ms; a bare number is milliseconds."""
    text = given.get(name.lower())
    if text is None:
        return default_ms
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _DURATION_UNITS_MS:
        raise invalid(name, text, "a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(match[1]) * _DURATION_UNITS_MS[match[2]]


def parse_json_object(name: str, text: str) -> dict[str, object]:
    """Parse a JSON object; raise for duplicate keys, of which Python's parser would take the last."""

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise invalid(name, text, f"each topic and partition once; {key[:100]!r} is duplicate")
            found[key] = value
        return found

    try:
        value = json.loads(text, object_pairs_hook=object_of)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(name, text, f"a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise invalid(name, text, "a JSON object")
    return value


def parse_partition_map(name: str, text: str) -> dict[tuple[str, int], int]:
    """Parse ``{"topic": {"0": 23}}`` to ``{("topic", 0): 23}``."""
    expected = 'JSON of the form {"topic": {"0": 23, "1": -2}}'
    result = {}
    for topic, partitions in parse_json_object(name, text).items():
        if not isinstance(partitions, dict):
            raise invalid(name, text, expected)
        for partition, number in partitions.items():
            if not partition.isdecimal() or isinstance(number, bool) or not isinstance(number, int):
                raise invalid(name, text, expected)
            key = topic, int(partition)
            if key in result:
                raise invalid(name, text, f"each partition once; {topic}-{key[1]} is duplicate")
            result[key] = number
    return result
