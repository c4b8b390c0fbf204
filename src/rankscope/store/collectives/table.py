"""Writes the collectives of one segment: kind, time, process group, and the op that called each.

The metadata is in different places: NCCL's kernels and record_param_comms carry it; gloo's worker threads do not, and
only the c10d op that called them has it.
"""

from __future__ import annotations

import json

from rankscope.collective_kinds import OTHER, kind_sql
from rankscope.model import COLLECTIVE_NAME_PATTERN, COLLECTIVES, HOST_COLLECTIVE_PATTERN
from rankscope.sql import sql_name, sql_text
from rankscope.store.arrays import NONE
from rankscope.store.collectives.host import pair_host_collectives
from rankscope.store.workspace import Workspace

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "int": "int32", "long": "int64", "longint": "int64", "short": "int16", "char": "int8", "signedchar": "int8",
    "byte": "uint8", "unsignedchar": "uint8", "bool": "bool", "complexfloat": "complex64",
    "complexdouble": "complex128", "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Type names in c10d's metadata, in C++ and in the names of NCCL's kernels."""

_METADATA = {
    "Collective name": "VARCHAR",
    "Process Group Name": "VARCHAR",
    "Process Group Description": "VARCHAR",
    "Process Group Ranks": "VARCHAR",
    "Group size": "BIGINT",
    "Seq": "BIGINT",
    "dtype": "VARCHAR",
    "In msg nelems": "BIGINT",
    "Out msg nelems": "BIGINT",
    "In split size": "VARCHAR",
    "Out split size": "VARCHAR",
    "Src Rank": "BIGINT",
    "Dst Rank": "BIGINT",
}


def write_collectives(workspace: Workspace) -> None:
    """Write the table. It reads slices.parquet."""
    execute = workspace.connection.execute
    slices = f"read_parquet({sql_text(workspace.folder / 'slices.parquet')})"
    execute(f"""
        CREATE OR REPLACE TEMP TABLE communication AS
        SELECT id, track, start_ns, dur_ns, name, step, op, launch, category = 'kernel' AS on_device FROM {slices}
        WHERE (category = 'kernel' AND (collective IS NOT NULL
               OR name IN (SELECT text FROM names WHERE regexp_matches(text, {sql_text(COLLECTIVE_NAME_PATTERN)}))))
           OR (category = 'user_annotation'
               AND name IN (SELECT text FROM names WHERE regexp_matches(text, {sql_text(HOST_COLLECTIVE_PATTERN)})))
    """)
    execute(f"""
        CREATE OR REPLACE TEMP TABLE calls AS
        SELECT id, start_ns, name, step, op, {kind_sql("name")} AS kind FROM {slices}
        WHERE category = 'cpu_op' AND (name LIKE 'c10d::%' OR name = 'record_param_comms')
          AND EXISTS (FROM communication)
    """)
    types = json.dumps(_METADATA)
    execute(f"""
        CREATE OR REPLACE TEMP TABLE metadata AS
        SELECT id, unnest(json_transform(args, {sql_text(types)})) FROM placed
        WHERE collective IS NOT NULL AND EXISTS (FROM communication)
    """)
    _find_ranges(workspace, slices)
    pair_host_collectives(workspace, slices)
    workspace.copy(f"{_device_select()} UNION ALL BY NAME {_host_select()}", COLLECTIVES)
    for table in ("communication", "calls", "metadata", "ranges", "host_pairs"):
        execute(f"DROP TABLE IF EXISTS {table}")


_CALL_RANGE_PATTERN = "^(?:c10d::|nccl[A-Z])"
"""NVTX ranges around launches: those of torch's ops and of NCCL's functions."""


def _find_ranges(workspace: Workspace, slices: str) -> None:
    """Create `ranges`: for kernels without a known op (nsys), the kind from the NVTX ranges around their launch."""
    execute = workspace.connection.execute
    execute("CREATE OR REPLACE TEMP TABLE ranges (id BIGINT, op_kind VARCHAR, nccl_kind VARCHAR)")
    named = f"SELECT text FROM names WHERE regexp_matches(text, {sql_text(_CALL_RANGE_PATTERN)})"
    without_op = "FROM communication WHERE on_device AND op IS NULL AND launch IS NOT NULL"
    if not workspace.rows(f"SELECT 1 WHERE EXISTS ({named}) AND EXISTS ({without_op})"):
        return
    execute(f"""
        INSERT INTO ranges
        WITH RECURSIVE above AS (
            SELECT k.id, l.parent AS at, 0 AS level FROM (SELECT id, launch {without_op}) k
            JOIN {slices} l ON l.id = k.launch WHERE l.parent IS NOT NULL
            UNION ALL
            SELECT a.id, s.parent, a.level + 1 FROM above a JOIN {slices} s ON s.id = a.at
            WHERE s.parent IS NOT NULL AND a.level < 16
        ), around AS (
            SELECT a.id, a.level, s.name FROM above a JOIN {slices} s ON s.id = a.at WHERE s.name IN ({named})
        )
        SELECT id, {kind_sql("arg_min(name, level) FILTER (name LIKE 'c10d::%')")},
               {kind_sql("arg_min(name, level) FILTER (name LIKE 'nccl%')")}
        FROM around GROUP BY id
    """)


def _device_select() -> str:
    """Kernels, with their own metadata, else that of the record_param_comms op that launched them."""

    def arg(key: str) -> str:
        return f"coalesce(own.{sql_name(key)}, record.{sql_name(key)})"

    def splits(key: str) -> str:
        return f"nullif({arg(key)}, '[]')"

    kind = f"""coalesce(outer_call.kind, CASE WHEN inner_call.name LIKE 'c10d::%' THEN inner_call.kind END,
                        m.op_kind, {kind_sql(arg("Collective name"))}, m.nccl_kind, {kind_sql("k.name")}, '{OTHER}')"""
    in_name = "regexp_extract(k.name, '_(f32|f64|f16|bf16)(?:_|$)', 1)"
    dtype = _dtype_sql(f"coalesce({arg('dtype')}, {in_name})")
    return f"""
        SELECT k.id, k.track, 'device' AS place, {kind} AS kind, k.start_ns, greatest(k.dur_ns, 0) AS dur_ns, k.step,
               coalesce(outer_call.id, inner_call.id) AS call,
               coalesce(outer_call.start_ns, inner_call.start_ns) AS call_ns,
               {arg("Process Group Name")} AS group_name, {arg("Process Group Description")} AS group_description,
               {arg("Process Group Ranks")} AS group_ranks, {arg("Group size")} AS group_size, {arg("Seq")} AS seq,
               {dtype} AS dtype,
               {arg("In msg nelems")} AS in_elements, {arg("Out msg nelems")} AS out_elements,
               {splits("In split size")} AS in_splits, {splits("Out split size")} AS out_splits,
               CASE {kind} WHEN 'send' THEN {arg("Dst Rank")} WHEN 'recv' THEN {arg("Src Rank")} END AS peer
        FROM communication k
        LEFT JOIN metadata own ON own.id = k.id
        LEFT JOIN calls inner_call ON inner_call.id = k.op
        LEFT JOIN metadata record ON record.id = k.op
        LEFT JOIN calls outer_call ON outer_call.id = inner_call.op AND outer_call.name LIKE 'c10d::%'
        LEFT JOIN ranges m ON m.id = k.id
        WHERE k.on_device
    """


def _dtype_sql(text: str) -> str:
    letters = f"lower(regexp_replace(replace({text}, 'c10::', ''), '[^A-Za-z0-9]', '', 'g'))"
    cases = " ".join(f"WHEN {sql_text(spelt)} THEN {sql_text(name)}" for spelt, name in _DTYPES.items())
    return f"(CASE {letters} {cases} WHEN '' THEN NULL ELSE {letters} END)"


def _host_select() -> str:
    return f"""
        SELECT h.id, t.track, 'host' AS place, coalesce(c.kind, {kind_sql("t.name")}, '{OTHER}') AS kind,
               h.begin_ns AS start_ns, greatest(t.start_ns + greatest(t.dur_ns, 0) - h.begin_ns, 0) AS dur_ns,
               coalesce(c.step, t.step) AS step, c.id AS call, c.start_ns AS call_ns,
               NULL::VARCHAR AS group_name, NULL::VARCHAR AS group_description, NULL::VARCHAR AS group_ranks,
               NULL::BIGINT AS group_size, NULL::BIGINT AS seq, {_dtype_sql("h.type")} AS dtype,
               nullif(h.elements, {NONE}) AS in_elements, NULL::BIGINT AS out_elements, NULL::VARCHAR AS in_splits,
               NULL::VARCHAR AS out_splits, NULL::BIGINT AS peer
        FROM host_pairs h JOIN communication t USING (id) LEFT JOIN calls c ON c.id = h.call
    """
