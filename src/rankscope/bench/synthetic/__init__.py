"""Synthetic multi-rank traces in Kineto's exact text, whose answers are known in advance.

    plan = Plan(ranks=8, events_per_rank=50_000, steps=6, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, Path("run"))

plan.py describes the run. workload.py, layer_work.py and step_work.py define the work of a step, timeline.py its
times on every rank. tree_compiler.py and rank_file.py write the text. bookkeeping.py and truth.py collect the
answers. defects.py lists the damage that event_damage.py and file_damage.py can do.
"""

from rankscope.bench.synthetic.generator import (
    TRUTH_FILE,
    Clock,
    Defect,
    Plan,
    Slower,
    Straggler,
    Truth,
    write,
)

__all__ = ["TRUTH_FILE", "Clock", "Defect", "Plan", "Slower", "Straggler", "Truth", "write"]
