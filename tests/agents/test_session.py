"""A session over stdio, driven by the SDK's own client: what an assistant's program does."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from rankscope.agents.small_answers import MOST_BYTES, as_text
from rankscope.agents.tools import TOOLS
from rankscope.cli import main

pytestmark = pytest.mark.slow


async def _session(run: Path, other: Path, seen: dict[str, Any]) -> None:
    from mcp import Client, StdioServerParameters

    program = StdioServerParameters(command=sys.executable, args=["-m", "rankscope", "mcp", str(run)])
    async with Client(program) as client:
        seen["instructions"] = client.instructions
        listed = (await client.list_tools()).tools
        seen["tools"] = {tool.name: tool for tool in listed}

        async def call(name: str, /, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(name, arguments)  # checks the answer against the tool's schema
            answer: dict[str, Any] = result.structured_content
            assert len(result.content[0].text.encode()) <= MOST_BYTES
            assert result.is_error == ("error" in answer)
            seen.setdefault("outcomes", set()).add(answer["outcome"])
            seen.setdefault("called", set()).add(name)
            return answer

        for name in (
            "summary",
            "findings",
            "collective",
            "blame",
            "critical_path",
            "whatif",
            "list_definitions",
        ):
            assert "error" not in await call(name)
        assert (await call("blame"))["findings"][0]["ranks"] == [2]
        assert (await call("report", name="hang.flight_recorder"))["outcome"] == "cannot_answer"
        assert (await call("report", name="kernels"))["outcome"] == "none"
        assert (await call("query", sql="SELECT 1 AS one"))["rows"] == [{"one": 1}]
        assert (await call("link", finding=1))["facts"]["url"].startswith("http://127.0.0.1:")
        assert (await call("open", path=str(other)))["facts"]["ranks"] == "0-3"
        assert "error" not in await call("diff", base=str(run), new=str(other), report="steps")
        seen["bad"] = await call("report", run=str(run), name="no such report!")
        seen["unknown"] = await call("remove_everything")
        shutil.rmtree(other)
        seen["vanished"] = await call("summary", run=str(other))
        seen["still there"] = await call("summary", run=str(run))


@pytest.mark.thorough
def test_a_session_of_the_sdks_client(slow2: Path, tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        shutil.copytree(slow2, folder, ignore=shutil.ignore_patterns(".rankscope"))
    seen: dict[str, Any] = {}
    anyio.run(_session, run, other, seen)
    assert set(seen["tools"]) == set(TOOLS)
    for tool in seen["tools"].values():
        assert tool.annotations.read_only_hint and not tool.annotations.destructive_hint
        assert tool.input_schema["type"] == "object" and "outcome" in tool.output_schema["properties"]
    assert seen["called"] - {"remove_everything"} == set(TOOLS)
    assert seen["outcomes"] == {"problem", "none", "cannot_answer"}
    assert "Never follow" in seen["instructions"]
    for name in ("bad", "unknown", "vanished"):
        assert all(seen[name]["error"].values()), name
    assert seen["vanished"]["reason"] == f"there is no {other}"
    assert seen["still there"]["outcome"] == "problem"


def test_half_of_a_surrogate_pair_is_understood_and_sent() -> None:
    """JSON may have it; the SDK neither reads nor writes it, and its client would wait for ever."""
    pytest.importorskip("mcp")
    from mcp_types import jsonrpc_message_adapter

    from rankscope.agents.server import _Requests

    line = rb'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"x": "\uD800 \ud83d\ude00"}}'
    with _Requests(io.BytesIO(line + b"\n" + rb"\ud800"), encoding="utf-8", errors="replace") as requests:
        message = jsonrpc_message_adapter.validate_json(requests.readline(), by_name=False)
        assert message.id == 7 and message.params["x"] == "? \U0001f600"
        assert requests.readline() == r"\ud800"
    assert json.loads(as_text({"path": "/runs/\udcff"})) == {"path": "/runs/?"}


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["mcp"]) == 1
    assert "pip install 'rankscope[mcp]'" in capsys.readouterr().err


def test_help_does_not_import_the_sdk(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    with pytest.raises(SystemExit):
        main(["mcp", "--help"])
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in ("mcp", "pydantic")}
    assert "Model Context Protocol" in capsys.readouterr().out
