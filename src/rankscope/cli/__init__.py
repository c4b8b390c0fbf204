"""The command line: one module a command, imported only when it is used.

A command module has the DESCRIPTION and the EPILOG of its help, ``configure(parser)`` and ``main(args) -> int``. Only
this layer prints and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TextIO, cast

from rankscope.cli.options import takes_the_rest, written_out
from rankscope.cli.settings import Setting, fill, named_in, read_settings
from rankscope.errors import RankscopeError, UsageError, system_error
from rankscope.text.spelling import did_you_mean
from rankscope.text.visible_text import VisibleStream
from rankscope.version import __version__

GROUPS = {
    "look": {
        "stats": "summary and tables: where the time goes, kernels, ops, steps",
        "view": "the timeline of all ranks in a browser",
        "report": "one HTML file to mail: findings, charts, tables, definitions",
        "diff": "compare two runs, with a test against noise; a gate for CI",
        "whatif": "estimate the gain of a change: no straggler, faster kernels, …",
        "doctor": "check whether a trace can be trusted: a grade, and its defects",
    },
    "record": {
        "profile": "capture a training command with no code change",
        "watch": "a running job: step time, the slowest ranks and why, alarms",
        "capture": "record the next steps of a running job, on all its ranks",
    },
    "jobs": {
        "job": "write or submit a batch job: PBS, Slurm, Kubernetes, containers",
        "bench": "a workload to try rankscope on; traces with known answers",
        "probe": "short tests on every GPU: is a device slow, or its work",
    },
    "data": {
        "query": "SQL over the run: slices, steps, links, arguments of events",
        "export": "a Perfetto or Chrome trace, or tables as Parquet or CSV",
        "ingest": "read raw traces into a store (the other commands do it too)",
        "fetch": "copy a run from another machine, without its raw traces",
    },
    "assistants": {"mcp": "the same answers as tools for an assistant"},
    "first steps": {
        "demo": "a recorded run with a slow rank, in the browser: no GPU, no torch",
        "help": "a command, a kind of finding, or a term",
        "completion": "the Tab key completes commands, options, reports and runs",
    },
}
COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}

OLD_NAMES = {
    "import-wrapper": ("profile", "--from-wrapper"),
    "chart": ("report",),
    "skill": ("mcp", "--guide"),
    "scrub": ("export", "--scrub"),
    "ncu": ("profile", "--tool", "ncu"),
}
"""Commands that are an option of another now. They work as before, and no list shows them."""
EPILOG = """\
examples:
  rankscope demo                                           see it work first
  rankscope profile torchrun --nproc-per-node 4 train.py   record your job
  rankscope RUN           its summary, as rankscope stats RUN. RUN is a trace
                          file, or a folder with a trace for each rank
  rankscope stats         the summary of the newest run here
  rankscope help stats    the help of a command, with examples
"""


class Command(Protocol):
    """A module of this package."""

    DESCRIPTION: str
    EPILOG: str

    def configure(self, parser: Parser) -> None: ...

    def main(self, args: argparse.Namespace) -> int: ...


class Subcommand(NamedTuple):
    """With its line in the help of the command."""

    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_USAGE_REASONS = {
    "unrecognized arguments": "It has no such option, and takes no further arguments.",
    "the following arguments are required": "It does not run without them.",
}
"""By what argparse says."""
_USAGE = {"None": "%s", "?": "[%s]", "*": "[%s ...]", "+": "%s ..."}
"""Of an argument, by its nargs."""
_PYTHON_OF_JOB = "RANKSCOPE_PYTHONEXECUTABLE"
"""Python looks for our packages beside PYTHONEXECUTABLE: the command (capture/rankscope.sh) puts it aside."""
_SHOW_TRACEBACK = "RANKSCOPE_TRACEBACK"
"""The variable with which a defect of ours is shown with its traceback."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UsageErrors: three parts, exit code 2."""

    subcommands: tuple[argparse.ArgumentParser, ...] = ()
    main_options: frozenset[str] = frozenset()
    """The options that --help shows, by dest, where --help-all shows the others; empty: it shows all."""
    finds_run: bool = False
    """Without RUN it takes the newest run folder."""
    rewritten: Callable[[Sequence[str], argparse.ArgumentParser], list[str]] | None = None
    """What puts options of another program into ours, before the words are parsed."""

    def error(self, message: str) -> None:  # type: ignore[override]
        what, _, _ = message.partition(": ")
        raise UsageError(
            f"{self.prog.removeprefix('rankscope ')}: {message}",
            why=_USAGE_REASONS.get(what, ""),
            hint=f"{self._probably(message)}See: {self.prog} --help",
        )

    def _probably(self, message: str) -> str:
        """The option or value that was probably meant."""
        what, _, words = message.partition(": ")
        if what == "unrecognized arguments":
            options = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
            parsers = (self, *self.subcommands)
            names = (name for parser in parsers for name in parser._option_string_actions)
            return did_you_mean(options[0], names) if options else ""
        if match := re.search(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
            return did_you_mean(match[1], re.findall(r"[\w.-]+", match[2]))
        return ""

    def format_help(self) -> str:
        """Without the options that only --help-all shows."""
        helps = [action.help for action in self._actions]
        for action in self._actions:
            if self.main_options and action.dest not in self.main_options:
                action.help = argparse.SUPPRESS
        text = super().format_help()
        for action, help_text in zip(self._actions, helps, strict=True):
            action.help = help_text
        return text

    def format_full_help(self) -> str:
        """With every option."""
        return super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = sys.argv[1:] if args is None else args
        if self.rewritten is not None:
            words = self.rewritten(words, self)
        return super().parse_known_args(written_out(words, self), namespace)

    def add_subcommands(self, dest: str, commands: Mapping[str, Subcommand]) -> None:
        """A parser for each name; the chosen name is ``dest`` of the parsed arguments."""
        parsers = self.add_subparsers(dest=dest, metavar=dest.upper(), required=True)
        for name, (summary, configure, _) in commands.items():
            added = parsers.add_parser(name, help=summary, formatter_class=HelpFormatter, allow_abbrev=False)
            configure(added)
            self.subcommands += (added,)


class _HelpAll(argparse.Action):
    """Print the help with every option, and exit."""

    def __call__(self, parser: Any, *_: object) -> None:
        parser._print_message(parser.format_full_help(), sys.stdout)
        parser.exit()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of examples that fit, and has a wider column for option names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=terminal_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from rankscope.cli.help_text import fitted

        return fitted(text, width)


def terminal_width() -> int:
    """As in argparse, but without importing shutil: a formatter is made even when no help is shown."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size().columns) - 2
    except (ValueError, OSError):
        return 78


def command_parser(name: str) -> tuple[Parser, Command]:
    """The parser of one command, with its module."""
    module: Command = importlib.import_module(f"rankscope.cli.{name.replace('-', '_')}")
    parser = Parser(
        f"rankscope {name}",
        description=module.DESCRIPTION,
        epilog=module.EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    if main_options := getattr(module, "MAIN_OPTIONS", ""):
        parser.main_options = frozenset({*main_options.split(), "help", argparse.SUPPRESS})
        # In a group: argparse makes a help formatter for each option outside one, which takes time.
        parser._optionals.add_argument(
            "--help-all", action=_HelpAll, nargs=0, dest=argparse.SUPPRESS, help="every option"
        )
        arguments = [_USAGE[str(each.nargs)] % each.metavar for each in parser._positionals._group_actions]
        parser.usage = parser.usage or " ".join([parser.prog, *arguments, "[options]"])
    return parser, module


def _parsed(parser: Parser, command: Command, words: list[str]) -> argparse.Namespace:
    """A command's arguments, options among them in any order; for a command that runs another, that one follows the
    first ``--``."""
    if not getattr(command, "TAKES_COMMAND", False):
        in_order = parser.subcommands or takes_the_rest(parser)
        return parser.parse_args(words) if in_order else parser.parse_intermixed_args(words)
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    args.command = words[end + 1 :]
    return args


def help_texts(name: str) -> list[tuple[str, str]]:
    """The help of a command and of its subcommands, each with its title; docs/commands.md is made from it."""
    parser, _ = command_parser(name)
    texts = [(parser.prog, parser.format_full_help())]
    texts += [(sub.prog, sub.format_help()) for sub in parser.subcommands]
    return texts


def top_level_help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = ["usage: rankscope COMMAND [options]", "       rankscope RUN", ""]
    lines += ["See where every rank's time goes: profiles of distributed training.", ""]
    for title, commands in GROUPS.items():
        lines += [title, *(f"  {name:<{width}}{text}" for name, text in commands.items()), ""]
    lines += ["options", f"  {'-h, --help':<{width}}this text", f"  {'--version':<{width}}the version", ""]
    return "\n".join([*lines, EPILOG])


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 ok, 1 error, 2 usage, 3 threshold crossed."""
    with _visible_output():
        return _main(argv)


@contextlib.contextmanager
def _visible_output() -> Iterator[None]:
    """Untrusted text never controls a terminal, whoever prints it, also behind a pipe: what is data goes through
    `show`. What an encoding does not have, such as → in Latin-1, is written as an escape."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if sys.stdout is not None:
            sys.stdout = cast(TextIO, VisibleStream(sys.stdout))
        if sys.stderr is not None:
            sys.stderr = cast(TextIO, VisibleStream(sys.stderr))
        yield
    finally:
        sys.stdout, sys.stderr = before


def _main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(top_level_help(), end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"rankscope {__version__}")
        return 0
    args, settings = argparse.Namespace(), dict[str, Setting]()
    try:
        argv = _by_todays_name(argv)
        if argv[0] not in COMMANDS:
            raise UsageError(
                f"'{argv[0]}' is not a rankscope command",
                why="There is no file or folder of this name either.",
                hint=f"{did_you_mean(argv[0], (*COMMANDS, *os.listdir()))}See: rankscope --help",  # noqa: PTH208
            )
        parser, command = command_parser(argv[0])
        args = _parsed_with_settings(parser, command, argv, settings)
        if (
            parser.finds_run
            and not args.run
            and not vars(args).get("drop")
            and "list" not in (vars(args).get("report"), vars(args).get("chart"))
        ):
            from rankscope.cli.common import newest_run

            args.run = [newest_run()] if args.run == [] else newest_run()
        if argv[0] == "profile" and args.tool == "ncu" and (args.from_run or args.kernels):
            # Not from profile: it reads runs, and a captured job must need none of what that takes.
            command = importlib.import_module("rankscope.cli.ncu")
        return command.main(args)
    except RankscopeError as error:
        print(f"rankscope: {_with_path(str(error), args)}", file=sys.stderr)
        if error.exit_code == UsageError.exit_code and (settings_named := named_in(error, settings)):
            print(f"  {settings_named}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # `rankscope stats | head`: the reader has ended. Avoid the interpreter's message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return _interrupted()
    except OSError as error:
        print(f"rankscope: {system_error(error)}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - a user gets three lines, whatever it is
        # Within an import: a module in C that cannot be loaded. Within a statement: DuckDB's own error.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt) or (
            isinstance(error, RuntimeError) and str(error) == "Query interrupted"
        ):
            return _interrupted()
        print(f"rankscope: {_defect(error)}", file=sys.stderr)
        return 1


def _parsed_with_settings(
    parser: Parser, command: Command, argv: Sequence[str], settings: dict[str, Setting]
) -> argparse.Namespace:
    """The arguments, with what files set. What is wrong there stops no training job, and rank 0 says it."""
    name, *words = argv
    wrong, is_job = "", name == "profile"
    if is_job and ("--inner", "--") in pairwise(words):  # the process in front has read them
        return _parsed(parser, command, words)
    try:
        settings |= read_settings(parser, name, COMMANDS)
    except UsageError as error:
        if not is_job:
            raise
        wrong = str(error)
    parser.main_options |= settings.keys() if parser.main_options else set()
    args = _parsed(parser, command, words)
    without = fill(args, parser, settings)
    if is_job and settings:
        plan_of = cast(Any, command).plan_of
        try:
            plan_of(args, ())
        except UsageError as error:
            vars(args).update(without)
            plan_of(args, ())  # fails where the command itself is wrong
            wrong = f"{error}\n  {named_in(error, settings)}"
    if wrong:
        from rankscope.capture.rank import detect

        if detect(os.environ).rank == 0:
            print(f"rankscope: {wrong}\n  The job runs without these settings.", file=sys.stderr)
    return args


def _by_todays_name(argv: Sequence[str]) -> list[str]:
    """The words of a command line, by the names that commands have today."""
    name, *words = argv
    if name == "chart":
        options = {"-r": "--chart", "--report": "--chart"}
        words = [options.get(head := word.partition("=")[0], head) + word[len(head) :] for word in words]
    if name == "ncu" and words and not words[0].startswith("-"):
        words = ["--from", *words]
    if name not in (*COMMANDS, *OLD_NAMES) and os.path.exists(name):  # noqa: PTH110  (pathlib takes long to import)
        return ["stats", *argv]
    today = OLD_NAMES.get(name, (name,))
    return [*(today[:1] if words[:1] in (["-h"], ["--help"]) else today), *words]


def _interrupted() -> int:
    print("rankscope: interrupted; what was read is kept, unfinished files are removed", file=sys.stderr)
    return 128 + signal.SIGINT


def _defect(error: Exception) -> RankscopeError:
    """The message for an error that was not foreseen."""
    if isinstance(error, MemoryError):
        return RankscopeError(
            "there is not enough memory",
            why="It takes more than this process may use.",
            hint="Take a part of the run (--ranks, --steps), or allow more: ulimit -v",
        )
    import traceback

    if os.environ.get(_SHOW_TRACEBACK):
        traceback.print_exception(error)
    line = "an unknown place"
    for frame in traceback.extract_tb(error.__traceback__):
        if "rankscope" in frame.filename:
            line = f"{frame.filename.rpartition('rankscope/')[2]}, line {frame.lineno}"
    return RankscopeError(
        f"a defect of rankscope: {type(error).__name__}: {str(error)[:500]}",
        why=f"It is in {line} (rankscope {__version__}, Python {sys.version.split()[0]}).",
        hint=f"Please report it with the command. {_SHOW_TRACEBACK}=1 shows where it comes from.",
    )


def _with_path(message: str, args: argparse.Namespace) -> str:
    """The path of the run in the commands of an error."""
    if not hasattr(args, "run") or " RUN" not in message:
        return message
    from rankscope.text.run_words import RunWords, with_paths

    runs = args.run if isinstance(args.run, list) else [args.run]
    return with_paths(message, {"RUN": RunWords(tuple(map(str, runs)))})


def run() -> None:
    """The console script."""
    _hold_closed_streams()
    if executable := os.environ.pop(_PYTHON_OF_JOB, None):
        os.environ["PYTHONEXECUTABLE"] = executable
    sys.exit(main(sys.argv[1:]))


def _hold_closed_streams() -> None:
    """After `2>&-` our own files must not get the number 2, nor our lines go to stdout. A command that is started finds
    the stream closed, as the descriptor is not inherited."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  (pathlib takes long to import)
