"""The fixed schema of the source: the columns of Spark's Kafka connector.

Apart from rows.py, which makes them, because what only plans a query need not load Arrow.
"""

from sparklog.errors import InvalidRequestError

# TIMESTAMP alone would be one without a zone where spark.sql.timestampType is TIMESTAMP_NTZ: another type.
SCHEMA_SQL = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp_ltz, timestampType int"
)
HEADERS_SQL = "headers array<struct<key:string,value:binary>>"
_NAMES = [column.split()[0] for column in SCHEMA_SQL.split(", ")]


def sql_schema(*, include_headers: bool) -> str:
    """The columns and their types, in Spark SQL."""
    return f"{SCHEMA_SQL}, {HEADERS_SQL}" if include_headers else SCHEMA_SQL


def check_user_schema(names: list[str], *, include_headers: bool) -> None:
    """The schema is fixed, as Kafka's is.

    Raises:
        InvalidRequestError: the user gave a schema of their own.
    """
    expected = [*_NAMES, "headers"] if include_headers else _NAMES
    if names != expected:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"the source has a fixed schema ({', '.join(expected)}), and a schema with "
            f"{', '.join(names)} was given",
            fix="remove schema(...), and parse the column value instead",
        )
