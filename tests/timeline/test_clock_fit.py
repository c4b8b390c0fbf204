"""The fit finds planted clocks: exactly without noise, within its error with noise, and not misled by outliers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope.timeline import clock_fit
from rankscope.timeline.clock_fit import Fit, Sightings, few_moments, fit, fit_many

SPAN_NS = 200_000_000


def sightings(
    groups: list[list[int]], offset: np.ndarray, drift: np.ndarray, moments: int, noise_ns: float, seed: int
) -> Sightings:
    """Moments of each group in turn, as each clock would write them down."""
    source = np.random.default_rng(seed)
    times = np.sort(source.integers(0, SPAN_NS, moments))
    rows = [
        (
            moment,
            clock,
            int(time + offset[clock] + round(drift[clock] * time) + round(noise)),
            moment % len(groups),
        )
        for moment, time in enumerate(times)
        for clock, noise in zip(
            groups[moment % len(groups)],
            source.normal(0, noise_ns, len(groups[moment % len(groups)])),
            strict=True,
        )
    ]
    return Sightings(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def ahead(found: Fit, time: float) -> np.ndarray:
    result: np.ndarray = found.offset + found.drift * (time - found.center_ns)
    return result


LAYOUTS = {
    "one group": [[0, 1, 2, 3]],
    "pairs in a chain": [[0, 1], [1, 2], [2, 3]],
    "tensor and data parallel": [[0, 1], [2, 3], [0, 2], [1, 3]],
}

planted = st.tuples(
    st.sampled_from(list(LAYOUTS)),
    st.lists(st.integers(-5_000_000, 5_000_000), min_size=3, max_size=3),
    st.lists(st.floats(-50e-6, 50e-6), min_size=3, max_size=3),
    st.integers(0, 10_000),
)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(planted)
def test_without_noise_clocks_are_found_to_the_nanosecond(
    plan: tuple[str, list[int], list[float], int],
) -> None:
    layout, offsets, drifts, seed = plan
    offset, drift = np.array([0, *offsets]), np.array([0.0, *drifts])
    found = fit(sightings(LAYOUTS[layout], offset, drift, 60, 0, seed), 4)
    assert set(found.part) == {0}
    for time in (0, SPAN_NS / 2, SPAN_NS):
        assert np.abs(ahead(found, time) - (offset + drift * time)).max() < 5  # of whole-ns time stamps
    assert np.abs(found.drift - drift).max() < 0.05e-6


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(planted, st.sampled_from([100.0, 5_000.0, 200_000.0]))
def test_with_noise_the_error_is_as_stated(
    plan: tuple[str, list[int], list[float], int], noise: float
) -> None:
    layout, offsets, drifts, seed = plan
    offset, drift = np.array([0, *offsets]), np.array([0.0, *drifts])
    found = fit(sightings(LAYOUTS[layout], offset, drift, 120, noise, seed), 4)
    wrong = np.abs(ahead(found, found.center_ns) - (offset + drift * found.center_ns))
    # five standard errors, and the spread that RankClock.error_ns adds
    assert (wrong <= 5 * found.offset_error + noise + 1).all()
    assert (np.abs(found.drift - drift) <= 5 * found.drift_error + 2 * noise / SPAN_NS + 1e-9).all()


@pytest.mark.slow
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(planted, st.floats(0.05, 0.3))
def test_outliers_do_not_mislead(plan: tuple[str, list[int], list[float], int], share: float) -> None:
    """Some ranks leave late by milliseconds, now and then: always late, never early."""
    _, offsets, drifts, seed = plan
    offset, drift = np.array([0, *offsets]), np.array([0.0, *drifts])
    seen = sightings(LAYOUTS["one group"], offset, drift, 150, 1_000, seed)
    source = np.random.default_rng(seed + 1)
    late = source.random(len(seen.time)) < share / 2
    time = seen.time + np.where(late, source.integers(1_000_000, 9_000_000, len(late)), 0)
    found = fit(Sightings(seen.moment, seen.clock, time, seen.noise_class), 4)
    assert np.abs(ahead(found, found.center_ns) - (offset + drift * found.center_ns)).max() < 2_000


def test_clocks_that_share_no_moment_are_in_different_parts() -> None:
    offset, drift = np.array([0, 5_000, 7_000_000, 7_001_000]), np.zeros(4)
    found = fit(sightings([[0, 1], [2, 3]], offset, drift, 40, 0, 1), 4)
    assert found.part.tolist() == [0, 0, 2, 2]
    assert np.abs(found.offset - [0, 5_000, 0, 1_000]).max() < 1


def test_a_good_group_outweighs_a_bad_one() -> None:
    """Moments seen to the µs count for more than those seen to the ms."""
    offset, drift = np.array([0, 40_000]), np.zeros(2)
    good = sightings([[0, 1]], offset, drift, 40, 1_000, 3)
    bad = sightings([[0, 1]], offset + np.array([0, 300_000]), drift, 40, 500_000, 4)
    seen = Sightings(
        np.concatenate([good.moment, bad.moment + 40]),
        np.concatenate([good.clock, bad.clock]),
        np.concatenate([good.time, bad.time]),
        np.concatenate([good.noise_class, bad.noise_class + 1]),
    )
    assert abs(fit(seen, 2).offset[1] - 40_000) < 2_000


def test_one_moment_tells_the_offset_and_no_drift() -> None:
    seen = Sightings(*(np.array(x, dtype=np.int64) for x in ([0, 0], [0, 1], [1_000, 6_000], [0, 0])))
    found = fit(seen, 2)
    assert abs(found.offset[1] - 5_000) < 1 and abs(found.drift[1]) < 1e-3


@pytest.mark.parametrize("layout", ["one group", "pairs in a chain"])
@pytest.mark.parametrize("moments", [1, 2, 3])
def test_few_moments_tell_no_spread(layout: str, moments: int) -> None:
    """They fit exactly, whatever their noise: that is no evidence of a small error."""
    groups = LAYOUTS[layout]
    found = fit(sightings(groups, np.zeros(4), np.zeros(4), moments * len(groups), 10_000, 1), 4)
    assert not found.tells.any() and np.isnan(found.spread).all()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("moments", [4, 6, 10])
def test_the_error_covers_the_offset_from_four_moments_on(layout: str, moments: int) -> None:
    covered = []
    for seed in range(40):
        groups = LAYOUTS[layout]
        seen = sightings(groups, np.zeros(4), np.zeros(4), moments * len(groups), 10_000, seed)
        found = fit(seen, 4)
        for clock in range(1, 4):
            mine = np.abs(found.residual[seen.clock == clock])
            error = 2 * found.offset_error[clock] + few_moments(len(mine)) * np.median(mine)
            covered.append(abs(found.offset[clock]) <= error)
    assert np.mean(covered) > 0.9


def test_a_class_with_one_moment_is_as_uncertain_as_the_others() -> None:
    """Two pairs with many collectives, joined by one: its own residual is 0 by construction."""
    pairs = sightings([[0, 1], [2, 3]], np.zeros(4), np.zeros(4), 60, 10_000, 5)
    once = sightings([[0, 1, 2, 3]], np.zeros(4), np.zeros(4), 1, 10_000, 6)
    seen = Sightings(
        np.concatenate([pairs.moment, once.moment + 60]),
        np.concatenate([pairs.clock, once.clock]),
        np.concatenate([pairs.time, once.time]),
        np.concatenate([pairs.noise_class, once.noise_class + 2]),
    )
    found = fit(seen, 4)
    assert found.tells.sum() == 120 and (found.offset_error[2:] > 5_000).all()


NODES = [list(range(first, first + 4)) for first in range(0, 24, 4)]
ACROSS = [list(range(first, 24, 4)) for first in range(4)]


@pytest.mark.parametrize(
    "groups", [[*NODES, *ACROSS], [list(range(24))], [*NODES[:3], *NODES[3:], [0, 4, 8], [12, 16, 20]]]
)
@pytest.mark.parametrize("noise_ns", [0, 500])
def test_many_clocks_are_fitted_by_cluster(
    groups: list[list[int]], noise_ns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    offset, drift = rng.normal(0, 1e6, 24), rng.normal(0, 2e-5, 24)
    seen = sightings(groups, offset, drift, 40 * len(groups), noise_ns, 1)
    together = fit(seen, 24)
    monkeypatch.setattr(clock_fit, "_MOST_IN_CLUSTER", 4)
    found = fit_many(seen, 24, at_once=5)
    assert (found.part == together.part).all() and (found.tells == together.tells).all()
    planted = offset - offset[found.part], drift - drift[found.part]
    middle = SPAN_NS / 2
    wrong = ahead(found, middle) - (planted[0] + planted[1] * middle)
    # The drift of the first clock, over its offset, is left out of what was planted: 20 ns.
    assert np.abs(wrong).max() <= 20 + 4 * found.offset_error.max()
    assert np.abs(ahead(found, middle) - ahead(together, middle)).max() <= 3 + noise_ns
    assert found.offset_error.max() <= 3 * together.offset_error.max() + 1, "no worse by much"
    assert (
        np.abs(np.median(np.abs(found.residual)) - np.median(np.abs(together.residual))) <= 1 + noise_ns / 5
    )
    assert found.spread == pytest.approx(together.spread, rel=0.3, abs=1)


def test_a_thousand_clocks_without_a_common_moment() -> None:
    pairs = sightings([[0, 1], [2, 3]], np.zeros(200), np.zeros(200), 20, 0, 1)
    assert (fit_many(pairs, 200).part[4:] == np.arange(4, 200)).all()
