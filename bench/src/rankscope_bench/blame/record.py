"""Records real cases for the benchmark of blame: four processes over gloo, ten faults and two healthy twins of each.

    python -m rankscope_bench.blame.record DIR                  # on CPUs
    python -m rankscope_bench.blame.record DIR --device cuda    # four processes that share a GPU

DIR has the same form as that of `rankscope bench blame make`, DIR-truth has the truth: the culprit, and how long the
planted work took, measured where it ran. One after the other in the same processes, some two minutes in all on a calm
machine with a core for each process.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rankscope_bench.arguments import parsed
from rankscope_bench.blame.case_set import CAUSE_OF, CAUSES, LEAST_PCT, prepare, write_lists
from rankscope_bench.exam.gloo_jobs import STEPS, RealCase, record

RANKS = 4
TWINS = 2
PLANTED = (
    ("compute", "matmul", 6.0),
    ("compute", "singular values", 12.0),
    ("host", "sleep", 3.0),
    ("host", "tokenise", 8.0),
    ("gc", "many objects", 8.0),
    ("checkpoint", "save", 10.0),
    ("dataloader", "slow data", 6.0),
    ("copy", "large copy", 8.0),
    ("moving", "moving matmul", 12.0),
    ("leak", "leak", 16.0),
)
"""Kind, what runs, and ms in a step on average; of the leak, MB."""


def real_cases(device: str, seed: int) -> list[RealCase]:
    """In an order that does not tell the fault."""
    chance = random.Random(seed)
    cases = []
    for kind, plant, ms in PLANTED:
        culprit = chance.randrange(RANKS)
        cases.append(RealCase("", kind, plant, RANKS, culprit, ms, device, True))
        cases += [RealCase("", "healthy", "nothing", RANKS, 0, 0.0, device, True)] * TWINS
    chance.shuffle(cases)
    return [replace(case, name=f"case-{number:03d}") for number, case in enumerate(cases, 1)]


def step_times_ms(events: list[dict[str, Any]]) -> list[float]:
    """Of the host: on a GPU, an annotation of the same name covers only what it computes."""
    return [
        event["dur"] / 1000
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]


def truth_of(case: RealCase, recorded: dict[str, Any], step_ms: float) -> dict[str, Any]:
    """In the form of the simulated cases."""
    sized = case.kind in CAUSES or case.kind == "moving"
    cost_ms = recorded["cost_ns"] / 1e6
    # On a CPU, a copy is an op as any other.
    cause = "compute" if case.kind == "copy" and case.device == "cpu" else CAUSE_OF[case.kind]
    return {
        "case": case.name,
        "fault": case.kind,
        "layout": f"gloo-{case.device}",
        "ranks_of_job": case.ranks,
        "who": "rank" if recorded["culprits"] else "nobody",
        "ranks": recorded["culprits"],
        "cause": cause,
        "ms_per_step": round(cost_ms, 6) if sized else None,
        "step_ms": round(step_ms, 6),
        "effect_pct": round(100 * cost_ms / max(step_ms - cost_ms, 1e-3), 3) if sized else None,
        "hidden": sized and 100 * cost_ms < LEAST_PCT * step_ms,
        "real": True,
    }


_OPTIONS = """\
FOLDER  of the cases
--device {cpu,cuda}  where they run (default cpu)
--seed N  selects the culprits and the order (default 0)
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, folder=Path, device="cpu", seed=0)
    prepare(args.folder)
    cases = {case.name: case for case in real_cases(args.device, args.seed)}
    entries, truths = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folders = record(Path(scratch), print, listed=list(cases.values()))
        if len(folders) < len(cases):
            print(f"{len(cases) - len(folders)} cases were not recorded:")
            print("".join(path.read_text()[-2000:] for path in Path(scratch).glob("messages-*.txt")))
        for source in folders:
            truth = json.loads((source / "truth.json").read_text())
            digest, steps = hashlib.sha256(), []
            target = args.folder / source.name
            target.mkdir()
            for path in sorted(source.glob("rank-*.json.gz")):
                text = gzip.decompress(path.read_bytes())
                digest.update(path.name.encode() + text)
                steps += step_times_ms(json.loads(text)["traceEvents"])
                shutil.copyfile(path, target / path.name)
            entries.append(
                {"case": source.name, "ranks": RANKS, "steps": STEPS, "sha256": digest.hexdigest()}
            )
            truths.append(truth_of(cases[source.name], truth, fmean(steps) if steps else 0.0))
    truth_file = args.folder.with_name(f"{args.folder.name}-truth") / "truth.json"
    about = {"size": f"real {args.device}"}
    listed = write_lists(args.folder, truth_file, about, {"seed": args.seed}, entries, truths)
    print(f"Wrote {len(entries)} cases to {args.folder} and {truth_file}; sha256 {listed['sha256']}")
    return 0 if len(entries) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
