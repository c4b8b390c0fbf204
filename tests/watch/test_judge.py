"""Planted faults come back with their rank and cause; a healthy job raises no alarm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankscope.watch.alarms import COMPUTE, HOST, KINDS, MEMORY, SLOW_NODE, SLOW_RANK, SPIKE, AlarmBook
from rankscope.watch.judge import judge, spikes
from rankscope.watch.step_table import low_median, middle, sigma
from simulated_telemetry import Fault, Job, telemetry
from watch import healthy_alarms, is_right, planted_case, watched


@pytest.mark.parametrize("number", range(12))
def test_planted_faults_are_named_within_20_steps(number: int) -> None:
    fault, alarms = planted_case(number, every=10)
    assert [is_right(fault, alarm) for alarm in alarms] == [True], (fault, alarms)
    assert abs(alarms[0].since_step - fault.row - 1) <= 10  # type: ignore[operator]


def test_healthy_steps_raise_no_alarm() -> None:
    steps, alarms = healthy_alarms(600, every=15, seed=7)
    assert steps == 600
    assert alarms == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_slower_of_few_ranks(ranks: int) -> None:
    job = Job(ranks, steps=60)
    (alarm,) = judge(telemetry(job, Fault(SLOW_RANK, HOST, (1,), 30, 0.2)))
    assert (alarm.kind, alarm.ranks, alarm.cause) == (SLOW_RANK, (1,), HOST)
    assert abs(alarm.since_step - 31) <= 1  # type: ignore[operator]
    assert alarm.since_unix_ns is not None
    assert alarm.per_step == pytest.approx(0.2 * 0.8 * job.step_ns, rel=0.25)
    assert "rank 1 is slow" in alarm.text and alarm.hint


def test_a_slow_node_is_named_once_and_its_ranks_are_not() -> None:
    job = Job(8, steps=60)
    (alarm,) = judge(telemetry(job, Fault(SLOW_NODE, COMPUTE, (4, 5, 6, 7), 30, 0.2)))
    assert (alarm.kind, alarm.node, alarm.ranks) == (SLOW_NODE, "node1", (4, 5, 6, 7))


def test_a_slow_rank_explains_why_all_steps_are_longer() -> None:
    alarms = judge(telemetry(Job(8, steps=80), Fault(SLOW_RANK, COMPUTE, (5,), 60, 0.5)))
    assert [alarm.kind for alarm in alarms] == [SLOW_RANK]


def test_one_step_of_many_is_not_a_slow_rank() -> None:
    table = telemetry(Job(4, steps=60), Fault(SPIKE, HOST, (2,), 55, 4.0))
    (alarm,) = judge(table)
    assert (alarm.kind, alarm.ranks, alarm.since_step) == (SPIKE, (2,), 56)
    assert spikes(table.rows(slice(None, 55))) == []
    lasting = telemetry(Job(4, steps=60), Fault(SLOW_RANK, HOST, (2,), 55, 4.0))
    assert spikes(lasting) == []


def test_checkpoints_are_not_spikes_and_spikes_at_one_distance_become_checkpoints() -> None:
    job = Job(4, steps=420, seed=1, checkpoint_every=100)
    assert watched(telemetry(job), every=20) == []
    shifted = replace(job, first_step=38)  # steps counted from the start of a process that resumed
    saved = telemetry(replace(shifted, checkpoint_every=10**6))
    for row in (100, 200, 300, 400):
        saved["own_ns"][row, 0] += 6 * job.step_ns
        saved["step_ns"][row] += 6 * job.step_ns
    assert [alarm.since_step for alarm in watched(saved, every=20)] == [138, 238]


def test_a_spike_of_no_rank_is_the_networks() -> None:
    table = telemetry(Job(4, steps=60))
    table["step_ns"][56] *= 4
    (alarm,) = judge(table)
    assert (alarm.kind, alarm.ranks, alarm.cause) == (SPIKE, (), "unknown")


def test_memory_that_all_ranks_gain_is_one_alarm() -> None:
    (alarm,) = judge(telemetry(Job(8, steps=80), Fault(MEMORY, "memory", tuple(range(8)), 30, 0.004)))
    assert alarm.ranks == tuple(range(8))
    assert alarm.text.startswith("memory of all ranks grows: ")
    assert alarm.per_step == pytest.approx(0.004 * 8e9, rel=0.1)


def test_memory_that_is_read_once_a_second_leaks_in_stairs() -> None:
    table = telemetry(Job(4, steps=60))
    stairs = 8e9 + np.arange(60) // 4 * 4 * 12e6
    table["memory_bytes"][:] = 8e9
    table["memory_bytes"][:, 2] = np.where(np.arange(60) > 20, stairs, stairs[20])
    (alarm,) = judge(table)
    assert (alarm.kind, alarm.ranks) == (MEMORY, (2,))
    table["memory_bytes"][:, 2] = 8e9 + 1e9 * (np.arange(60) > 50)
    assert judge(table) == []


def test_ranks_without_own_work_are_not_judged() -> None:
    table = telemetry(Job(4, steps=40), Fault(SLOW_RANK, COMPUTE, (1,), 0, 0.5))
    table["own_ns"][:] = np.nan
    assert judge(table) == []
    assert judge(table.rows(slice(0, 5))) == []


def test_an_alarm_is_new_once() -> None:
    table = telemetry(Job(4, steps=120), Fault(SLOW_RANK, COMPUTE, (1,), 30, 0.3))
    book = AlarmBook()
    now = judge(table.rows(slice(0, 60)))
    assert book.new(now) == now
    assert book.new(judge(table.rows(slice(0, 70)))) == []
    (later,) = judge(table)
    assert book.new([replace(later, step=later.step + 100)]) != []


def test_an_alarm_as_json_and_as_a_line() -> None:
    (alarm,) = judge(telemetry(Job(4, steps=60), Fault(SLOW_RANK, COMPUTE, (1,), 30, 0.3)))
    content = alarm.to_dict()
    assert content["kind"] in KINDS and content["severity"] == "warning" and content["ranks"] == [1]
    assert alarm.line().startswith("warning: rank 1 is slow: ") and " UTC). " in alarm.line()


def test_medians_without_what_is_not_known() -> None:
    nan = float("nan")
    values = np.array([[1.0, nan, 3.0, 2.0], [nan, nan, nan, nan], [4.0, 1.0, 2.0, 3.0]])
    assert low_median(values, 1).tolist()[::2] == [2.0, 2.0]
    assert np.isnan(low_median(values, 1)[1]) and np.isnan(middle(np.array([])))
    assert sigma(np.array([-1.0, 1.0, 100.0])) == pytest.approx(1.4826)
