"""The page /watch: a job's telemetry, with traces beside it or alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conftest import ROOT, slice_event, write_kineto
from rankscope.errors import system_error
from rankscope.store.ingest import Options
from rankscope.viewer.address import Address
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening
from rankscope.watch.alarms import HOST, SLOW_RANK
from rankscope.watch.rings import has_telemetry
from simulated_telemetry import Fault, Job, telemetry, write_rings
from viewer_server import Screen, Viewer, stop, watched


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Viewer]:
    """A viewer over a folder that holds only telemetry; no trace is opened."""
    run = tmp_path / "alone"
    job = Job(30, steps=60)
    write_rings(run, job, telemetry(job, Fault(SLOW_RANK, HOST, (3,), 30, 0.3)), ended_unix_ns=time.time_ns())
    opening = Opening([run], Options, lambda text: None)
    viewer = watched(Server(Address("127.0.0.1", 0), opening.routes()), run, opening)
    yield viewer
    stop(viewer)


def test_the_route_has_the_ranks_to_look_at_first(alone: Viewer) -> None:
    status, state = alone.ask("watch")
    assert status == 200 and state["run"] == "alone"
    assert [alarm["ranks"] for alarm in state["alarms"]] == [[3]]
    assert (len(state["ranks"]), state["count"], state["like_median"]) == (20, 30, 29)
    assert state["ranks"][0]["rank"] == 3
    status, page = alone.get(f"/watch?token={alone.server.address.token}")
    assert status == 200 and b"js/watch.js" in page


def test_without_telemetry_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    opening = Opening([tmp_path], Options, lambda text: None)
    viewer = watched(Server(Address("127.0.0.1", 0), opening.routes()), tmp_path, opening)
    status, answer = viewer.ask("watch")
    assert status == 400 and "--watch" in answer["hint"]
    stop(viewer)


@pytest.mark.slow
def test_the_page_in_a_browser(alone: Viewer, screen: Screen) -> None:
    screen.page.goto(alone.url.replace("/?", "/watch?"))
    screen.page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert "rank 3 is slow" in screen.page.inner_text("#alarms")
    assert screen.page.locator("#ranks tr").count() == 21
    assert screen.page.locator("#trend rect").count() == 55
    axes = screen.page.inner_text("#trend .axes").split("\n")
    assert axes[2:] == ["0", "step 6", "step 33", "step 60"] and all(text.endswith("s") for text in axes[:2])
    assert "the median of these steps" in screen.page.inner_text("#trend .legend")
    screen.page.click("#capture")
    screen.page.wait_for_selector("#asked:has-text('of 30 ranks (0-29) will be recorded')")
    assert (alone.folder / "telemetry" / "capture-0001.json").exists()
    assert "token" not in screen.page.url


@pytest.mark.slow
def test_a_job_without_a_trace_opens_on_its_telemetry(alone: Viewer, screen: Screen) -> None:
    alone.opening.start()
    screen.page.goto(alone.url)
    screen.page.wait_for_url("**/watch", timeout=60_000)
    screen.page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert "rank 3 is slow" in screen.page.inner_text("#alarms")


@pytest.mark.slow
def test_view_of_a_watched_job_goes_on_and_opens_what_it_records(tmp_path: Path) -> None:
    """The process itself, for longer than it takes to find that there is no trace."""
    job = Job(2, steps=30)
    write_rings(tmp_path / "run", job, telemetry(job), ended_unix_ns=time.time_ns())
    with subprocess.Popen(
        [sys.executable, "-m", "rankscope", "view", "run", "--no-open"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        address, _, token = process.stdout.readline().strip().partition("/?token=")

        def ask(route: str, again: str = "") -> Any:
            with urllib.request.urlopen(f"{address}/api/{route}?token={token}{again}", timeout=60) as answer:
                return json.load(answer)

        def state_after_reading() -> str:
            while (state := ask("state")["state"]) == "reading":
                time.sleep(0.05)
            return str(state)

        assert state_after_reading() == "telemetry"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        assert ask("watch")["last_step"] == 30
        write_kineto(tmp_path / "run" / "rank-0.json", [slice_event("a", 0, 5)])
        ask("state", "&again=1")
        assert state_after_reading() == "open" and ask("run")["ranks"] == [0]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "There is no trace yet: the page shows the telemetry" in said


def test_a_page_that_asks_while_telemetry_is_looked_for_is_told_to_wait(
    alone: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told "failed", it would not ask again."""
    states: list[str] = []

    def looked_for(run: Path) -> bool:
        if not states:
            states.append("asking")
            states.append(alone.opening.state()["state"])
        return has_telemetry(run)

    monkeypatch.setattr("rankscope.watch.rings.has_telemetry", looked_for)
    alone.opening.start()
    assert alone.opening.wait(20) and states == ["asking", "reading"]
    assert alone.opening.state()["state"] == "telemetry"


def test_telemetry_of_another_user_does_not_keep_the_page_waiting(
    alone: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is closed to others: what else is there is shown, or said to be missing."""
    refused = system_error(PermissionError(errno.EACCES, "Permission denied", "telemetry"))
    monkeypatch.setattr("rankscope.watch.rings._ring_files", Mock(side_effect=refused))
    alone.opening.start()
    assert alone.opening.wait(20)
    status, state = alone.ask("state")
    assert (status, state["state"], state["telemetry"]) == (200, "failed", False)


def test_telemetry_alone_that_is_deleted_is_said(alone: Viewer) -> None:
    alone.opening.start()
    assert alone.opening.wait(20) and not alone.opening.has_failed
    shutil.rmtree(alone.folder)
    status, answer = alone.ask("watch")
    assert status == 400 and "has no telemetry" in answer["error"] and alone.ask("run")[0] == 400
    alone.ask("state", again="1")
    assert alone.opening.wait(20) and alone.opening.state()["state"] == "failed"
