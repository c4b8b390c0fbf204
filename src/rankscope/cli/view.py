"""rankscope view: the timeline of all ranks in a browser."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from rankscope import units
from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.cli.remote import path_or_remote, stopped_by_signals, view_remote
from rankscope.errors import MissingPackageError, RankscopeError, StoreError, UsageError
from rankscope.host import user_name

if TYPE_CHECKING:
    from rankscope.store.ingest import Options

DESCRIPTION = (
    "All ranks on one axis in the browser. Raw traces are read first, once; the page shows the progress."
)
EPILOG = """\
examples:
  rankscope view RUN                        prints the address, and opens it where there is a browser
  rankscope view BASE NEW                   two runs on one axis, and what changed between them
  rankscope view ssh://host/~/runs/a        a run on another machine: the viewer there, the browser here
  rankscope view RUN --perfetto --ranks 0-3 --steps 3:5   that part, at ui.perfetto.dev
  rankscope view --drop                     a page to drop a trace onto, or a folder
  rankscope view RUN --no-open --port 8899  on a machine you reach by ssh; prints the ssh command for it

Only this machine can reach it, and only with the token in the address. Ctrl-C ends it.
Keys: W S zoom, A D pan, F fit, / search, ? all of them.
"""
MAIN_OPTIONS = "run other host port no_open perfetto ranks steps"
S = TypeVar("S")
_SERVER_PACKAGES = ("starlette", "uvicorn")
_LAST_PORT = 65535
_LAST_ANSWER_SECONDS = 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_WHERE = """\
[RUN]  a folder with one trace per rank, or a trace file; ssh://host/path for one on another machine (default: the
    newest run folder here)
[OTHER]  a second run, on the same axis, with what changed
--perfetto  serve the run to ui.perfetto.dev instead (on port 9001, the one that page uses)
"""
SERVER = """\
--host ADDRESS  listen here (default: 127.0.0.1)
--port N  default: a free one
--no-open  do not start a browser
"""
_PERFETTO = """\
--no-args  without the events' arguments, which are two thirds of the trace
--trace-processor PATH  let Perfetto's trace_processor hold the trace, at any size (default: the one on PATH, if the
    trace is too large for a browser)
"""
_PAGE = """\
--drop  without a run: take the files that are dropped onto the page, up to 4.3 GB, into a temporary folder
--at LINK  open at this place: the `link` of a finding in a JSON answer, such as '#v=1&finding=2'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser, _WHERE, run=path_or_remote, other=path_or_remote)
    add_options(parser, SERVER, host="127.0.0.1", port={"type": port_of, "default": 0})
    perfetto = parser.add_argument_group("with --perfetto")
    common.add_part_options(perfetto, "the whole file")
    add_options(perfetto, _PERFETTO)
    add_options(parser, _PAGE, at="")
    # Set by `view ssh://` for the viewer over there: it is seen through a tunnel from port N, and ends with stdin.
    parser.add_argument("--tunnel", type=int, metavar="N", help=argparse.SUPPRESS)
    common.add_remote_options(parser, "ssh://host/path")
    common.add_reading_options(parser)


def port_of(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise UsageError(
            f"--port {text} is not a port",
            why=f"Ports are the numbers from 1 to {_LAST_PORT}.",
            hint="Leave it out, or --port 0, for a free one.",
        )
    return int(text)


def main(args: argparse.Namespace) -> int:
    of_perfetto = ("steps", "no_args", "trace_processor", *(["ranks"] if args.ranks != "all" else []))
    given = next((f"--{name.replace('_', '-')}" for name in of_perfetto if getattr(args, name)), "")
    if given and not args.perfetto:
        raise UsageError(
            f"{given} is for --perfetto",
            why="rankscope's own viewer shows the whole run, at any size; ranks and steps are chosen on its page.",
            hint=f"Add --perfetto, or leave {given} out.",
        )
    if args.drop and (args.run or args.perfetto):
        raise UsageError(
            f"--drop is not for {'--perfetto' if args.perfetto else 'a RUN'}",
            why="With it the page shows what is dropped onto it.",
            hint=f"Leave it out: rankscope view {args.run or 'RUN --perfetto'}",
        )
    if isinstance(args.run, str) or isinstance(args.other, str):
        return view_remote(args)
    return _perfetto(args) if args.perfetto else _view(args)


def _view(args: argparse.Namespace) -> int:
    from rankscope.viewer.address import Address, checked_link

    _require_server()
    at = checked_link(args.at) if args.at else ""
    runs = [run for run in (args.run, args.other) if run]
    for path in runs:
        if not path.exists():
            from rankscope.store.discover import no_such_path

            raise no_such_path(path)
    address = _listening(lambda: Address(args.host, args.port), args.host, args.port)
    print(address.url + at, flush=True)
    if args.tunnel is None and args.host in _LOOPBACK:
        user = f"{user_name()}@{socket.gethostname()}"
        port = address.port
        common.say(f"From another machine: ssh -L {port}:127.0.0.1:{port} {user}, then the same address")
    elif args.tunnel is None:
        common.say(
            f"rankscope: {args.host} can be reached by others on the network\n"
            "  Only the token in the address keeps them out, and it is sent unencrypted.\n"
            "  Use the default address and an ssh tunnel instead."
        )
    # The rest takes half a second to import, most of it in the thread that opens the run.
    from rankscope.viewer.server import Server
    from rankscope.viewer.startup import Opening

    dask = common.dask_cluster(args)

    def options() -> Options:
        common.import_numpy_with_one_thread()
        from rankscope.store.ingest import Options

        return Options(cache=args.cache, jobs=args.jobs, dask=dask)

    opening = Opening(runs, options, common.say, mix=args.mix, quiet=args.quiet)
    dropped, ending = None, ExitStack()
    if args.drop:
        from rankscope.viewer.dropped import Dropped

        dropped = ending.enter_context(contextlib.closing(Dropped(opening.show)))
        ending.enter_context(stopped_by_signals())  # its folder is removed then, too
    else:
        opening.start()
    server = Server(address, opening.routes(), args.tunnel, dropped)

    def end_with_stdin() -> None:
        """The process at the other end of ssh holds stdin open; its end is the only sign that it has ended."""
        while os.read(sys.stdin.fileno(), 65536):
            pass
        server.stop()

    def end_without_run() -> None:
        """Where there is nothing to show; a page that is open asks once more, and shows the error."""
        opening.wait()
        if opening.has_failed:
            time.sleep(_LAST_ANSWER_SECONDS)
            server.stop()

    for ends in (end_without_run, *([end_with_stdin] if args.tunnel is not None else [])):
        threading.Thread(target=ends, daemon=True).start()
    with ending:
        _serve(server.serve, address.url + at, args.no_open)
    opening.close()
    if opening.has_failed:
        return 1
    if not opening.wait(0) or server.busy:
        # Threads are in DuckDB, which crashes if the interpreter shuts down meanwhile. The reading processes
        # end when their pipes close; unfinished files are removed by the next ingest.
        os._exit(0)
    return 0


def _require_server() -> None:
    """Found, not imported: the address is printed before."""
    for name in _SERVER_PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(
                f"the viewer needs the package {name}",
                why="It is not installed in this Python.",
                hint=f"pip install {' '.join(_SERVER_PACKAGES)}",
            )


def _perfetto(args: argparse.Namespace) -> int:
    _require_server()
    from rankscope.viewer.perfetto import (
        BROWSER_LIMIT,
        PORT,
        PerfettoServer,
        find_trace_processor,
        trace_processor,
    )
    from rankscope.views.export.perfetto import write_perfetto

    program = find_trace_processor(args.trace_processor)
    run, scope = common.open_part(args)
    port = args.port or PORT
    with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        trace = Path(folder) / "rankscope.perfetto-trace"
        limit = BROWSER_LIMIT if program is None else sys.maxsize
        try:
            with trace.open("wb") as file:
                write_perfetto(run, scope, _Limited(file, limit), with_args=not args.no_args)
        except OSError as error:
            raise StoreError(
                f"cannot write the trace to {folder}",
                why=f"{error.strerror or error}.",
                hint="Set TMPDIR to a folder with more room, or choose a part: --ranks, --steps.",
            ) from error
        size = trace.stat().st_size
        with ExitStack() as running, contextlib.suppress(KeyboardInterrupt):
            if program is not None and (args.trace_processor or size > BROWSER_LIMIT):
                common.say(f"{program} reads the trace ({units.format_bytes(size)})")
                process = trace_processor(program, trace, port)
                served = _listening(lambda: running.enter_context(process), "127.0.0.1", port)
                url, wait = served.url, served.wait
                note = (
                    "Perfetto's page asks whether to use the trace that is loaded here: choose YES. Ctrl-C ends it.\n"
                    "Other users of this machine can read the trace meanwhile: trace_processor has no password."
                )
            else:
                server = _listening(lambda: PerfettoServer(trace, port), "127.0.0.1", port)
                url, wait = server.url, server.serve
                note = (
                    "Perfetto's page reads the trace from this machine; nothing is uploaded. Ctrl-C ends it."
                )
            print(url, flush=True)
            common.say(note)
            _serve(wait, url, args.no_open)
    return 0


class _Limited:
    """Refuses to write more than a browser can open."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = self._limit = limit

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            from rankscope.viewer.perfetto import DOWNLOAD

            raise RankscopeError(
                f"the trace is larger than {units.format_bytes(self._limit)}, and Perfetto's page cannot open it",
                why="A browser holds the whole trace in memory.",
                hint="Choose a part: --ranks 0-3 --steps A:B, or leave out arguments: --no-args.\n"
                f"  Or let Perfetto's trace_processor hold it: put {DOWNLOAD} on PATH.\n"
                "  rankscope's own viewer has no limit: leave out --perfetto.",
            )
        return self._file.write(data)


def _listening(make: Callable[[], S], host: str, port: int) -> S:
    try:
        return make()
    except OSError as error:
        raise RankscopeError(
            f"cannot listen on {host}:{port}",
            why=f"{error.strerror or error}.",
            hint="Choose another: --port 0 takes a free one.",
        ) from error


def _serve(serve: Callable[[], None], url: str, no_open: bool) -> None:
    """Serve until Ctrl-C, or until the terminal closes."""
    if not no_open:
        webbrowser.open(url)
    with contextlib.suppress(KeyboardInterrupt):
        serve()
