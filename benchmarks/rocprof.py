"""Files of rocprofv3 of any size for benchmarks: a rocpd database (schema 3) and JSON, kept in .bench.

Both have a launch call and a kernel for each number, with names and sizes that repeat as in training.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from traces import WORK

SELECT = "python: sqlite3, the rows of events with joins"
_ID = "_00000046_d4de_74de_b70e_c34ecf8c3a87"
_GUID = "00000046-d4de-74de-b70e-c34ecf8c3a87"
_KERNELS, _STREAMS = 200, 4
_STEP_NS = 12_000
_BYTES_PER_LAUNCH = {"db": 292, "json": 590}
_TABLES = f"""
CREATE TABLE rocpd_string{_ID} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_process{_ID} (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, command TEXT, environment TEXT);
CREATE TABLE rocpd_info_agent{_ID} (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, type_index INTEGER,
    product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{_ID} (id INTEGER PRIMARY KEY, guid TEXT, display_name TEXT);
CREATE TABLE rocpd_event{_ID} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
    parent_stack_id INTEGER, correlation_id INTEGER, call_stack TEXT, line_info TEXT, extdata TEXT);
CREATE TABLE rocpd_region{_ID} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT,
    "end" BIGINT, name_id INTEGER, event_id INTEGER, extdata TEXT);
CREATE TABLE rocpd_kernel_dispatch{_ID} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
    agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
    "end" BIGINT, private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER,
    workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER,
    event_id INTEGER, extdata TEXT);
INSERT INTO rocpd_string{_ID} VALUES (1, '{_GUID}', 'HIP_RUNTIME_API_EXT'), (2, '{_GUID}', 'KERNEL_DISPATCH'),
    (3, '{_GUID}', 'hipLaunchKernel');
INSERT INTO rocpd_info_process{_ID} VALUES (70, '{_GUID}', 70, 'python train.py', '{{}}');
INSERT INTO rocpd_info_agent{_ID} VALUES (2, '{_GUID}', 'GPU', 0, 'AMD Instinct MI300X');
"""
_ROWS = f"""
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {{count}})
INSERT INTO rocpd_{{table}}{_ID} SELECT {{values}} FROM n
"""
_VALUES = {
    "event": f"i, '{_GUID}', 1 + i % 2, (i + 1) / 2, 0, 0, '{{}}', '{{}}', '{{}}'",
    "region": f"i, '{_GUID}', 1, 70, 71, {{start}}, {{start}} + 3000, 3, 2 * i, '{{}}'",
    "kernel_dispatch": f"i, '{_GUID}', 1, 70, 71, 2, i % {_KERNELS}, i, 3, i % {_STREAMS}, {{start}} + 5000, "
    "{start} + 5000 + i % 4000, 0, 64, 256, 1, 1, 256 * (i % 64 + 1), 1, 1, 2 * i - 1, '{}'",
}
SELECT_CODE = f"""
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1])
for table in ("region", "kernel_dispatch"):
    rows.execute(f"SELECT r.*, e.stack_id, e.category_id FROM rocpd_{{table}}{_ID} r "
                 "JOIN rocpd_event{_ID} e ON e.id = r.event_id").fetchall()
"""


def make_database(megabytes: int) -> Path:
    target = WORK / f"rocpd-{megabytes}mb.db"
    if target.is_file():
        return target
    count = launches(megabytes, "db")
    start = f"{10**12} + i * {_STEP_NS}"
    unfinished = target.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.executescript(_TABLES)
        connection.executemany(
            f"INSERT INTO rocpd_info_kernel_symbol{_ID} VALUES (?, ?, ?)",
            ((number, _GUID, _kernel_name(number)) for number in range(_KERNELS)),
        )
        for table, values in _VALUES.items():
            rows = 2 * count if table == "event" else count
            listed = values.replace("{start}", start)
            connection.execute(_ROWS.format(count=rows, table=table, values=listed))
        connection.commit()
    unfinished.replace(target)
    return target


def make_json(megabytes: int) -> Path:
    target = WORK / f"rocprof-{megabytes}mb_results.json"
    if target.is_file():
        return target
    count = launches(megabytes, "json")
    head = {
        "metadata": {
            "node": {},
            "pid": 70,
            "init_time": 1,
            "fini_time": 2,
            "command": ["python"],
            "config": {},
        },
        "agents": [{"size": 312, "id": {"handle": 2}, "type": 2, "logical_node_type_id": 0}],
        "counters": [],
        "strings": {
            "callback_records": [],
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel"]},
                {"kind": "KERNEL_DISPATCH", "operations": []},
            ],
        },
        "kernel_symbols": [
            {"size": 88, "kernel_id": number, "formatted_kernel_name": _kernel_name(number)}
            for number in range(_KERNELS)
        ],
    }
    unfinished = target.with_suffix(".unfinished")
    with unfinished.open("w") as file:
        file.write('{"rocprofiler-sdk-tool":[' + json.dumps(head, separators=(",", ":"))[:-1])
        file.write(',"callback_records":{"counter_collection":[]},"buffer_records":{"kernel_dispatch":[')
        file.writelines(("," if number else "") + _dispatch(number) for number in range(count))
        file.write('],"hip_api":[')
        file.writelines(("," if number else "") + _call(number) for number in range(count))
        file.write("]}}]}")
    unfinished.replace(target)
    return target


def launches(megabytes: int, kind: str) -> int:
    """How many launches a file of about this size has, each with its kernel."""
    return megabytes * 1_000_000 // _BYTES_PER_LAUNCH[kind]


def _kernel_name(number: int) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, functor_{number}, std::array<char*, 2ul> >(int)"
    )


def _dispatch(number: int) -> str:
    start = 10**12 + number * _STEP_NS + 5000
    return (
        f'{{"size":184,"kind":2,"operation":2,"thread_id":71,"correlation_id":{{"internal":{number + 1},"external":0}},'
        f'"start_timestamp":{start},"end_timestamp":{start + number % 4000},"dispatch_info":{{"size":72,"agent_id":'
        f'{{"handle":2}},"queue_id":{{"handle":3}},"kernel_id":{number % _KERNELS},"dispatch_id":{number},'
        '"private_segment_size":0,"group_segment_size":64,"workgroup_size":{"x":256,"y":1,"z":1},'
        f'"grid_size":{{"x":{256 * (number % 64 + 1)},"y":1,"z":1}}}},"stream_id":{{"handle":{number % _STREAMS}}}}}'
    )


def _call(number: int) -> str:
    start = 10**12 + number * _STEP_NS
    return (
        f'{{"size":64,"kind":1,"operation":0,"correlation_id":{{"internal":{number + 1},"external":0}},'
        f'"start_timestamp":{start},"end_timestamp":{start + 3000},"thread_id":71}}'
    )
