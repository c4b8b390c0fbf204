"""Notes that code decides by: their kind survives what happens to a text."""

from __future__ import annotations

import pickle

from rankscope.analysis.core.result import (
    Finding,
    Note,
    NoteKind,
    Result,
    left_out_note,
    note_kind,
    reworded,
)


def test_a_note_is_its_text_and_keeps_its_kind() -> None:
    note = left_out_note("3 events of RUN")
    assert note == "left out: 3 events of RUN" and note_kind(note) is NoteKind.LEFT_OUT
    moved = reworded(note, note.replace("RUN", "runs/a"))
    assert moved == "left out: 3 events of runs/a" and note_kind(moved) is NoteKind.LEFT_OUT
    assert note_kind(pickle.loads(pickle.dumps(note))) is NoteKind.LEFT_OUT
    assert reworded("plain", "other") == "other" and note_kind("left out: not typed") is None


def test_only_the_kind_decides_whether_a_report_is_answered() -> None:
    def empty(*notes: str) -> Result:
        return Result("x", "X", "whole file", (), [], notes=notes)

    reason = "left out of the recording by the profiler"
    assert empty(left_out_note("3 events"), reason).unanswered == reason
    assert "nothing was recorded" in empty(Note.of(NoteKind.LEFT_OUT, "three events")).unanswered


def test_the_headline_of_a_finding_ends_where_its_cause_begins() -> None:
    late = Finding("info", "Rank 2; the last: it waits; for data", why="it waits; for data")
    assert late.headline == "Rank 2; the last"
    assert Finding("info", "a; b").headline == "a; b"
    assert "why" not in late.to_dict()
