"""The page /watch: a job's telemetry, with traces beside it or alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.store.ingest import Options
from rankscope.viewer.address import Address
from rankscope.viewer.server import Server
from rankscope.viewer.startup import Opening
from rankscope.watch.alarms import HOST, SLOW_RANK
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
    assert "token" not in screen.page.url


@pytest.mark.slow
def test_a_job_without_a_trace_opens_on_its_telemetry(alone: Viewer, screen: Screen) -> None:
    alone.opening.start()
    screen.page.goto(alone.url)
    screen.page.wait_for_url("**/watch", timeout=60_000)
    screen.page.wait_for_selector("body[data-ready=true]", timeout=60_000)
    assert "rank 3 is slow" in screen.page.inner_text("#alarms")
