"""rankscope view ssh://host/path: the viewer runs where the traces are, the browser here."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from rankscope.cli.remote_options import as_argument, remote_program
from rankscope.errors import RemoteError, UsageError
from rankscope.remote import SCHEME, Ssh, Tunnel, answers, free_port, parse_place, tunnel


def path_or_place(text: str) -> Path | str:
    """A path here, or ssh://… as it stands (a Path would lose one of its slashes)."""
    return text if text.startswith(SCHEME) else Path(text)


def is_remote(args: argparse.Namespace) -> bool:
    return isinstance(args.run, str) or isinstance(args.other, str)


def view_remote(args: argparse.Namespace) -> int:
    """Until Ctrl-C here, or until the connection breaks; either way the viewer over there ends."""
    runs = [run for run in (args.run, args.other) if run is not None]
    places = [parse_place(run) for run in runs if isinstance(run, str)]
    if len(places) != len(runs) or len({(place.host, place.port) for place in places}) > 1:
        raise UsageError(
            "the two runs are not on one machine",
            why="One viewer shows both, so it must reach both.",
            hint="Copy what it needs first: rankscope fetch HOST:PATH, then view both here.",
        )
    if args.perfetto:
        raise UsageError(
            "--perfetto does not work over ssh://",
            why="Perfetto's page asks this machine for the trace.",
            hint="rankscope fetch HOST:PATH, then rankscope view PATH --perfetto",
        )
    if args.host != "127.0.0.1":
        raise UsageError(
            f"--host {args.host} does not go with ssh://",
            why="The tunnel ends at 127.0.0.1, on both machines.",
            hint="Leave it out.",
        )
    program = remote_program(args)
    port = args.port or free_port()
    command = [
        *program,
        "view",
        *(as_argument(place.path) for place in places),
        "--no-open",
        "--tunnel",
        str(port),
    ]
    for option, value in (
        ("--cache", args.cache),
        ("--jobs", args.jobs),
        ("--nsys", args.nsys),
        ("--ncu", args.ncu),
    ):
        command += [option, str(value)] if value is not None else []
    with _stopped_by_signals(), tunnel(Ssh(places[0], args.ssh), command) as link:
        url = _local_url(link, port, places[0].host)
        print(url, flush=True)
        print(f"The viewer runs on {places[0].host}. Ctrl-C ends both.", file=sys.stderr)
        if not args.no_open:
            webbrowser.open(url)
        try:
            link.wait()
        except KeyboardInterrupt:
            return 0
    return 0


def _local_url(link: Tunnel, port: int, host: str) -> str:
    there = urlsplit(link.address())
    assert there.port
    link.forward(there.port, port)
    if not answers(port):
        raise RemoteError(
            f"the tunnel to {host} does not reach the viewer",
            why="Its ssh server does not allow tunnels (AllowTcpForwarding), or the viewer has ended.",
            hint="Copy what the views need and look at it here: rankscope fetch HOST:PATH",
        )
    return there._replace(netloc=f"127.0.0.1:{port}").geturl()


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """A terminal that closes, or kill, is as good as Ctrl-C: nothing is left running over there."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
