"""rankscope watch: a running job as its telemetry shows it, and alarms."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope import units
from rankscope.cli.common import add_remote_options, add_run_argument
from rankscope.cli.options import add_options, positive
from rankscope.cli.remote import WATCHED_RUN, path_or_remote, run_there, stopped_by_signals
from rankscope.errors import UsageError
from rankscope.text.visible_text import unchecked

if TYPE_CHECKING:
    from rankscope.watch.alarms import Alarm
    from rankscope.watch.hang import Evidence
    from rankscope.watch.state import State

MAIN_OPTIONS = "run once every format fail_on on_alarm auto_capture hang_after"
DESCRIPTION = (
    "What a running job does: step time, the slowest ranks and why, memory, alarms. Only its files are read,\n"
    "on any machine that sees the run folder; the job notices nothing."
)
EPILOG = """\
examples:
  rankscope watch RUN                              a live view in the terminal; Ctrl-C ends it, not the job
  rankscope watch RUN --once --format json         the present state, and the end
  rankscope watch RUN --fail-on hang,slow-rank     ends with exit code 3 at the first of these alarms
  rankscope watch RUN --on-alarm 'echo "$RANKSCOPE_VIEW" | mail -s "$RANKSCOPE_ALARM" me@lab'    or a URL
  rankscope watch RUN --auto-capture 3             alarms make the job record its next steps, at most 3 times
  rankscope watch RUN --prometheus /var/lib/node_exporter/rankscope.prom
  rankscope watch RUN --kubeflow --total-steps 5000        in a pod of a TrainJob: its status shows progress and alarms
  rankscope watch ssh://login/~/runs/a             rankscope runs there; its view is shown here

Alarms: slow-rank, slow-node, slowdown, spike, memory, data, hang, ended. The job must have been started with --watch.
"""
_OPTIONS = """\
--once  show the present state and end
--every TIME  how often (default: 1s)
--format {text,json}  json: one line each time (default: text)
--prometheus FILE  also write metrics to FILE each time, for node_exporter's textfile collector
--otlp  also send the metrics to an OpenTelemetry collector: OTEL_EXPORTER_OTLP_ENDPOINT (default: localhost)
--kubeflow  also report progress and alarms in the status of the TrainJob in whose pod this runs, every 5 s
--total-steps N  with --kubeflow: the steps of the whole job, for its progress in percent
--fail-on LIST  end with 3 at the first alarm of these kinds: hang,slow-rank or any
--on-alarm CMD  run this for each new alarm, with $RANKSCOPE_ALARM, $RANKSCOPE_VIEW, JSON on stdin; a URL is POSTed to
--auto-capture N  let alarms record the next steps of all ranks, at most N times in this run
--auto-capture-every TIME  the least time between two such captures (default: 1h)
--hang-after TIME  no step for so long is a hang (default: as the job was started, 10min)
"""
_FALLBACK_SIZE = os.terminal_size((80, 24))


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, WATCHED_RUN, run=path_or_remote)
    defaults = {"every": "1s", "format": "text", "auto_capture_every": "1h"}
    add_options(parser, _OPTIONS, prometheus=Path, auto_capture=positive, total_steps=positive, **defaults)
    # Set where a rank has started this: it ends with the rank, and leaves it the CPU.
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    add_remote_options(parser, "ssh://host/path")


def main(args: argparse.Namespace) -> int:
    every_s = units.parse_seconds(args.every)
    if every_s < 0.1:
        raise UsageError("--every must be at least 0.1 s", hint="Ranks write once a second.")
    hang_after_s = units.parse_seconds(args.hang_after) if args.hang_after else None
    between_captures_s = units.parse_seconds(args.auto_capture_every)
    if isinstance(args.run, str):
        return run_there(args, "watch", configure)
    from rankscope.watch.ask_capture import capture_on_alarm
    from rankscope.watch.live import follow, tell

    fail_on = _kinds(args.fail_on)
    show = _shown(args)
    if args.parent:
        os.nice(10)
    parent_ended = False
    with contextlib.suppress(KeyboardInterrupt), stopped_by_signals(), contextlib.ExitStack() as at_end:
        export = _exports(args, at_end)
        for state, new in follow(args.run, every_s, hang_after_s, once=args.once, explain=_explained):
            show(state, new)
            export(state)
            for alarm in new if args.on_alarm else ():
                if failure := tell(args.on_alarm, alarm, state):
                    print(f"rankscope: --on-alarm failed: {failure}", file=sys.stderr)
            if args.auto_capture and (
                note := capture_on_alarm(args.run, new, args.auto_capture, between_captures_s)
            ):
                print(f"rankscope: {note}", file=sys.stderr)
            if any(alarm.kind in fail_on for alarm in new):
                return 3
            if parent_ended:  # this was its last state
                break
            parent_ended = bool(args.parent) and os.getppid() != args.parent
    return 0


def _explained(run: Path, evidence: Evidence) -> Evidence | None:
    from rankscope.analysis.health.hang import explain_hang  # late: it imports DuckDB

    return explain_hang(run, evidence)


def _exports(args: argparse.Namespace, at_end: contextlib.ExitStack) -> Callable[[State], None]:
    """What sends the state elsewhere, each time. A report that fails is named once."""
    if args.total_steps and not args.kubeflow:
        raise UsageError(
            "--total-steps needs --kubeflow",
            why="The progress in percent goes to the TrainJob.",
            hint="Give --kubeflow too.",
        )
    exports: list[Callable[[State], str | None]] = []
    if args.prometheus:
        from rankscope.watch.metrics import write_metrics

        exports.append(partial(write_metrics, args.prometheus))
    if args.otlp:
        from rankscope.watch.metrics import OtlpExport

        otlp = OtlpExport()
        at_end.callback(otlp.close)
        exports.append(otlp.update)
    if args.kubeflow:
        from rankscope.watch.kubeflow import TrainJobStatus

        exports.append(TrainJobStatus(args.total_steps).report)
    told: set[str] = set()

    def export(state: State) -> None:
        for send in exports:
            if (failure := send(state)) and failure not in told:
                told.add(failure)
                print(f"rankscope: --kubeflow failed: {failure}", file=sys.stderr)

    return export


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


def _shown(args: argparse.Namespace) -> Callable[[State, Sequence[Alarm]], None]:
    """What prints the state and the new alarms, each time."""
    from rankscope.watch.live import LiveView, LogLines, json_line, whole_view

    if args.format == "text" and not args.once and sys.stdout.isatty():
        view, terminal = LiveView(), unchecked(sys.stdout)

        def redraw(state: State, _new: Sequence[Alarm]) -> None:
            try:
                columns, rows = os.get_terminal_size(terminal.fileno())
            except OSError:
                columns, rows = _FALLBACK_SIZE
            terminal.write(view.redraw(state, columns or _FALLBACK_SIZE.columns, rows))
            terminal.flush()

        return redraw
    text = json_line if args.format == "json" else whole_view if args.once else LogLines()
    return lambda state, new: print(text(state, new), end="", flush=True)
