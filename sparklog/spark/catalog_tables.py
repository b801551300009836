"""Tables in Spark's catalog over a Python source: their options are dropped, so none may be given.

Spark keeps the options of CREATE TABLE, and its location, but does not pass them to a Python data source when
the table is read or written: all that it gets is the WITH clause of the query. A table that was made with a
path would neither read nor write it. What we see of CREATE TABLE is the question for the schema, which
carries the table's properties; it is refused if there is an option of ours among them. A table without any
serves SELECT ... WITH and INSERT ... WITH.
Not seen here: CREATE TABLE with columns, and saveAsTable and writeTo(...).create(), which write with their
own options before anybody finds that the table has none (docs/sql.md).
Sources: Spark's V2SessionCatalog and PythonDataSourceV2, as observed with Spark 4.3.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError

# Spark's own properties of a table; no query has an option of such a name.
_TABLE = "provider"
_LOCATION = ("path", "location")
_OPTION_PREFIX = "option."

FIX = (
    "give the options in the query, SELECT * FROM t WITH (path = '...', subscribe = '...'), or use a "
    "temporary view: CREATE TEMPORARY VIEW t USING sparklog OPTIONS (...); docs/sql.md has both"
)


def refuse_options_of_a_table(given: Mapping[str, str]) -> None:
    """Look at what Spark asks a schema with (names in lower case).

    Raises:
        InvalidRequestError: it is for CREATE TABLE, with options that no query would see.
    """
    if _TABLE not in given:
        return
    dropped = [name.removeprefix(_OPTION_PREFIX) for name in given if name.startswith(_OPTION_PREFIX)]
    dropped += [name for name in _LOCATION if name in given]
    if dropped:
        raise InvalidRequestError(
            "UNSUPPORTED_TABLE",
            f"a table in Spark's catalog cannot have options ({', '.join(sorted(set(dropped)))}): Spark does "
            "not hand them to a Python source when the table is used",
            fix=FIX,
        )
