"""`rankscope mcp`: the tools over stdio, with the official SDK. The only module that imports it."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from rankscope.agents.guide import guide_for_tools
from rankscope.agents.parameters import schema_of
from rankscope.agents.small_answers import as_text
from rankscope.agents.tools import TOOLS, Tools
from rankscope.version import __version__

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TEXT = {"type": "string"}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_TEXTS = {"type": "array", "items": _TEXT}
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "title": _TEXT,
        "window": _TEXT,
        "columns": _OBJECTS,
        "facts": {"type": "object"},
        "rows": _OBJECTS,
        "findings": _OBJECTS,
        "notes": _TEXTS,
        "outcome": {"type": "string", "enum": ["problem", "none", "cannot_answer"]},
        "reason": _TEXT,
        "evidence": _TEXTS,
        "definition": _TEXT,
        "next": _TEXTS,
        "truncated": {"type": "boolean"},
        "next_page": {"type": ["integer", "null"]},
        "rows_total": {"type": "integer"},
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "why": _TEXT, "hint": _TEXT},
            "required": ["message", "why", "hint"],
        },
    },
}
OUTPUT["required"] = [name for name in OUTPUT["properties"] if name != "error"]
_READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def serve(tools: Tools) -> None:
    """Until the client closes stdin."""
    anyio.run(_serve, tools)


async def _serve(tools: Tools) -> None:
    server = make_server(tools)
    # Programs that we start must not read what the client writes.
    requests = _Requests(os.fdopen(os.dup(0), "rb"), encoding="utf-8", errors="replace")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    async with stdio_server(anyio.wrap_file(requests)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _Requests(io.TextIOWrapper):
    """Lines of JSON. The SDK refuses half of a surrogate pair, which JSON may have, and does not answer."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # as TextIOWrapper's
        line = super().readline(size)
        if not _SURROGATE.search(line):
            return line
        try:
            return json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace").decode() + "\n"
        except (ValueError, RecursionError):
            return line


def make_server(tools: Tools) -> Server[Any]:
    one_at_a_time = threading.Lock()
    listed = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=schema_of(tool.parameters),
            output_schema=OUTPUT,
            annotations=_READ_ONLY,
        )
        for tool in TOOLS.values()
    ]

    def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with one_at_a_time:  # a DuckDB connection must not be used by several threads at once
            return tools.call(name, arguments)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answered = await anyio.to_thread.run_sync(answer, params.name, params.arguments or {})
        text = as_text(answered)
        content: list[Any] = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(
            content=content, structured_content=json.loads(text), is_error="error" in answered
        )

    return Server(
        "rankscope",
        version=__version__,
        instructions=guide_for_tools(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
