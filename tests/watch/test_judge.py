"""Planted faults come back with their rank and cause; a healthy job raises no alarm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankscope.watch.alarms import (
    COMMUNICATION,
    COMPUTE,
    CONFIRMED_AFTER_S,
    CONTENTION,
    GARBAGE,
    HOST,
    KINDS,
    MEMORY,
    SLOW_NODE,
    SLOW_RANK,
    SLOWDOWN,
    SPIKE,
    Alarm,
    AlarmBook,
)
from rankscope.watch.judge import StepWatcher, alarms_over, judge, spikes
from rankscope.watch.rings import RECENT
from rankscope.watch.step_table import StepTable, low_median, middle, sigma
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

    def with_long_steps(rank: int, rows: tuple[int, ...]) -> list[int | None]:
        # steps counted from the start of a process that resumed
        table = telemetry(replace(job, first_step=38, checkpoint_every=10**6))
        for row in rows:
            table["own_ns"][row, rank] += 6 * job.step_ns
            table["step_ns"][row] += 6 * job.step_ns
        return [alarm.since_step for alarm in watched(table, every=20)]

    assert with_long_steps(2, (100, 200, 300, 400)) == [138, 238]
    assert with_long_steps(0, (100, 200, 300, 400)) == []  # it evaluates
    assert with_long_steps(0, (100, 200, 270, 355)) == [308, 393]


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


def test_an_alarm_is_new_once_and_keeps_its_begin() -> None:
    """Also when its begin is no longer among the steps that are read."""
    table = telemetry(Job(4, steps=700), Fault(SLOW_RANK, COMPUTE, (1,), 60, 0.2))
    watcher = StepWatcher()
    raised, begins = [], set()
    for end in range(20, 700, 10):
        raised += watcher.look(table.rows(slice(max(end - RECENT, 0), end)))
        begins |= {alarm.since_step for alarm in watcher.book.open if end > 130}
    assert [(alarm.kind, alarm.ranks) for alarm in raised] == [(SLOW_RANK, (1,))]
    assert len(begins) == 1 and begins <= {60, 61, 62}


def test_an_alarm_ends_and_can_come_back() -> None:
    job = Job(4, steps=400)
    healthy, slow = telemetry(job), telemetry(job, Fault(SLOW_RANK, HOST, (1,), 100, 0.3))
    for field, values in slow.values.items():
        values[160:300] = healthy[field][160:300]
    episodes = alarms_over(slow)
    assert [(each.alarm.ranks, each.is_open) for each in episodes] == [((1,), False), ((1,), True)]
    assert 160 <= episodes[0].last_step <= 180 and episodes[1].alarm.since_step in range(299, 304)


@pytest.mark.parametrize(("every", "cause"), [(2, COMPUTE), (3, GARBAGE), (4, COMPUTE), (5, GARBAGE)])
def test_work_every_few_steps_is_named_unless_the_job_always_did_it(every: int, cause: str) -> None:
    job = Job(4, steps=200)
    table = telemetry(job)
    fields = ("own_ns", "cpu_ns") if cause == COMPUTE else ("own_ns", "cpu_ns", "gc_ns")

    def add(rows: slice) -> list[Alarm]:
        for field in fields:
            table[field][rows, 0] += 0.6 * job.step_ns
        table["step_ns"][rows] += 0.6 * job.step_ns
        table["wait_ns"][rows, 1:] += 0.6 * job.step_ns
        return watched(table.rows(slice(20, 140)), every=1, first=90)

    (alarm,) = add(slice(100, None, every))
    assert (alarm.kind, alarm.ranks, alarm.cause) == (SLOW_RANK, (0,), cause)
    assert alarm.since_step == 101 and alarm.step - 100 <= 20
    assert alarm.per_step == pytest.approx(0.6 * job.step_ns / every, rel=0.3)
    if every > 2:  # every second step is a slow rank, from the first step on
        assert add(slice(100 % every, 100, every)) == []


def test_a_faster_rank_does_not_hide_a_slow_one() -> None:
    job = Job(4, steps=120, imbalance=0.0)
    table = telemetry(job, Fault(SLOW_RANK, HOST, (1,), 100, 0.12))
    table["own_ns"][:, 2] -= 0.1 * job.step_ns
    (alarm,) = watched(table, every=2)
    assert (alarm.ranks, alarm.cause) == ((1,), HOST) and alarm.step <= 120


def test_stages_that_differ_by_design_are_compared_with_what_they_were() -> None:
    job = Job(4, steps=140, imbalance=0.0)
    table = telemetry(job, Fault(SLOW_RANK, COMPUTE, (0,), 120, 0.15))
    transfer = table["step_ns"] - table["own_ns"].max(axis=1)[:, None]
    table["own_ns"][:] += np.array([0.0, -0.12, 0.08, -0.2]) * job.step_ns
    table["step_ns"][:] = table["own_ns"].max(axis=1)[:, None] + transfer
    table["wait_ns"][:] = table["step_ns"] - table["own_ns"]
    (alarm,) = watched(table, every=2)
    assert (alarm.ranks, alarm.cause) == ((0,), COMPUTE)
    assert alarm.per_step == pytest.approx(0.15 * 0.8 * job.step_ns, rel=0.3)


@pytest.mark.parametrize("cause", [COMPUTE, CONTENTION])
def test_work_on_shared_cores_waits_for_them_too(cause: str) -> None:
    """Each rank has half a core: more work also waits longer, and is no contention."""
    job = Job(4, steps=160)
    table = telemetry(job)
    for field in ("cpu_ns", "run_delay_ns"):
        table[field][:] = table["own_ns"] / 2
    more = 0.3 * job.step_ns
    for field in ("own_ns", "step_ns", "run_delay_ns") if cause == CONTENTION else ("own_ns", "step_ns"):
        table[field][100:, 1] += more
    for field in ("cpu_ns", "run_delay_ns") if cause == COMPUTE else ():
        table[field][100:, 1] += more / 2
    (alarm,) = watched(table, every=2)
    assert (alarm.ranks, alarm.cause) == ((1,), cause)


def test_all_ranks_save_every_few_steps() -> None:
    job = Job(4, steps=130)
    table = telemetry(job)
    for field in ("own_ns", "step_ns"):
        table[field][100::5] += job.step_ns
    (alarm,) = watched(table, every=1)
    assert (alarm.kind, alarm.ranks, alarm.cause) == (SLOWDOWN, (), HOST)
    assert alarm.step - 100 <= 20 and alarm.text.startswith(
        "one step of 5 takes longer: on average 296 ms to "
    )
    assert alarm.per_step == pytest.approx(job.step_ns / 5, rel=0.3)


def test_who_waits_for_a_rank_has_no_slow_network() -> None:
    """The median rank waits longer, the slowest one does not. Ranks that take turns are not named."""
    job = Job(4, steps=160)
    table = telemetry(job)
    more = 0.5 * job.step_ns
    for row in range(100, 160):
        table["own_ns"][row, row * 7 % 4] += more
        table["cpu_ns"][row, row * 7 % 4] += more
        table["step_ns"][row] += more
    table["wait_ns"][:] = table["step_ns"] - table["own_ns"]
    (alarm,) = watched(table, every=2)
    assert (alarm.kind, alarm.ranks, alarm.cause) == (SLOWDOWN, (), COMPUTE)
    assert "the ranks take turns" in judge(table)[0].text
    network = telemetry(job, Fault(SLOWDOWN, COMMUNICATION, (0, 1, 2, 3), 100, 0.5))
    assert [(each.cause, "turns" in each.text) for each in judge(network)] == [(COMMUNICATION, False)]


@pytest.mark.slow
def test_what_lasts_some_seconds_only_is_a_suspicion() -> None:
    """Steps of 40 ms, a rank that is slow for five seconds, and later for good."""
    job = Job(4, steps=900, step_ns=40e6)
    healthy, table = telemetry(job), telemetry(job, Fault(SLOW_RANK, COMPUTE, (1,), 100, 0.3))
    for field, values in table.values.items():
        values[220:500] = healthy[field][220:500]
    table["end_unix_ns"][:] = np.cumsum(table["step_ns"], axis=0)
    watcher = StepWatcher()
    raised, suspected = [], []
    for end in range(20, 900):
        raised += watcher.look(table.rows(slice(max(end - RECENT, 0), end)))
        suspected += [(alarm.ranks, end) for alarm in watcher.book.suspicions]
    (alarm,) = raised
    (begin,) = {alarm.since_step for alarm in raised}
    assert alarm.ranks == (1,) and begin is not None and 500 <= begin <= 504
    lasted_ns = table["end_unix_ns"][alarm.step - 1, 0] - (alarm.since_unix_ns or 0)
    assert 1e9 * CONFIRMED_AFTER_S <= lasted_ns < 1e9 * CONFIRMED_AFTER_S + 1e8
    assert {ranks for ranks, _ in suspected} == {(1,)} and min(end for _, end in suspected) <= 120
    assert [each.alarm.since_step for each in watcher.book.episodes] == [begin]


@pytest.mark.slow
@pytest.mark.parametrize("per_stage", [2, 1, 4])
def test_ranks_are_compared_within_their_pipeline_stage(per_stage: int) -> None:
    """The last of four stages has half as much work again, from the first step on."""
    ranks = 4 * per_stage
    stages = tuple(rank // per_stage for rank in range(ranks))
    job = Job(ranks, steps=160, imbalance=0.0)
    uneven = 0.5 * job.step_ns * (np.array(stages) == 3)

    def staged(table: StepTable) -> StepTable:
        for field in ("own_ns", "cpu_ns"):
            table[field][:] += uneven
        table["step_ns"][:] += uneven.max()
        table["wait_ns"][:] = table["step_ns"] - table["own_ns"]
        return replace(table, stages=stages)

    assert watched(staged(telemetry(job)), every=2) == []
    if per_stage > 1:  # else it is not known whether its work is the slower one
        from_start = staged(telemetry(job, Fault(SLOW_RANK, COMPUTE, (1,), 0, 0.2)))
        assert [alarm.ranks for alarm in watched(from_start, every=2)] == [(1,)]
        light = staged(telemetry(job, Fault(SLOW_RANK, COMPUTE, (1,), 0, 0.2)))
        for field in ("own_ns", "cpu_ns"):
            light[field][:, :per_stage] -= 0.4 * job.step_ns
        assert [alarm.ranks for alarm in watched(light, every=2)] == [(1,)]
    later = staged(telemetry(job, Fault(SLOW_RANK, COMPUTE, (1,), 120, 0.2)))
    assert [alarm.ranks for alarm in watched(later, every=2)] == [(1,)]


def test_what_follows_from_an_alarm_is_none() -> None:
    slow, *_ = judge(telemetry(Job(4, steps=60), Fault(SLOW_RANK, COMPUTE, (1,), 30, 0.3)))
    longer = replace(
        slow, kind=SLOWDOWN, ranks=(), what="every step takes longer", per_step=2 * slow.per_step
    )
    later = [replace(alarm, step=alarm.step + 5) for alarm in (slow, longer)]
    book = AlarmBook()
    assert book.new([slow]) == [slow] and book.new([later[1]]) == []
    book = AlarmBook()
    assert book.new([longer]) == [longer] and book.new(later) == [later[0]]
    book.close(later[0].step)
    assert book.open == [later[0]]
    # Long after the rank was seen last: what began with it is no second cause, what began later is.
    book = AlarmBook()
    book.new([slow])
    much_later = replace(longer, step=slow.step + 300, per_step=20 * slow.per_step)
    assert book.new([much_later]) == []
    another = replace(much_later, since_step=slow.step + 250)
    assert book.new([another]) == [another]


def test_a_rank_of_a_slow_node_is_no_alarm_of_its_own() -> None:
    job = Job(8, steps=120)
    (node,) = judge(telemetry(job, Fault(SLOW_NODE, HOST, (4, 5, 6, 7), 80, 0.3)))
    rank = replace(node, kind=SLOW_RANK, ranks=(5,), node="", step=node.step - 2)
    book = AlarmBook()
    seen_ns = node.since_unix_ns or 0
    assert book.new([rank], seen_ns) == [] and book.suspicions == [rank]
    book.new([node], seen_ns + 1e9)
    book.close(node.step)
    assert book.open == [node] and book.new([node], seen_ns + 20e9) == [node]


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
