"""SQL of users: one statement that reads the tables of a run, and can do nothing else.

DuckDB's parser gives the tree of the statement, and only node types, tables and functions that are listed here, or of
which the engine says that they have no side effects, may be in it. Behind that are two more walls, in case it has a
gap: the statement runs in a read-only transaction, so tables cannot change; and the connection reaches no file but
those of the store, loads no extension, and its settings are locked. docs/adr/0135-uvicorn-and-starlette.md
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rankscope.errors import QueryError
from rankscope.readers.database import new_database
from rankscope.sql import sql_name, sql_text

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

# Nodes of the parser's tree that only read (DuckDB 1.4 to 2.0). Its query nodes that write, such as
# DELETE_QUERY_NODE in a WITH, and any that a later version adds, are not among them.
_QUERY_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLE_NODES = {
    "BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION",
}  # fmt: skip
_MODIFIERS = {
    "DISTINCT_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER",
    "ASCENDING", "DESCENDING", "ORDER_DEFAULT",
}  # fmt: skip
_NODES = _QUERY_NODES | _TABLE_NODES | _MODIFIERS
_TYPE_INFO = "_TYPE_INFO"
"""The ending of nodes that describe a data type."""
_EXPRESSIONS = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
    "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip
_TABLE_FUNCTIONS = {
    "range", "generate_series", "unnest", "repeat", "json_each", "json_tree", "duckdb_columns",
}  # fmt: skip
_SHOWN = {'"tables"', "__show_tables_expanded"}
"""What SHOW TABLES and SHOW ALL TABLES are to the parser."""
_MORE_FUNCTIONS = {
    "unnest", "random", "uuid", "gen_random_uuid", "error",  # side effects without consequence
    # DuckDB 1.4 does not list its window functions, and those that its parser replaces.
    "cume_dist", "dense_rank", "fill", "first_value", "lag", "last_value", "lead", "nth_value", "ntile", "overlay",
    "percent_rank", "rank", "rank_dense", "row_number",
}  # fmt: skip
_PURE_FUNCTIONS = (
    "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
    "WHERE function_type IN ('scalar', 'aggregate', 'macro', 'window') AND NOT coalesce(has_side_effects, false)"
)
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
_WITH_ZONE = "WITH TIME ZONE"
_AT_A_TIME = 1000
"""Rows fetched at a time: DuckDB computes them as they are fetched."""


class Rows(NamedTuple):
    """The answer to a query."""

    names: list[str]
    rows: list[tuple[Any, ...]]
    more: bool
    """Whether rows were left out, because the query gives more than were wanted."""


class ConfinedSql:
    """The tables of a run, for queries of users."""

    def __init__(self, definitions: Iterable[str], store: Path, memory_bytes: int | None = None) -> None:
        """`definitions` are the statements that make the tables; `store` is the folder that they read."""
        self._connection = connection = new_database()
        for statement in definitions:
            connection.execute(statement)
        self._tables = {name.lower() for (name,) in connection.execute("SHOW TABLES").fetchall()}
        self._functions = _MORE_FUNCTIONS | {
            name for (name,) in connection.execute(_PURE_FUNCTIONS).fetchall()
        }
        if memory_bytes is not None:
            connection.execute(f"SET memory_limit = '{memory_bytes // 2**20}MiB'")
        for setting in (
            "temp_directory = ''",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "python_enable_replacements = false",
            f"allowed_directories = [{sql_text(store)}]",
            "enable_external_access = false",
            "lock_configuration = true",  # the last
        ):
            connection.execute(f"SET {setting}")

    def query(self, sql: str, most_rows: int | None = None) -> Rows:
        """Ctrl-C ends it. No more than `most_rows` are computed."""
        import duckdb

        try:
            statement = self._checked(sql)
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                return _interruptible(cursor, lambda: _fetched(cursor, statement, most_rows))
            finally:
                cursor.close()  # ends the transaction
        except duckdb.OutOfMemoryException as error:
            limit = self._connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0]
            raise QueryError(
                "the query needs too much memory",
                why=f"It may use {limit}.",
                hint="Choose fewer rows, or aggregate them in steps.",
            ) from error
        except duckdb.Error as error:
            raise QueryError(
                "the query cannot be answered",
                why=str(error).strip(),
                hint=f"Tables: {', '.join(sorted(self._tables))}",
            ) from error

    def _checked(self, sql: str) -> str:
        """The statement, if it only reads."""
        if explain := _EXPLAIN.match(sql):
            # Whatever stands behind EXPLAIN must itself be a statement that only reads.
            return f"EXPLAIN {explain[1] or ''}{self._only_reading(sql[explain.end() :])}"
        return self._only_reading(sql)

    def _only_reading(self, sql: str) -> str:
        if "\0" in sql:
            raise _not_only_reading("it contains a NUL character")
        statements = self._connection.extract_statements(sql)  # says where the text is wrong
        if not statements:
            hint = "Write a SELECT; the tables are listed by: rankscope query RUN"
            raise QueryError("the query is empty", why="It has no statement.", hint=hint)
        if len(statements) > 1:
            raise _not_only_reading(f"there are {len(statements)} statements")
        ((text,),) = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
        try:
            tree = json.loads(text)
        except RecursionError:
            raise _not_only_reading("the statement is nested too deeply") from None
        if tree["error"]:
            raise _not_only_reading("the statement is not a SELECT")
        for node, named in _nodes(tree):
            self._check(node, self._tables | named)
        return sql

    def _check(self, node: dict[str, Any], tables: set[str]) -> None:
        kind, of_table = node.get("type"), node.get("class") is None
        if "class" in node and node["class"] not in _EXPRESSIONS:
            raise _not_only_reading(f"it contains {_words(node['class'])}")
        if of_table and isinstance(kind, str) and kind not in _NODES and not kind.endswith(_TYPE_INFO):
            raise _not_only_reading(f"it contains {_words(kind)}")
        if "function_name" in node and not node.get("of_a_table"):
            _require(node["function_name"], self._functions, "function")
        if kind == "TABLE_FUNCTION":
            _require(node["function"]["function_name"], _TABLE_FUNCTIONS, "function")
            node["function"]["of_a_table"] = True
        if kind == "BASE_TABLE":
            path = [node["catalog_name"], node["schema_name"].replace("main", "")]
            _require(".".join([*filter(None, path), node["table_name"]]), tables, "table")
        if kind == "SHOW_REF" and node["table_name"]:
            _require(node["table_name"], tables | _SHOWN, "table")


def _nodes(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """All objects of a statement, each before those within it, with the names of the WITH tables that it can read: a
    name is of its own query and those within it, of the WITH tables after it, and of its own recursion."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, named = waiting.pop()
        if isinstance(node, list):
            waiting += [(item, named) for item in node]
        if not isinstance(node, dict):
            continue
        yield node, named
        inner = named
        for cte in node["cte_map"]["map"] if "cte_map" in node else ():
            waiting.append((cte, inner))
            inner |= {str(cte["key"]).lower()}
        for key, value in node.items():
            recurs = key == "right" and node.get("type") == "RECURSIVE_CTE_NODE"
            if key != "cte_map":
                waiting.append((value, inner | {node["cte_name"].lower()} if recurs else inner))


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _require(name: str, allowed: set[str], kind: str) -> None:
    if name.lower() not in allowed:
        raise QueryError(
            f"the query cannot be answered: there is no {kind} {name}",
            why="A query reads the tables of the run, and has no functions that read files or change anything.",
            hint=f"Tables: {', '.join(sorted(allowed))}"
            if kind == "table"
            else "See: rankscope query --help",
        )


def _not_only_reading(why: str) -> QueryError:
    return QueryError(
        "only one SELECT is allowed",
        why=f"The run is read-only: {why.rstrip('.!')}.",
        hint="Write a single SELECT, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES, or EXPLAIN of one.",
    )


def _fetched(cursor: duckdb.DuckDBPyConnection, sql: str, most: int | None) -> Rows:
    result = cursor.execute(sql)
    columns = [(str(column[0]), str(column[1])) for column in result.description or ()]
    if any(_WITH_ZONE in kind for _, kind in columns):
        # As Python objects they need the package pytz.
        named = ", ".join(
            f"c{at}::VARCHAR AS {sql_name(name)}" if _WITH_ZONE in kind else f"c{at} AS {sql_name(name)}"
            for at, (name, kind) in enumerate(columns)
        )
        numbered = ", ".join(f"c{at}" for at in range(len(columns)))
        # The parser's own spelling of the statement has no comments and no semicolon.
        normal = cursor.execute(
            "SELECT json_deserialize_sql(json_serialize_sql(?::VARCHAR))", [sql]
        ).fetchall()
        result = cursor.execute(f"SELECT {named} FROM ({normal[0][0]}) AS given({numbered})")
    rows: list[tuple[Any, ...]] = []
    while most is None or len(rows) <= most:
        fetched = result.fetchmany(_AT_A_TIME if most is None else min(_AT_A_TIME, most + 1 - len(rows)))
        if not fetched:
            break
        rows += fetched
    names = [name for name, _ in columns]
    return Rows(names, rows, False) if most is None else Rows(names, rows[:most], len(rows) > most)


def _interruptible(cursor: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """`work` in a thread: DuckDB does not return to Python until it is done, so Ctrl-C would wait for it."""
    done: list[T] = []
    failed: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failed.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        # Not Thread.join: once Ctrl-C has interrupted it, Python 3.11 takes the thread for ended.
        while not ended.wait(0.2):  # with a limit, so that signals are handled
            pass
    except BaseException:
        while not ended.wait(0.05):
            cursor.interrupt()
        raise
    if failed:
        raise failed[0]
    return done[0]
