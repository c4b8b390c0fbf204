"""Synthetic multi-rank traces in Kineto's exact text, whose answers are known in advance.

    plan = Plan(ranks=8, events_per_rank=50_000, steps=6, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, Path("run"))

plan.py describes such a run, and the job (job.py) that is simulated for it (cluster.py). cluster_trace.py writes the
text, in the form of a recorded step (recording.py). truth.py collects the answers, defects.py damages files.
"""

from rankscope_bench.synthetic.generator import (
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
