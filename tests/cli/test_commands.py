"""The command line as a user meets it: exit codes, three-part errors, formats, help that teaches."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DATA, ROOT, slice_event, write_kineto
from rankscope import __version__
from rankscope.analysis.evidence import parse_evidence
from rankscope.cli import COMMANDS, main
from rankscope.cli.end_tables import end_tables
from rankscope.text.spelling import RENAMED_REPORTS


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "ddp"
    shutil.copytree(DATA / "ddp-gloo4", folder)
    assert main(["ingest", "-q", str(folder)]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(f"  {name} " in out for name in COMMANDS)
    assert run(capsys, "--version") == (0, f"rankscope {__version__}\n", "")
    assert run(capsys)[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, *(["synthetic"] if name == "bench" else []), "--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_help_needs_no_heavy_import() -> None:
    heavy = "{'numpy', 'duckdb', 'isal'} & set(sys.modules)"
    code = f"import sys; from rankscope.cli import main; main(['--help']); print(sorted({heavy}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")


WRITTEN = (
    "commands.md",
    "store.md",
    "columns.md",
    "reports.md",
    "architecture.md",
    "notebook.ipynb",
    "images/terminal.svg",
)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(each, marks=pytest.mark.thorough) if each == "notebook.ipynb" else each
        for each in WRITTEN
    ],
)
def test_the_docs_are_what_the_code_says(file: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert tuple(generate.PAGES) == WRITTEN
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert written == generate.PAGES[file](), f"docs/{file} is old: run make docs"


@pytest.mark.slow
def test_stats_without_a_report_is_the_summary_and_ten_kernels(
    ddp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "stats", ddp, "--format", "markdown")
    assert (code, err) == (0, "")
    tables = out.split("GPU kernels")
    assert "A step takes" in tables[0] and "exposed transfer" in tables[0]
    assert sum("COMPUTE" in line or "COMM" in line for line in tables[1].splitlines()) == 10
    assert "29 more rows" in out


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_tables_never_exceed_the_terminal(
    columns: int, ddp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, "stats", ddp, "-r", "all", "--top", "5")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.slow
def test_csv_has_the_stable_names(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headers = {
        "breakdown": "rank,step,span_ns,compute_ns,comm_ns,exposed_comm_ns,exposed_wait_ns,exposed_copy_ns,idle_ns,"
        "overlap_pct",
        "kernels": "name,class,time_pct,total_ns,instances,avg_ns,med_ns,min_ns,max_ns,stddev_ns",
        "ops": "name,calls,self_host_ns,total_host_ns,self_device_ns,total_device_ns,flops",
        "ops.python": "calls,self_host_ns,total_host_ns,name",
        "ops.runtime_api": "name,calls,total_ns,avg_ns,med_ns,min_ns,max_ns,stddev_ns",
        "ops.annotations": "name,calls,total_ns,avg_ns,med_ns,min_ns,max_ns,stddev_ns",
        "memcpy": "kind,count,bytes,total_ns,gb_s",
        "steps": "rank,step,start_ns,dur_ns,end_ns,time_ns",
        "memory": "rank,device,peak_allocated_bytes,peak_reserved_bytes,at_ns,unused_bytes,growth_bytes",
    }
    for name, header in headers.items():
        code, out, _ = run(capsys, "stats", ddp, "-r", name, "--format", "csv")
        assert code == 0
        rows = list(csv.reader(io.StringIO(out)))
        assert rows[0] == header.split(",")
        assert all(len(row) == len(rows[0]) for row in rows)


@pytest.mark.slow
def test_json_is_one_object_of_one_shape(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = json.loads(run(capsys, "stats", ddp, "-r", "steps", "--format", "json")[1])
    assert {"name", "title", "window", "columns", "rows", "findings"} <= set(one)
    assert one["name"] == "steps" and len(one["rows"]) == 12
    two = json.loads(run(capsys, "stats", ddp, "-r", "steps,runtime_api", "--format", "json")[1])
    assert two.pop("others") == [
        json.loads(run(capsys, "stats", ddp, "-r", "ops.runtime_api", "--format", "json")[1])
    ]
    assert two == one


def test_a_change_of_several_ranks_and_two_balances(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    balances = ["--balance", "all", "--balance", "ranks"]
    out = run(capsys, "whatif", ddp, "--rank", "1-2=median", *balances, "--format", "csv")[1]
    assert [row["what"] for row in csv.DictReader(io.StringIO(out))] == [
        "rank 1 at the median", "rank 2 at the median", "everything balanced", "ranks balanced",
        "all of these together",
    ]  # fmt: skip


@pytest.mark.slow
def test_former_names_of_reports_are_accepted_and_said_once(
    ddp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "stats", ddp, "-r", "steps,api,flight,api", "--format", "json")
    assert code == 0
    assert [result["name"] for result in json.loads(out)["others"]] == [
        "ops.runtime_api", "hang.flight_recorder", "ops.runtime_api",
    ]  # fmt: skip
    assert err.count("\n") == 1 and "api is now ops.runtime_api, flight is now hang.flight_recorder" in err
    code, out, err = run(capsys, "chart", ddp, "-r", "api", "-o", tmp_path / "calls.svg")
    assert code == 0 and err.count("\n") == 1 and "api is now ops.runtime_api" in err
    lines = run(capsys, "stats", ddp, "-r", "list")[1].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert not set(RENAMED_REPORTS) & set(listed) and set(RENAMED_REPORTS.values()) <= set(listed)
    assert parse_evidence("short:op:0123abcd").report == "idle.short_kernels"
    assert end_tables("kernels,short") == [["-r", "kernels,short"]]


def test_stats_of_ranks_and_steps(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("stats", ddp, "-r", "steps", "--ranks", "1,3", "--steps", "2:3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(run(capsys, *args)[1])))
    assert {(row["rank"], row["step"]) for row in rows} == {("1", "2"), ("1", "3"), ("3", "2"), ("3", "3")}


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["help", "job", "slurm"], ["job", "slurm", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "usage: rankscope job slurm" in texts[0]


def test_list_of_reports(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stats", ddp, "-r", "list")
    assert code == 0 and "breakdown" in out and "--by module: kernels, ops, memory.allocators" in out


def test_commands_that_are_options_now_work_by_their_old_names(
    ddp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "steps.svg"
    pairs = (
        (["skill"], ["mcp", "--guide"]),
        (["chart", ddp, "-r", "list"], ["report", "--chart", "list"]),
        (
            ["chart", ddp, "-r", "steps", "-f", "-o", chart],
            ["report", ddp, "--chart=steps", "-f", "-o", chart],
        ),
        (["scrub", ddp / "none"], ["export", "--scrub", ddp / "none"]),
        (["ncu", "--kernels", "none"], ["profile", "--tool", "ncu", "--kernels", "none"]),
        (["ncu", ddp, "--top", "0"], ["profile", "--tool=ncu", f"--from={ddp}", "--top", "0"]),
    )
    of_the_job = ["profile", "--tool", "ncu", "-n", "-q", "true", "--from", "--kernels"]
    assert run(capsys, *of_the_job)[1].endswith("true --from --kernels\n")
    for old, new in pairs:
        assert run(capsys, *old) == (answer := run(capsys, *new)) and any(answer[1:])
    assert not {"skill", "chart", "scrub", "ncu", "import-wrapper"} & set(COMMANDS) and len(COMMANDS) == 20


def test_without_a_run_the_newest_one_here_is_taken(
    ddp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in enumerate(("runs/new", "older")):
        shutil.copytree(ddp, tmp_path / name)
        (manifest := tmp_path / name / "rankscope.json").write_text("{}")
        os.utime(manifest, (1e9 - age, 1e9 - age))
    monkeypatch.chdir(tmp_path)
    named = run(capsys, "stats", "runs/new", "-q", "-r", "steps")
    code, out, err = run(capsys, "stats", "-q", "-r", "steps")
    assert (code, out) == named[:2]
    assert err.splitlines()[0] == f"rankscope: the newest run here: {Path('runs/new')}"
    assert run(capsys, "runs/new", "-q", "-r", "steps")[:2] == named[:2]


WRONG = {
    "no such command": (["frobnicate"], 2, "is not a rankscope command"),
    "no run": (["stats"], 2, "no RUN is named"),
    "a type and a removal": (["export", "RUN", "--scrub", "-t", "csv"], 2, "--scrub has no --type"),
    "dark without a chart": (["report", "RUN", "--dark"], 2, "--dark is for charts"),
    "kernels of a run without ncu": (
        ["profile", "--from", "RUN", "true"],
        2,
        "--from is an option of --tool ncu",
    ),
    "unknown report": (["stats", "RUN", "-r", "nonsense"], 2, "there is no report 'nonsense'"),
    "bad key": (["stats", "RUN", "-r", "steps", "--by", "shape"], 2, "cannot be split by shape"),
    "bad ranks": (["stats", "RUN", "--ranks", "1-"], 2, "does not name ranks"),
    "ranks not there": (["stats", "RUN", "--ranks", "9"], 2, "this run has no rank 9"),
    "bad steps": (["stats", "RUN", "--steps", "x"], 2, "does not name steps"),
    "steps backwards": (["stats", "RUN", "--steps", "9:3"], 2, "ends before it begins"),
    "steps not there": (["stats", "RUN", "--steps", "77"], 2, "this run has no step 77"),
    "bad top": (["stats", "RUN", "--top", "many"], 2, "not a whole number"),
    "bad pattern": (["stats", "RUN", "--comm-pattern", "("], 2, "not a regular expression"),
    "bad jobs": (["stats", "RUN", "--jobs", "0"], 2, "not a positive number"),
    "bad rank option": (["ingest", "RUN", "--rank", "x"], 2, "is not N=FILE"),
    "rank of no file": (["ingest", "RUN", "--rank", "1=/nowhere"], 2, "is not a file"),
    "folder not there": (["report", "RUN", "-o", "/nowhere/a.html"], 2, "there is no folder /nowhere"),
    "run not there": (["stats", "/nowhere"], 1, "there is no /nowhere"),
    "bad SQL": (["query", "RUN", "SELEC 1"], 1, "cannot be answered"),
    "no such table": (["query", "RUN", "SELECT * FROM nothing"], 1, "Tables: collectives, "),
    "two statements": (["query", "RUN", "SELECT 1; SELECT 2"], 1, "only one SELECT"),
    "no statement": (["query", "RUN", " -- "], 1, "the query is empty"),
    "no row": (["stats", "RUN", "--top", "0"], 2, "--top 0 shows nothing"),
    "writing": (["query", "RUN", "CREATE TABLE t (a INT)"], 1, "only one SELECT"),
    "reading other files": (
        ["query", "RUN", "SELECT * FROM read_text('/etc/hostname')"],
        1,
        "there is no function read_text",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_three_parts(
    case: str,
    ddp: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv, expected, message = WRONG[case]
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *(str(ddp) if arg == "RUN" else arg for arg in argv))
    assert (code, out) == (expected, "")
    assert err.startswith("rankscope: ") and message in err
    assert len(err.strip().splitlines()) >= 2
    assert "Traceback" not in err


@pytest.mark.slow
def test_query_formats(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT rank, count(*) AS n FROM steps GROUP BY rank ORDER BY rank"
    assert run(capsys, "query", ddp, sql, "--format", "csv")[1] == "rank,n\n0,3\n1,3\n2,3\n3,3\n"
    assert json.loads(run(capsys, "query", ddp, sql, "--format", "json")[1])["rows"][0] == {"rank": 0, "n": 3}
    assert run(capsys, "query", ddp, "DESCRIBE slices")[0] == 0
    code, out, _ = run(capsys, "query", ddp)
    assert code == 0 and "slices: " in out and "segment" in out
    repeated = run(capsys, "query", ddp, "SELECT 1 AS a, 2 AS a", "--format", "csv")[1]
    assert repeated == "a,a_1\n1,2\n"


@pytest.mark.slow
def test_export_round_trip(ddp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import duckdb

    target = tmp_path / "tables"
    assert run(capsys, "export", ddp, "-t", "parquet", "-o", target, "--ranks", "2", "--steps", "3")[0] == 0
    rows = duckdb.execute(f"SELECT DISTINCT rank, step FROM '{target}/slices.parquet'").fetchall()
    assert rows == [(2, 3)]
    code, _, err = run(capsys, "export", ddp, "-t", "csv", "-o", target)
    assert code == 2 and "exists already" in err
    assert run(capsys, "export", ddp, "-t", "csv", "-o", target, "-f")[0] == 0
    with (target / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12


@pytest.mark.slow
def test_doctor_exit_codes(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "doctor", ddp)[0] == 0
    assert run(capsys, "doctor", ddp, "--fail-on", "info")[0] == 3
    assert run(capsys, "doctor", ddp, "--fail-on", "warning")[0] == 0
    found = json.loads(run(capsys, "doctor", ddp, "--format", "json")[1])
    assert found["findings"][0]["severity"] == "info"


@pytest.mark.slow
def test_ingest_says_what_it_read_and_what_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [slice_event("op", 10 * i, 5) for i in range(3)]
    write_kineto(tmp_path / "rank-0.json", good)
    cut = write_kineto(tmp_path / "rank-1.json", good)
    cut.write_text(cut.read_text()[:-80])
    (tmp_path / "rank-2.json").write_text("")
    code, out, err = run(capsys, "ingest", tmp_path)
    assert code == 1
    assert "rank    0" in out and "1 events lost" in out and "Next: rankscope stats" in out
    assert "rank-2.json is empty" in err and "Read 2 files" in err
    (tmp_path / "rank-2.json").unlink()
    code, out, _ = run(capsys, "ingest", tmp_path)
    assert code == 0 and "up to date" in out


@pytest.mark.slow
def test_a_long_reading_is_followed_by_the_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kineto(tmp_path / "rank-0.json", [slice_event("op", 0, 5)])
    for quiet_seconds, then in ((1e9, ""), (0.0, r"\nAnalysing")):
        monkeypatch.setattr("rankscope.cli.common._QUIET_SECONDS", quiet_seconds)
        err = run(capsys, "stats", tmp_path)[2]
        assert re.fullmatch(rf"Read 1 file [^\n]*{then}\n", err)
        shutil.rmtree(tmp_path / ".rankscope")


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_kineto(tmp_path / "t.json", [slice_event("\x1b[31mred\x07 <script>|x|`y`", 0, 1)])
    for form in ("table", "markdown", "csv"):
        code, out, _ = run(capsys, "stats", tmp_path / "t.json", "-r", "ops", "--format", form)
        assert code == 0 and "\x1b" not in out and "\x07" not in out


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(ddp: Path) -> None:
    command = f"'{sys.executable}' -m rankscope stats '{ddp}' -r all --top all --format csv | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.slow
def test_the_installed_command_prints_nothing_unasked(ddp: Path) -> None:
    """DuckDB's binding likes to list leaked objects at exit; users never see that."""
    done = subprocess.run([sys.executable, "-m", "rankscope", "stats", ddp], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_may_stand_between_the_arguments(ddp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(ddp), "-q", "--format", "csv", "SELECT count(*) AS n FROM steps"]) == 0
    assert capsys.readouterr().out.split()[0] == "n"
