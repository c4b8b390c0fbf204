"""rankscope view: the timeline of all ranks in a browser."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from rankscope.cli.common import add_reading_options, add_remote_options, open_run
from rankscope.cli.view_remote import is_remote, path_or_place, view_remote
from rankscope.errors import RankscopeError

EXAMPLES = """\
examples:
  rankscope view RUN                        prints the address, and opens it where there is a browser
  rankscope view BASE NEW                   two runs on one axis, and what changed between them
  rankscope view ssh://host/~/runs/a        a run on another machine: the viewer there, the browser here
  rankscope view RUN --no-open --port 8899  on a machine you reach by ssh; prints the ssh command for it

Only this machine can reach it, and only with the token in the address. Ctrl-C ends it.
Keys: W S zoom, A D pan, F fit, / search, ? all of them.
"""
S = TypeVar("S", bound=ThreadingHTTPServer)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "All ranks on one axis in the browser. Raw traces are read first, once; the page shows the progress."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        type=path_or_place,
        metavar="RUN",
        help="a folder with one trace per rank, or a trace file; ssh://host/path for one on another machine",
    )
    parser.add_argument(
        "other",
        nargs="?",
        type=path_or_place,
        metavar="OTHER",
        help="a second run, on the same axis, with what changed",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="listen here (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument(
        "--perfetto",
        action="store_true",
        help="serve the run to ui.perfetto.dev instead (on port 9001, the one that page uses)",
    )
    parser.add_argument("--no-open", action="store_true", help="do not start a browser")
    # Set by `view ssh://` for the viewer over there: it is seen through a tunnel from port N, and ends with stdin.
    parser.add_argument("--tunnel", type=int, metavar="N", help=argparse.SUPPRESS)
    add_remote_options(parser, "ssh://host/path")
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if is_remote(args):
        return view_remote(args)
    return _perfetto(args) if args.perfetto else _view(args)


def _view(args: argparse.Namespace) -> int:
    from rankscope.store.ingest import Options
    from rankscope.viewer.server import Server
    from rankscope.viewer.startup import Opening

    runs = [args.run, args.other] if args.other else [args.run]
    opening = Opening(
        runs,
        Options(cache=args.cache, jobs=args.jobs),
        lambda text: print(text, file=sys.stderr),
        mix=args.mix,
    )
    server = _listening(
        lambda: Server(args.host, args.port, opening.routes(), tunnel=args.tunnel), args.host, args.port
    )
    opening.start()
    print(server.url, flush=True)
    if args.tunnel is not None:
        threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    else:
        _print_how_to_reach(server.server_address[1], args.host)
    code = _serve(server, server.url, args.no_open)
    if not opening.wait(0):
        # Its thread is in DuckDB, which crashes if the interpreter shuts down meanwhile. The reading processes
        # end when their pipes close; unfinished files are removed by the next ingest.
        os._exit(code)
    return code


def _perfetto(args: argparse.Namespace) -> int:
    from rankscope.analysis.core.scope import Scope
    from rankscope.viewer.perfetto_server import PORT, PerfettoServer
    from rankscope.views.export.perfetto import write_perfetto

    run = open_run(args)
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        trace = Path(folder) / "trace"
        with trace.open("wb") as file:
            write_perfetto(run, Scope(), file)
        port = args.port or PORT
        server = _listening(lambda: PerfettoServer(trace, port), "127.0.0.1", port)
        print(server.url, flush=True)
        print(
            "Perfetto's page reads the trace from this machine; nothing is uploaded. Ctrl-C ends it.",
            file=sys.stderr,
        )
        return _serve(server, server.url, args.no_open)


def _listening(make: Callable[[], S], host: str, port: int) -> S:
    try:
        return make()
    except OSError as error:
        raise RankscopeError(
            f"cannot listen on {host}:{port}",
            why=f"{error.strerror or error}.",
            hint="Choose another: --port 0 takes a free one.",
        ) from error


def _serve(server: ThreadingHTTPServer, url: str, no_open: bool) -> int:
    """Serve until Ctrl-C, or until the terminal closes."""
    if not no_open:
        webbrowser.open(url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


def _end_with_stdin(server: ThreadingHTTPServer) -> None:
    """The process at the other end of ssh holds stdin open; its end is the only sign that the process has ended."""
    while os.read(sys.stdin.fileno(), 65536):
        pass
    server.shutdown()


def _print_how_to_reach(port: int, host: str) -> None:
    if host in _LOOPBACK:
        user = f"{getpass.getuser()}@{socket.gethostname()}"
        print(
            f"From another machine: ssh -L {port}:127.0.0.1:{port} {user}, then the same address",
            file=sys.stderr,
        )
    else:
        print(
            f"rankscope: {host} can be reached by others on the network\n"
            "  Only the token in the address keeps them out, and it is sent unencrypted.\n"
            "  Use the default address and an ssh tunnel instead.",
            file=sys.stderr,
        )
