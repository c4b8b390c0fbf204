"""Notes below a table: what it leaves out, and why."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.analysis.core.advice import framework, how_to_record
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import gpu_counts, has_gpu, slice_counts
from rankscope.analysis.core.result import Note, NoteKind, left_out_note
from rankscope.analysis.core.scope import Scope, has_iterations, rank_steps
from rankscope.model import ITERATIONS
from rankscope.timeline.collectives.loading import recording_sessions
from rankscope.timeline.run import Run
from rankscope.units import format_rounded


def no_gpu(run: Run, what: str = "GPU events") -> str:
    """There are none in the window; in a run that has no GPU events at all, also how to record them."""
    return f"no {what} in the window" + (
        "" if has_gpu(run, Scope()) else f"; on a GPU, {how_to_record(run, 'gpu')}"
    )


def no_steps(run: Run) -> str:
    return f"no steps in the trace: {how_to_record(run, 'steps')}"


def left_out(run: Run, scope: Scope) -> list[str]:
    """Notes on events that are in no table, over the ranks in scope."""
    notes = list(_left_out(run, scope.only_ranks()))
    if has_iterations(run) and not scope.whole_file:
        how = "no steps in the file: inferred iterations, the kernels that the busiest stream repeats"
        notes.append(Note.of(NoteKind.LEFT_OUT, f"{how} (--window file does without)"))
    return notes


@once_per_run
def _left_out(run: Run, scope: Scope) -> list[str]:
    entries = [entry for entry in run.used if scope.has_rank(entry.rank)]
    lost = sum(entry.manifest["reading"]["events_lost"] for entry in entries)
    misplaced = sum(entry.manifest["misplaced"] for entry in entries)
    notes: list[str] = []
    if lost:
        notes.append(left_out_note(f"{lost:,} events that could not be read (rankscope doctor says which)"))
    if misplaced:
        notes.append(left_out_note(f"{misplaced:,} events without a usable time (ts = 0, or years away)"))
    aside = [e for e in run.unused_segments if scope.has_rank(e.rank)]
    if aside:
        files = ", ".join(entry.source.name for entry in aside[:3]) + ("" if len(aside) <= 3 else ", …")
        notes.append(
            left_out_note(f"{files}: another tool's file of the same rank is used (--prefer changes that)")
        )
    told = {source for steps in rank_steps(run, scope).values() for source in steps.sources}
    if inferred := sorted(told - {"profiler", ITERATIONS}):
        ways = {"optimizer": "optimizer steps", "annotation": "numbered annotations"}
        missing = "no ProfilerStep in the file: " if framework(run) == "torch" else ""
        how = f"{missing}steps are inferred from {ways.get(inferred[0], inferred[0])}"
        notes.append(Note.of(NoteKind.LEFT_OUT, how))  # no reason why a table is empty
    return notes


def unrecorded_note(time_ns: float) -> Note:
    return left_out_note(
        f"{format_rounded('ns', time_ns)} between the recordings of a rank, which is in no class"
    )


def no_lines(run: Run) -> str:
    """Why a table has no lines of Python."""
    if "python_function" in slice_counts(run, Scope()):
        return "no line of Python is known for these, although stacks were recorded"
    return f"the trace has no lines of Python: {how_to_record(run, 'stacks')}"


def gpu_notes(
    run: Run, scope: Scope, what: str = "GPU events", *, category: str = "", kind: str = ""
) -> tuple[int, list[str]]:
    """How many GPU events (of a category or a class) are in the window. Notes: how many it leaves out, or that there
    are none."""
    inside, total = (
        sum(c.events for c in gpu_counts(run, each) if category in ("", c.category) and kind in ("", c.kind))
        for each in (scope, scope.only_ranks())
    )
    return inside, _outside_steps(scope, inside, total, what) + ([] if inside else [no_gpu(run, what)])


def slices_outside_steps(
    run: Run, scope: Scope, inside: int, categories: Sequence[str], what: str
) -> list[str]:
    """How many slices of some categories a window of steps leaves out."""
    counts = slice_counts(run, scope.only_ranks())
    return _outside_steps(scope, inside, sum(counts.get(category, 0) for category in categories), what)


def _outside_steps(scope: Scope, inside: int, total: int, what: str) -> list[str]:
    """How many of all events a window of steps leaves out; nothing for the whole file."""
    if scope.steps is None or total <= inside:
        return []
    return [left_out_note(f"{total - inside:,} of {total:,} {what}, outside {scope.window}")]


@once_per_run
def sessions(run: Run) -> dict[tuple[int, int], int]:
    """By rank and segment: files with the same number were recorded by the same job at the same time."""
    return recording_sessions(run.compared)


def ranks_by_session(run: Run) -> list[set[int]]:
    """The ranks that were recorded together; those of a session that are part of another one are left out."""
    together: dict[int, set[int]] = {}
    for (rank, _), session in sessions(run).items():
        together.setdefault(session, set()).add(rank)
    return [ranks for ranks in together.values() if not any(ranks < other for other in together.values())]
