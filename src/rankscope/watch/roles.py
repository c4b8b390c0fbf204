"""Roles of one job (rollout, reward, training): which waits for which, and how long.

From the ring files alone. A step ends when its work is done, so a process that waits for another role waits first and
works then: it was released when its work began. Where that is again and again the end of a step of another role, more
often than by chance, it waits for that role. Work is CPU time of the process: where a GPU or a child works for it,
nothing is evident, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.capture.telemetry_ring import FIELDS
from rankscope.ranges import as_ranges
from rankscope.text.plain_table import plain_table
from rankscope.units import choose_scale
from rankscope.watch.rings import WARM_UP, RankRing

Times = NDArray[np.int64]

_BLOCKED = 0.2
"""A step that is blocked for less than this share tells nothing about whom it waits for."""
_LEAST_STEPS = 5
_NEAR = 0.05
"""A release follows the end of a step within this share of the step that was released."""
_LEAST_SHARE = 0.6
"""Of its steps that a role must have released."""
_LEAST_DIFFERENCE_PCT = 10
"""Between the waits of two roles, for one of them to be the bottleneck."""
_ERRORS = 4
"""Standard errors by which that must be more than by chance."""
_NUMBER, _END, _STEP = map(FIELDS.index, ("number", "end_unix_ns", "step_ns"))
_NEEDED = [FIELDS.index(name) for name in ("cpu_ns", "run_delay_ns", "wait_ns", "data_ns")]


def role_states(rings: Sequence[RankRing]) -> list[dict[str, Any]]:
    """One entry for each role, in a job that has several."""
    of_role: dict[str, list[RankRing]] = {}
    for ring in rings:
        of_role.setdefault(ring.role or "other", []).append(ring)
    if len(of_role) < 2:
        return []
    steps = {role: [_after_warm_up(ring) for ring in members] for role, members in of_role.items()}
    ends = {role: np.sort(np.concatenate([rows[:, _END] for rows in ranks])) for role, ranks in steps.items()}
    states = []
    for role, members in of_role.items():
        rows = np.concatenate(steps[role])
        waits_for = _released_by(rows, len(members), {other: ends[other] for other in ends if other != role})
        states.append(
            {
                "role": role,
                "ranks": [ring.rank for ring in members],
                "last_step": max(ring.last_step for ring in members),
                "step_ns": float(np.median(rows[:, _STEP])) if len(rows) else None,
                "waits_for": waits_for,
                "wait_pct": 100 * int(_blocked(rows).sum()) / int(rows[:, _STEP].sum())
                if waits_for
                else None,
            }
        )
    return states


def _after_warm_up(ring: RankRing) -> Times:
    return ring.records[ring.records[:, _NUMBER] > WARM_UP]


def _working(rows: Times) -> Times:
    """What a step needs for itself: CPU time of the process, waits for a core, its collectives, its data loader."""
    needed: Times = np.maximum(rows[:, _NEEDED], 0).sum(axis=1)
    return np.minimum(needed, rows[:, _STEP])


def _blocked(rows: Times) -> Times:
    return rows[:, _STEP] - _working(rows)


def _released_by(rows: Times, ranks: int, ends: dict[str, Times]) -> str | None:
    """The role whose steps end when these steps, of so many ranks, are released; None: that is not evident."""
    waiting = rows[_blocked(rows) >= _BLOCKED * rows[:, _STEP]]
    if len(waiting) < _LEAST_STEPS * ranks:
        return None
    near = int(_NEAR * np.median(waiting[:, _STEP]))
    released = (
        waiting[:, _END] - _working(waiting) + near // 5
    )  # clocks of nodes differ, CPU time is not exact
    first, last = int((waiting[:, _END] - waiting[:, _STEP]).min()), int(waiting[:, _END].max())
    away: dict[str, float] = {}
    for role, of_role in ends.items():
        meanwhile = of_role[(of_role >= first) & (of_role <= last)]
        if not len(meanwhile):
            continue
        distances = _since_last(released, meanwhile)
        share, chance = (
            float((distances <= near).mean()),
            min(_covered(meanwhile, near) / (last - first), 1.0),
        )
        # The standard error of the share, if only chance were at work; ranks of a role step together.
        error = float(np.sqrt(chance * (1 - chance) * ranks / len(waiting)))
        if share >= _LEAST_SHARE and share - chance > _ERRORS * error:
            away[role] = float(np.median(distances))
    return min(away, key=lambda role: away[role], default=None)


def _since_last(moments: Times, ends: Times) -> Times:
    """How long ago the last end was: what comes later releases nobody."""
    at = np.searchsorted(ends, moments, side="right") - 1
    return np.where(at >= 0, moments - ends[at], np.iinfo(np.int64).max)


def _covered(ends: Times, near: int) -> int:
    """How much time follows one of the ends so closely: what moments would meet by chance."""
    return int(np.minimum(np.diff(ends), near).sum()) + near


def bottleneck(roles: Sequence[dict[str, Any]]) -> str:
    """The role that holds up the others, as a sentence; '' where that is not evident.

    One that is waited for and waits for none; of roles that wait for each other in a circle, the one that waits least.
    """
    waited_for = {role["waits_for"] for role in roles}
    candidates = sorted(
        (role["wait_pct"] or 0.0, role["role"]) for role in roles if role["role"] in waited_for
    )
    if not candidates or (
        len(candidates) > 1 and candidates[1][0] - candidates[0][0] < _LEAST_DIFFERENCE_PCT
    ):
        return ""
    name = candidates[0][1]
    waiting = [role for role in roles if role["waits_for"] and role["role"] != name]
    shares = ", ".join(f"{role['role']} waits {role['wait_pct']:.0f} % of its time" for role in waiting)
    return f"{name} is the bottleneck: {shares}"


def role_lines(roles: Sequence[dict[str, Any]]) -> list[str]:
    """For the live view; nothing where a job has one role."""
    if not roles:
        return []
    scale = choose_scale("ns", (role["step_ns"] or 0 for role in roles))
    rows = [
        (
            role["role"],
            as_ranges(role["ranks"]),
            role["waits_for"] or "",
            "" if role["wait_pct"] is None else f"{role['wait_pct']:.0f}",
            "" if role["step_ns"] is None else scale.format(role["step_ns"]),
            str(role["last_step"]),
        )
        for role in roles
    ]
    table = plain_table(
        ("role", "ranks", "waits for", "waits %", f"step time ({scale.label})", "step"), rows, left=3
    )
    return ["", *table.splitlines()]
