"""rankscope.watch: the telemetry of `rankscope profile --watch`, from the training program itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankscope.capture.plan import HANG_AFTER_S, WATCH_BUDGET_PCT, Plan
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import OnRequest
from rankscope.inapp.engine import Engine, current_engine, set_engine
from rankscope.inapp.job_log import JobLog, current_identity
from rankscope.inapp.profiler import DEFAULT_FOLDER


def watch(
    folder: str | Path = DEFAULT_FOLDER,
    *,
    hang_after_s: float = HANG_AFTER_S,
    budget_pct: float = WATCH_BUDGET_PCT,
) -> None:
    """Keep the times of every step, for `rankscope watch FOLDER`, and record what `rankscope capture` requests.

    Call it once on every rank, after init_process_group and before the loop. A step ends when the optimizer has
    stepped, or where the program calls rankscope.mark_step(). Beside rankscope.profile, call it inside its ``with``:
    the telemetry goes to the folder of the profile. A failure ends the telemetry, never the training.

    hang_after_s  a rank that makes no step for this long writes the stacks of its threads
    budget_pct    a rank whose telemetry takes a larger share of the step time switches it off
    """
    engine = current_engine()
    if engine is not None:
        engine.keep_telemetry(hang_after_s, budget_pct)
        return
    plan = Plan(OnRequest(), output=str(folder), command=tuple(sys.orig_argv), force=True, watch=True)
    plan = plan._replace(hang_after_s=hang_after_s, watch_budget_pct=budget_pct)
    identity = current_identity()
    log = JobLog(identity.rank)
    engine = Engine(plan, RankFiles(plan, identity, os.environ), log)
    engine.watch_optimizers()
    engine.joined(identity)
    set_engine(engine)
