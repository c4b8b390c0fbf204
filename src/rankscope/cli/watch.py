"""rankscope watch: a running job as its telemetry shows it, and alarms."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rankscope import units
from rankscope.cli.common import add_remote_options, positive
from rankscope.cli.remote import path_or_remote, run_there, stopped_by_signals
from rankscope.errors import RankscopeError, StoreError, UsageError
from rankscope.text.visible_text import unchecked, visible

if TYPE_CHECKING:
    from rankscope.watch.alarms import Alarm
    from rankscope.watch.state import State

EXAMPLES = """\
examples:
  rankscope watch RUN                              a live view in the terminal; Ctrl-C ends it, not the job
  rankscope watch RUN --once --format json         the present state, and the end
  rankscope watch RUN --fail-on hang,slow-rank     ends with exit code 3 at the first of these alarms
  rankscope watch RUN --on-alarm 'mail -s alarm me@lab'    the alarm is JSON on its stdin; or https://… to POST it to
  rankscope watch RUN --auto-capture 3             alarms make the job record its next steps, at most 3 times
  rankscope watch RUN --prometheus /var/lib/node_exporter/rankscope.prom
  rankscope watch ssh://login/~/runs/a             rankscope runs there; its view is shown here

Alarms: slow-rank, slow-node, slowdown, spike, memory, data, hang. The job must have been started with --watch.
"""
_STATUS_SECONDS = 10.0
"""Between two lines about the state, where the output is not a terminal."""
_HOOK_SECONDS = 10.0
_FALLBACK_SIZE = os.terminal_size((80, 24))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What a running job does: step time, the slowest ranks and why, memory, alarms. Only its files are read,\n"
        "on any machine that sees the run folder; the job notices nothing."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        type=path_or_remote,
        metavar="RUN",
        help="the run folder of a job that was started with --watch; or ssh://host/path",
    )
    parser.add_argument("--once", action="store_true", help="show the present state and end")
    parser.add_argument("--every", default="1s", metavar="TIME", help="how often (default: 1s)")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one line each time (default: text)"
    )
    parser.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="also write metrics to FILE each time, for node_exporter's textfile collector",
    )
    parser.add_argument(
        "--fail-on",
        metavar="LIST",
        help="end with 3 at the first alarm of these kinds: hang,slow-rank or any",
    )
    parser.add_argument(
        "--on-alarm",
        metavar="CMD",
        help="run this shell command for each new alarm, JSON on its stdin; a URL (http, https) is POSTed to",
    )
    parser.add_argument(
        "--auto-capture",
        type=positive,
        metavar="N",
        help="let alarms record the next steps of all ranks, at most N times in this run",
    )
    parser.add_argument(
        "--auto-capture-every",
        default="1h",
        metavar="TIME",
        help="the least time between two such captures (default: 1h)",
    )
    parser.add_argument(
        "--hang-after",
        metavar="TIME",
        help="no step for so long is a hang (default: as the job was started, 10min)",
    )
    add_remote_options(parser, "ssh://host/path")


def main(args: argparse.Namespace) -> int:
    every = _least(units.parse_seconds(args.every), 0.1)
    hang_after = units.parse_seconds(args.hang_after) if args.hang_after else None
    between_captures = units.parse_seconds(args.auto_capture_every)
    if isinstance(args.run, str):
        return run_there(args, "watch", _options(args))
    from rankscope.watch.alarms import AlarmBook
    from rankscope.watch.prometheus import metrics
    from rankscope.watch.state import read_state

    fail_on = _kinds(args.fail_on)
    show = _shown(args)
    book = AlarmBook()
    judged = 0
    try:
        with stopped_by_signals():
            while True:
                started = time.monotonic()
                state, alarms = read_state(args.run, hang_after, judged)
                judged = state["last_step"]
                new = book.new(alarms)
                show.update(state, new)
                if args.prometheus:
                    _write(args.prometheus, metrics(state))
                for alarm in new:
                    if args.on_alarm:
                        _tell(args.on_alarm, alarm, args.run)
                if args.auto_capture and new:
                    _record(args.run, new, args.auto_capture, between_captures)
                if any(alarm.kind in fail_on for alarm in new):
                    return 3
                if args.once or state["state"] in ("ended", "silent"):
                    return 0
                time.sleep(max(every - (time.monotonic() - started), 0.05))
    except KeyboardInterrupt:
        return 0


def _least(seconds: float, least: float) -> float:
    if seconds < least:
        raise UsageError(f"--every must be at least {least} s", hint="Ranks write once a second.")
    return seconds


def _kinds(text: str | None) -> set[str]:
    from rankscope.watch.alarms import KINDS

    wanted = {word.strip() for word in (text or "").split(",")} - {""}
    if "any" in wanted:
        return set(KINDS)
    for word in sorted(wanted - set(KINDS)):
        raise UsageError(
            f"--fail-on {word}: there is no such alarm",
            why=f"There are: {', '.join(KINDS)}, any.",
            hint="See: --help",
        )
    return wanted


def _options(args: argparse.Namespace) -> dict[str, object]:
    return {
        "--once": args.once or None,
        "--every": args.every,
        "--format": args.format,
        "--prometheus": args.prometheus,
        "--fail-on": args.fail_on,
        "--on-alarm": args.on_alarm,
        "--auto-capture": args.auto_capture,
        "--auto-capture-every": args.auto_capture_every,
        "--hang-after": args.hang_after,
    }


def _shown(args: argparse.Namespace) -> JsonLines | LiveScreen | PlainLines:
    if args.format == "json":
        return JsonLines()
    if args.once:
        return PlainLines(whole=True)
    return LiveScreen(sys.stdout) if sys.stdout.isatty() else PlainLines(whole=False)


class JsonLines:
    """The whole state as one line each time."""

    def update(self, state: State, new: Sequence[Alarm]) -> None:
        from rankscope.text.json_values import plain

        content = plain({**state, "new_alarms": [alarm.to_dict() for alarm in new]})
        print(json.dumps(content, allow_nan=False), flush=True)


class PlainLines:
    """For a file or a pipe: a line about the state now and then, and a line for each alarm at once. Or, once, all."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._said = -_STATUS_SECONDS

    def update(self, state: State, new: Sequence[Alarm]) -> None:
        from rankscope.watch.screen import lines

        text = lines(state)
        if self._whole:
            print("\n".join(text))
            return
        if state["state"] != "running" or time.monotonic() - self._said >= _STATUS_SECONDS:
            self._said = time.monotonic()
            print(f"{text[0]} · {text[1]}", flush=True)
        for alarm in new:
            print(alarm.line(), flush=True)


class LiveScreen:
    """A view that is drawn over itself; only lines that have changed are written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = unchecked(stream)
        self._drawn: list[str] = []

    def update(self, state: State, new: Sequence[Alarm]) -> None:
        from rankscope.watch.screen import lines

        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            size = _FALLBACK_SIZE
        width = size.columns or _FALLBACK_SIZE.columns
        found = [visible(line)[:width] for line in lines(state, width)][: max(size.lines - 1, 1)]
        text = f"\033[{len(self._drawn)}A" if self._drawn else ""
        for index, line in enumerate(found):
            same = index < len(self._drawn) and self._drawn[index] == line
            text += "\n" if same else f"\r\033[K{line}\n"
        self._stream.write(text + "\033[J")
        self._stream.flush()
        self._drawn = found


def _write(path: Path, text: str) -> None:
    from rankscope.files import write_text

    try:
        write_text(path, text)
        path.chmod(0o644)  # node_exporter is another user
    except OSError as error:
        raise StoreError(
            f"cannot write {path}", why=f"{error.strerror or error}.", hint="Name another: --prometheus FILE"
        ) from error


def _tell(command: str, alarm: Alarm, run: Path) -> None:
    """A failure is a line on stderr: the watch goes on."""
    content = json.dumps({**alarm.to_dict(), "run": str(run)}).encode()
    try:
        if command.startswith(("http://", "https://")):
            import urllib.request

            request = urllib.request.Request(command, content, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=_HOOK_SECONDS).close()
        else:
            # stdout is this command's own, and may be JSON
            subprocess.run(
                command,
                shell=True,
                input=content,
                stdout=sys.stderr.fileno(),
                timeout=_HOOK_SECONDS,
                check=True,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"rankscope: --on-alarm failed: {error}", file=sys.stderr)


def _record(run: Path, alarms: Sequence[Alarm], most: int, between_s: float) -> None:
    """Let the job record its next steps, unless that has been done often or lately. A job that hangs makes no step."""
    from rankscope.watch.alarms import HANG
    from rankscope.watch.ask_capture import AUTOMATIC, ask_capture, automatic_requests

    causes = [alarm for alarm in alarms if alarm.kind != HANG]
    made = list(automatic_requests(run))
    lately = bool(made) and time.time_ns() - max(made) < between_s * 1e9
    if not causes or len(made) >= most or lately:
        return
    try:
        asked = ask_capture(run, reason=AUTOMATIC + causes[0].text)
        print(f"rankscope: {causes[0].kind}: {asked}", file=sys.stderr)
    except RankscopeError as error:
        print(f"rankscope: {error}", file=sys.stderr)
