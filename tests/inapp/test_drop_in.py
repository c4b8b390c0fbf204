"""`from rankscope import profile` in place of torch's: the same program sees the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.errors import UsageError

torch: Any = pytest.importorskip("torch")

Profile = Callable[..., Any]


def work() -> None:
    with torch.profiler.record_function("mine"):
        torch.randn(64, 64) @ torch.randn(64, 64)


def whole_block(profile: Profile, folder: Path) -> list[object]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True, with_stack=True, acc_events=True) as prof:
        work()
    prof.export_chrome_trace(str(folder / "trace.json"))
    prof.export_stacks(str(folder / "stacks.txt"))
    names = {event.key for event in prof.key_averages()} & {"mine", "aten::mm", "aten::matmul"}
    written = sorted(path.name for path in folder.iterdir() if path.is_file())
    return [names, len([event for event in prof.events() if event.name == "mine"]), prof.step_num, prof.record_shapes,
            prof.activities, type(prof.profiler), written]  # fmt: skip


def by_hand_and_tensorboard(profile: Profile, folder: Path) -> list[object]:
    prof = profile(on_trace_ready=torch.profiler.tensorboard_trace_handler(str(folder / "tb")))
    prof.start()
    work()
    prof.stop()
    return [len([*(folder / "tb").iterdir()]), "mine" in prof.key_averages().table()]


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("program", [whole_block, by_hand_and_tensorboard])
def test_a_program_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[Profile, Path], list[object]]
) -> None:
    with torch.profiler.profile():
        work()  # imports what torch imports late: torch 2.13 may not read the name of a module's code that it recorded
    answers = []
    for name, profile in (("torch", torch.profiler.profile), ("ours", rankscope.profile)):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        answers.append(program(profile, folder))
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_a_name_of_freed_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.13 gives one, now and then, to a function that was freed while stacks were recorded."""
    event = torch._C._autograd._KinetoEvent
    read = event.name

    def name(self: Any) -> str:
        text: str = read(self)
        return (b"\xa0\x49" + text.encode()).decode() if "short_lived" in text else text

    monkeypatch.setattr(event, "name", name)
    with rankscope.profile(tmp_path, name="mine", with_stack=True, acc_events=True) as prof:
        exec("def short_lived(): pass\nshort_lived()", {})
        work()
    assert any("short_lived" in average.key for average in prof.key_averages())
    assert "mine" in (tmp_path / "profiler_list.dat").read_text()
    trace = tmp_path / "mine-0-of-1.json"
    data = trace.read_bytes()
    assert b"short_lived" in data
    (tmp_path / "damaged.json").write_bytes(data.replace(b"short_lived", b"\xa0\x49\xba\x0b"))
    answers = [repr(rankscope.open(path).ops()) for path in (trace, tmp_path / "damaged.json")]
    assert answers[0] == answers[1]


def test_cycles_of_a_schedule(tmp_path: Path) -> None:
    seen: list[object] = []

    def ready(prof: Any) -> None:
        seen.append((prof.step_num, {event.key: event.count for event in prof.key_averages()}["mine"]))

    cycle = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with rankscope.profile(tmp_path, schedule=cycle, on_trace_ready=ready) as prof:
        for _ in range(9):
            work()
            prof.step()
    assert seen == [(4, 2), (8, 2)] and prof.step_num == 9


def test_questions_before_anything_is_recorded(tmp_path: Path) -> None:
    prof = rankscope.profile(tmp_path)
    with pytest.raises(UsageError, match="nothing has been recorded yet"):
        prof.key_averages()
    assert not hasattr(prof, "no_such_thing")
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_thing'"):
        rankscope.profile(tmp_path, no_such_thing=1)
