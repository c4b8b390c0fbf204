"""`rankscope watch` and `rankscope capture` on ring files that a simulated job left."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rankscope.capture.telemetry_ring import (
    FIELDS,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PHASES,
    RECORD,
    RingWriter,
    read_header,
    ring_path,
)
from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope.watch.alarms import HOST, SLOW_RANK, SPIKE
from rankscope.watch.live import WIDTH, LiveView, LogLines, follow, lines, sparkline
from rankscope.watch.metrics import metrics
from rankscope.watch.state import like_the_median, worst_ranks
from simulated_telemetry import Fault, Job, read_state, telemetry, write_rings


def job_in(
    run: Path, job: Job, fault: Fault | None = None, phases: tuple[str, ...] = (), ago_s: float = 0.0
) -> None:
    """A job whose last step ended `ago_s` seconds ago, and that is alive."""
    now = time.time_ns()
    ended = now - int(ago_s * 1e9)
    write_rings(run, job, telemetry(job, fault), phases=phases, ended_unix_ns=ended, alive_unix_ns=now)


@pytest.fixture
def slow3(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    job_in(run, Job(8, steps=100), Fault(SLOW_RANK, HOST, (3,), 70, 0.3))
    return run


def run_main(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_once_shows_the_slow_rank_within_80_columns(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_main(capsys, "watch", slow3, "--once")
    assert (code, err) == (0, "")
    shown = out.splitlines()
    assert max(map(len, shown)) <= WIDTH
    assert shown[0] == "run · running · 8 of 8 ranks alive · step 100"
    assert "warning: rank 3 is slow: " in out and ", host, slowest in 30 of 30 steps, since step" in " ".join(
        out.split()
    )
    assert next(line for line in shown if line.startswith("3 ")).split()[:4] == [
        "3",
        "node0",
        "training",
        "host",
    ]
    assert shown[-1] == "7 of 8 ranks like the median"


def test_json_and_exit_code(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_main(capsys, "watch", slow3, "--once", "--format", "json", "--fail-on", "hang")
    state = json.loads(out)
    assert code == 0 and [alarm["ranks"] for alarm in state["new_alarms"]] == [[3]]
    assert state["ranks"][3]["alarms"] == ["slow-rank"] and state["ranks"][3]["slow"]
    assert run_main(capsys, "watch", slow3, "--once", "--fail-on", "hang,slow-rank")[0] == 3
    assert run_main(capsys, "watch", slow3, "--once", "--fail-on", "any")[0] == 3


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--fail-on", "late"), "there is no such alarm"),
        (("--every", "1ms"), "--every must be at least"),
        (("--hang-after", "soon"), "is not a length of time"),
    ],
)
def test_wrong_options(
    slow3: Path, words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_main(capsys, "watch", slow3, "--once", *words)
    assert code == 2 and what in err


def test_a_folder_without_telemetry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("watch", tmp_path, "--once"), ("capture", tmp_path)):
        code, _, err = run_main(capsys, *words)
        assert code == 1 and "has no telemetry" in err and "rankscope profile --watch" in err


def test_a_watch_that_is_started_first_waits_for_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks, log = follow(tmp_path / "run", 0.0), LogLines()
    state, new = next(looks)
    assert (state["state"], new) == ("starting", []) and len(lines(state)[1]) <= WIDTH
    assert "waiting for a job that was started with --watch" in log(state, new)
    assert log(*next(looks)) == ""  # once, not every second
    assert all(metric.name != "rankscope_step_seconds" for metric in metrics(state))
    job_in(tmp_path / "run", Job(2, steps=30))
    assert " · running · 2 of 2 ranks alive · step 30" in log(*next(looks))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StoreError, match="has no telemetry"):
        next(looks)


def test_the_view_keeps_past_alarms(tmp_path: Path) -> None:
    job_in(tmp_path, Job(4, steps=200), Fault(SPIKE, HOST, (3,), 190, 6.0))
    state, _ = read_state(tmp_path)
    assert state["alarms"] == [] and "no alarm" in lines(state)
    (earlier,) = [line for line in lines(state, 200) if line.startswith("earlier: ")]
    assert "step 191" in earlier and "rank 3" in earlier and "until" not in earlier
    state["past_alarms"][0] |= {"last_step": 199}
    assert any(line.endswith(", until step 199") for line in lines(state, 200))


def test_no_suspicion_stays_after_the_end_of_the_job(tmp_path: Path) -> None:
    job, fault = Job(4, steps=150, step_ns=100e6), Fault(SLOW_RANK, HOST, (3,), 100, 0.3)
    job_in(tmp_path / "a", job, fault)
    assert read_state(tmp_path / "a")[0]["suspicions"] != []
    job_in(tmp_path / "b", job, fault, phases=("ended",) * 4)
    state, _ = read_state(tmp_path / "b")
    assert (state["state"], state["suspicions"]) == ("ended", [])


def test_metrics_for_prometheus(slow3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rankscope.prom"
    assert run_main(capsys, "watch", slow3, "--once", "--prometheus", file)[0] == 0
    samples = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}
    assert values['rankscope_alarms{run="run",kind="slow-rank"}'] == 1
    assert values['rankscope_rank_last_step{run="run",rank="7",node="node1"}'] == 100
    assert values['rankscope_running{run="run"}'] == 1
    assert 0.2 < values['rankscope_step_seconds{run="run",quantile="0.5"}'] < 0.6
    page = Path(__file__).parents[2].joinpath("docs/watch.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(rankscope_\w+)`", page)) == {name.partition("{")[0] for name in values}
    nowhere = tmp_path / "no" / "where"
    assert "cannot write" in run_main(capsys, "watch", slow3, "--once", "--prometheus", nowhere)[2]


def test_a_command_gets_the_alarm(slow3: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "alarm.json"
    assert run_main(capfd, "watch", slow3, "--once", "--on-alarm", f"cat > {file}")[0] == 0
    assert json.loads(file.read_text())["ranks"] == [3]
    run_main(capfd, "watch", slow3, "--once", "--on-alarm", f'echo "$RANKSCOPE_ALARM" > {file}')
    assert file.read_text().startswith("warning: rank 3 is slow: ")
    run_main(capfd, "watch", slow3, "--once", "--on-alarm", f'echo "$RANKSCOPE_VIEW" > {file}')
    view = file.read_text().splitlines()
    assert (
        "of 8 ranks alive" in view[0] and "7 of 8 ranks like the median" in view and max(map(len, view)) <= 80
    )
    code, _, err = run_main(capfd, "watch", slow3, "--once", "--on-alarm", "exit 7")
    assert code == 0 and "--on-alarm failed" in err


def test_an_alarm_is_posted(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got: list[bytes] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/hook"
        assert run_main(capsys, "watch", slow3, "--once", "--on-alarm", url)[0] == 0
        thread.join(10)
    assert json.loads(got[0])["kind"] == "slow-rank"


def test_an_alarm_makes_one_capture_an_hour(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = slow3 / "telemetry"
    _, _, err = run_main(capsys, "watch", slow3, "--once", "--auto-capture", "2")
    assert "will be recorded" in err
    asked = json.loads((folder / "capture-0001.json").read_text())
    assert asked["reason"].startswith("alarm: rank 3 is slow") and asked["ranks"] == "all"
    assert run_main(capsys, "watch", slow3, "--once", "--auto-capture", "2")[2] == ""
    words = ("--auto-capture", "2", "--auto-capture-every", "0s")
    for _ in range(2):
        run_main(capsys, "watch", slow3, "--once", *words)
    assert len([*folder.glob("capture-*.json")]) == 2


def test_capture_names_steps_that_lie_ahead(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_main(capsys, "capture", slow3, "--steps", "4", "--ranks", "local:0")
    asked = json.loads((slow3 / "telemetry" / "capture-0001.json").read_text())
    # 6 s of steps of 0.36 s, and one to warm up
    assert code == 0 and 100 + 14 < asked["first_step"] < 100 + 24
    assert (asked["steps"], asked["warmup"], asked["ranks"]) == (4, 1, "local:0")
    assert f"Steps {asked['first_step']} to {asked['first_step'] + 3} of 2 ranks (0,4)" in out
    run_main(capsys, "capture", slow3)
    assert (slow3 / "telemetry" / "capture-0002.json").exists()
    code, _, err = run_main(capsys, "capture", slow3, "--ranks", "8-9")
    assert code == 2 and "selects no rank" in err and "It has ranks 0-7." in err


def test_capture_of_a_job_that_has_ended_or_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_in(tmp_path / "a", Job(2, steps=20), phases=("ended", "ended"))
    code, _, err = run_main(capsys, "capture", tmp_path / "a")
    assert code == 1 and "has ended" in err and "-r telemetry" in err
    (tmp_path / "b" / "telemetry").mkdir(parents=True)
    RingWriter(ring_path(tmp_path / "b", 0), {"rank": 0, "started_unix_ns": time.time_ns()}, 8)
    code, _, err = run_main(capsys, "capture", tmp_path / "b")
    assert code == 1 and "no step yet" in err


def test_watch_ends_with_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_in(tmp_path, Job(2, steps=30), phases=("ended", "ended"))
    code, out, _ = run_main(capsys, "watch", tmp_path)
    assert code == 0 and " · ended · 0 of 2 ranks alive · step 30 · step " in out


def test_many_ranks_show_ten(tmp_path: Path) -> None:
    job_in(tmp_path, Job(40, steps=30), Fault(SLOW_RANK, HOST, (33,), 0, 0.3))
    state, _ = read_state(tmp_path)
    assert worst_ranks(state)[0]["rank"] == 33 and len(worst_ranks(state)) == 10
    assert like_the_median(state) == 39
    assert len(lines(state)) < 24


def test_every_row_fits_into_80_columns(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    about = {"rank": 99999, "host": "a-node-with-a-very-long-name.cluster.example", "started_unix_ns": 1}
    writer = RingWriter(ring_path(tmp_path, 99999), about, 32)
    now = time.time_ns()
    record = [12_345_678, now - 999_000_000_000, *[10**11] * (len(FIELDS) - 4), 0]
    writer.write([record] * 20, now, PHASES.index("data loading"), now)
    state, _ = read_state(tmp_path)
    state["ranks"][0] |= {"cause": "garbage collection", "excess_ns": -123_456_789.0}
    assert max(map(len, lines(state))) <= WIDTH


def test_the_live_view_writes_only_what_changed(slow3: Path) -> None:
    view = LiveView()
    state, _ = read_state(slow3)
    first = view.redraw(state, 80, 24)
    state["last_step"] += 1
    second = view.redraw(state, 80, 24)
    assert "step 101" in second and second.count("\033[K") == 1
    assert second.startswith(f"\033[{first.count(chr(10))}A")


def test_a_sparkline_is_not_flattened_by_one_long_step() -> None:
    assert sparkline([100.0, 100.0, None, 1000.0, 50.0]) == "▅▅ █▃"
    assert sparkline([]) == "" and sparkline([0.0]) == ""


def test_one_rank_alone(tmp_path: Path) -> None:
    table = telemetry(Job(1, steps=40))
    assert np.isfinite(table["own_ns"]).all()
    job_in(tmp_path, Job(1, steps=40))
    state, alarms = read_state(tmp_path)
    assert alarms == [] and state["ranks"][0]["excess_ns"] == 0


FAKE_SSH = """\
#!/bin/sh
# Runs the command here. There is no connection that could be shared.
for word; do [ "$word" = -O ] && exit 1; done
while [ "$1" != -- ]; do shift; done
shift 2
[ -n "$FAKE_SSH_CODE" ] && exit "$FAKE_SSH_CODE"
exec sh -c "$*"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path) -> Path:
    program = tmp_path / "ssh"
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_watch_and_capture_on_another_machine(
    slow3: Path, fake_ssh: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = (f"ssh://there{slow3}", "--ssh", fake_ssh, "--remote-rankscope", f"{sys.executable} -m rankscope")
    code, out, _ = run_main(capfd, "watch", *there, "--once", "--format", "json", "--fail-on", "slow-rank")
    assert code == 3 and json.loads(out)["new_alarms"][0]["ranks"] == [3]
    code, out, _ = run_main(capfd, "capture", *there, "--steps", "2", "--ranks", "0-1")
    assert code == 0 and "of 2 ranks (0-1) will be recorded" in out


def test_a_machine_that_cannot_be_reached(
    slow3: Path, fake_ssh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, what in (("255", "cannot reach there"), ("127", "there is no rankscope on there")):
        monkeypatch.setenv("FAKE_SSH_CODE", number)
        code, _, err = run_main(capfd, "watch", f"ssh://there{slow3}", "--ssh", fake_ssh)
        assert code == 1 and what in err


def test_ranks_that_switched_their_telemetry_off(slow3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = "it costs 2 % of the step time, and its budget is 0.5 %"
    for rank in range(8):
        path = ring_path(slow3, rank)
        ring = read_header(path.read_bytes())
        assert ring is not None
        writer = RingWriter(tmp := path.with_name("new"), {**ring.about, "off": why})
        writer.write([], ring.header.alive_unix_ns, PHASES.index("ended"), ring.header.phase_since_unix_ns)
        header, records = tmp.read_bytes()[:HEADER_BYTES], path.read_bytes()[HEADER_BYTES:]
        counts = HEADER.pack(MAGIC, RECORD.size, *ring.header._replace(phase=PHASES.index("ended")))
        path.write_bytes(counts + header[len(counts) :] + records)
        tmp.unlink()
    code, out, _ = run_main(capsys, "watch", slow3)  # it ends, as nothing more will come
    assert code == 0
    assert out.startswith("run · off · 0 of 8 ranks alive")
    code, out, _ = run_main(capsys, "watch", slow3, "--once")
    assert f"telemetry off on ranks 0-7: {why}" in out.replace("\n ", "")
    assert "hang" not in out
    code, _, err = run_main(capsys, "capture", slow3)
    assert (code, "is off" in err, why in err) == (1, True, True)
    code, out, _ = run_main(capsys, "stats", slow3, "-r", "telemetry")
    assert f"telemetry switched off on ranks 0-7: {why}" in " ".join(out.split())
