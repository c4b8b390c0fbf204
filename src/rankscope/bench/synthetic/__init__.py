"""Synthetic multi-rank traces in Kineto's exact text, whose every answer is known beforehand.

    plan = Plan(ranks=8, events_per_rank=50_000, steps=6, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, Path("run"))

plan.py says what to make; workload.py, layer_work.py and step_work.py what a step does; timeline.py when, on
every rank; tree_compiler.py and rank_file.py write it down fast; bookkeeping.py and truth.py keep the answers;
defects.py and the *_damage.py spoil it on request.
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
