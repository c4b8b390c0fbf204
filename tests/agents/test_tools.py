"""Every tool in this process: every outcome, bad arguments, runs that change, hostile names."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from hostile_names import HOSTILE
from rankscope.agents.parameters import schema_of
from rankscope.agents.small_answers import MOST_BYTES, size_of
from rankscope.agents.tools import TOOLS, Tools
from rankscope.analysis import REPORTS
from viewer_server import serve, stop

pytestmark = pytest.mark.slow

FIELDS = {
    *(
        "name",
        "title",
        "window",
        "columns",
        "facts",
        "rows",
        "findings",
        "notes",
        "outcome",
        "reason",
        "evidence",
    ),
    *("definition", "next", "truncated", "next_page", "rows_total"),
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("summary", {}),
    ("findings", {}),
    ("report", {"name": "kernels", "by": "rank", "ranks": "0-1", "steps": "3:4"}),
    ("collective", {}),
    ("collective", {"number": 0}),
    ("blame", {}),
    ("critical_path", {}),
    ("whatif", {"rank": ["2", "0-1", "3=median"], "hide_comm": True}),
    ("query", {"sql": "SELECT count(*) AS n FROM slices"}),
    ("list_definitions", {}),
    ("list_definitions", {"name": "stragglers"}),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=lambda value: str(value)[:30])
def test_every_tool_answers(tools: Tools, name: str, arguments: dict[str, Any]) -> None:
    answer = tools.call(name, arguments)
    assert "error" not in answer, answer["error"]
    assert set(answer) - {"run"} == FIELDS
    assert answer["rows"] or answer["findings"]
    assert size_of(answer) <= MOST_BYTES
    assert (Path(__file__).parents[2] / answer["definition"]).is_file()
    assert "RUN" not in json.dumps(answer["next"])


def test_the_slow_rank_is_blamed_with_evidence_that_can_be_looked_up(tools: Tools) -> None:
    answer = tools.call("blame", {})
    assert answer["outcome"] == "problem" and answer["findings"][0]["ranks"] == [2]
    facts = {fact["quantity"]: fact["value"] for fact in answer["findings"][0]["facts"]}
    assert facts["cause"] == "compute" and answer["findings"][0]["alone_ns"] > 5_000_000
    ids = [text for text in answer["evidence"] if text.partition(":")[0] in REPORTS]
    assert len(ids) >= 2
    for text in ids:
        assert tools.call("report", {"name": text})["rows"], text


def test_one_collective_names_the_last_rank(tools: Tools) -> None:
    worst = tools.call("collective", {})["rows"][0]
    assert worst["last_rank"] == worst["blamed_rank"] == 2 and worst["cause"] == "compute"
    answer = tools.call("collective", {"number": worst["collective"]})
    waits = {row["rank"]: row["wait_ns"] for row in answer["rows"]}
    assert waits[2] == 0 == min(waits.values()) and sum(waits.values()) == worst["wait_ns"]
    assert answer["facts"]["last_rank"] == 2


def test_outcomes(tools: Tools) -> None:
    assert tools.call("findings", {})["outcome"] == "problem"
    assert tools.call("report", {"name": "kernels"})["outcome"] == "none"
    answer = tools.call("report", {"name": "hang.flight_recorder"})
    assert answer["outcome"] == "cannot_answer" and "no flight-recorder dumps" in answer["reason"]
    assert "error" not in answer, "the question was understood"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("nothing", {}, "there is no tool 'nothing'"),
        ("report", {}, "name is missing"),
        ("report", {"name": 7}, "name must be a text"),
        ("report", {"name": "kernel"}, "there is no report 'kernel'"),
        ("report", {"name": "kernels", "by": "shape"}, "kernels cannot be split by 'shape'"),
        ("report", {"name": "kernels:name:00000000"}, "kernels:name:00000000 is not in this run"),
        ("report", {"name": "../../etc/passwd"}, "is not an evidence id"),
        ("summary", {"ranks": "9"}, "this run has no rank 9"),
        ("summary", {"steps": "5:3"}, "ends before it begins"),
        ("summary", {"steps": "90:99"}, "this run has no steps 90:99"),
        ("summary", {"page": 10**6}, "there is no page"),
        ("summary", {"page": True}, "page must be a whole number"),
        ("summary", {"run": "elsewhere"}, "'elsewhere' is not an open run"),
        ("blame", {"by": "host"}, "there is no argument 'by'"),
        ("blame", {"bye": "node"}, "there is no argument 'bye'"),
        ("collective", {"number": 10**9}, "there is no collective 1000000000"),
        ("collective", {"number": -1}, "there is no collective -1"),
        ("whatif", {"kernel": ["gelu"]}, "gelu is not NAME=FACTOR"),
        ("whatif", {"rank": "2=median"}, "rank must be a list"),
        ("whatif", {"balance": ["nodes"]}, "balance cannot be 'nodes'"),
        ("query", {"sql": "DROP TABLE slices"}, "only one SELECT is allowed"),
        ("query", {"sql": "SELECT * FROM read_csv('/etc/passwd')"}, "there is no function read_csv"),
        ("query", {"sql": "x" * 30_000}, "sql must be a text"),
        ("diff", {"base": "a", "new": "b"}, "'a' is not an open run"),
        ("link", {"finding": 99}, "there is no finding 99"),
        ("link", {"rank": 99}, "there is no rank 99"),
        ("link", {"link": "https://evil.example"}, "is not a place in the viewer"),
        ("link", {"viewer": "http://evil.example/?token=x"}, "is not the address of a viewer"),
        ("link", {"viewer": "http://127.0.0.1:9/?token=x"}, "cannot be moved"),
        ("open", {"path": "/no/such/run"}, "there is no /no/such/run"),
    ],
)
def test_bad_arguments_are_errors_in_three_parts(
    tools: Tools, name: str, arguments: dict[str, Any], message: str
) -> None:
    answer = tools.call(name, arguments)
    assert answer["outcome"] == "cannot_answer" and message in answer["reason"]
    assert all(answer["error"][part] for part in ("message", "why", "hint")), answer["error"]
    assert set(answer) - {"error"} == FIELDS


def test_schemas_name_every_parameter() -> None:
    for tool in TOOLS.values():
        schema = schema_of(tool.parameters)
        assert schema["additionalProperties"] is False and set(schema["required"]) <= set(
            schema["properties"]
        )
        assert all(one["description"] for one in schema["properties"].values())


def test_two_runs(slow2: Path, tmp_path: Path) -> None:
    tools = Tools([slow2], tmp_path / "cache", lambda text: None)
    other = tmp_path / "other"
    shutil.copytree(DATA / "seqpar-gloo4", other)
    opened = tools.call("open", {"path": str(other)})
    assert opened["facts"]["ranks"] == "0-3" and len(opened["facts"]["open"]) == 2
    for name in ("other", "slow2"):
        assert (
            tools.call("open", {"path": str(tools.runs.find(name).path)})["outcome"]
            == tools.call("findings", {"run": name})["outcome"]
        )
    unclear = tools.call("summary", {})
    assert unclear["reason"] == "which run is meant is not clear" and str(other) in unclear["error"]["why"]
    assert tools.call("summary", {"run": "other"})["run"] == str(other)
    answer = tools.call("diff", {"base": "other", "new": "slow2", "report": "steps"})
    assert answer["outcome"] == "problem" and "slower" in answer["reason"]
    assert size_of(answer) <= MOST_BYTES and "RUN" not in json.dumps(answer["findings"])
    tools.close()


def test_a_run_that_vanishes_and_comes_back(slow2: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(slow2, run)
    tools = Tools([run], None, lambda text: None)
    assert tools.call("blame", {})["findings"][0]["ranks"] == [2]
    run.rename(tmp_path / "gone")
    answer = tools.call("blame", {})
    assert answer["reason"] == f"there is no {run}" and answer["error"]["hint"]
    (tmp_path / "gone").rename(run)
    assert tools.call("blame", {})["findings"][0]["ranks"] == [2]
    shutil.rmtree(run / ".rankscope")
    assert tools.call("query", {"sql": "SELECT 1 AS one"})["rows"] == [{"one": 1}], "read again"
    tools.close()


def test_hostile_names_are_data(hostile: Path, tmp_path: Path) -> None:
    """In prose they are in quotation marks; everywhere they are cut, on one line, without control characters."""
    tools = Tools([hostile], tmp_path, lambda text: None)
    seen = 0
    for name, arguments in [*CALLS, ("report", {"name": "ops"}), ("report", {"name": "ops.annotations"})]:
        answer = tools.call(name, arguments)
        text = json.dumps(answer, ensure_ascii=False)
        assert size_of(answer) <= MOST_BYTES
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", text), name
        prose = [answer["title"], answer["reason"], *answer["notes"]]
        prose += [finding[key] for finding in answer["findings"] for key in ("title", "advice")]
        for sentence in prose:
            seen += "Ignore all" in sentence
            outside = re.sub(r'"[^"]*"', "", sentence)
            assert "Ignore all" not in outside, (name, sentence)
    assert seen >= 3
    rows = tools.call("report", {"name": "kernels"})["rows"]
    assert any(HOSTILE in row["name"] for row in rows) and all(len(row["name"]) <= 200 for row in rows)
    tools.close()


def test_a_link_starts_a_viewer_and_later_moves_it(tools: Tools) -> None:
    first = tools.call("link", {"finding": 1})["facts"]
    assert first["moved"] is False and first["url"].endswith("#v=1&finding=1")
    with urllib.request.urlopen(first["url"].partition("#")[0]) as page:
        assert page.status == 200
    second = tools.call("link", {"rank": 2, "begin_ns": 0, "end_ns": 1000})["facts"]
    assert second["moved"] is True and second["link"] == "#v=1&t=0-1000&open=2"
    place = first["url"].partition("#")[0].replace("/?", "/api/place?")
    with urllib.request.urlopen(place) as answer:
        assert json.load(answer)["link"] == second["link"]


def test_a_viewer_of_the_user_is_moved(slow2: Path, tools: Tools) -> None:
    viewer = serve(slow2)
    answer = tools.call("link", {"finding": 1, "viewer": viewer.url})
    assert answer["facts"]["moved"] is True and answer["facts"]["url"].startswith(viewer.url)
    assert viewer.ask("place")[1] == {"number": 1, "link": "#v=1&finding=1"}
    stop(viewer)
