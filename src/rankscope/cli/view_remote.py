"""rankscope view ssh://host/path: the viewer runs where the traces are, the browser here."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from rankscope.errors import UsageError
from rankscope.remote.ssh import SCHEME, Ssh, parse_remote_path, program_words
from rankscope.remote.tunnel import Tunnel, check_one_machine, free_port, local_url, viewer_command


def path_or_place(text: str) -> Path | str:
    """A path here, or ssh://… unchanged (a Path would lose one of its slashes)."""
    return text if text.startswith(SCHEME) else Path(text)


def is_remote(args: argparse.Namespace) -> bool:
    return isinstance(args.run, str) or isinstance(args.other, str)


def view_remote(args: argparse.Namespace) -> int:
    """Until Ctrl-C here, or until the connection is lost; either way the viewer over there ends."""
    runs = [run for run in (args.run, args.other) if run is not None]
    remote_paths = check_one_machine(
        [parse_remote_path(run) if isinstance(run, str) else None for run in runs]
    )
    if args.perfetto:
        raise UsageError(
            "--perfetto does not work over ssh://",
            why="Perfetto's page reads the trace from this machine.",
            hint="rankscope fetch HOST:PATH, then rankscope view PATH --perfetto",
        )
    if args.host != "127.0.0.1":
        raise UsageError(
            f"--host {args.host} cannot be used with ssh://",
            why="The tunnel ends at 127.0.0.1, on both machines.",
            hint="Leave it out.",
        )
    if args.at:
        raise UsageError(
            "--at does not work over ssh://",
            why="The address is made on the other machine.",
            hint=f"Add {args.at} to the address that is printed.",
        )
    program = program_words(args.remote_rankscope)
    port = args.port or free_port()
    options = {
        "--cache": args.cache,
        "--jobs": args.jobs,
        "--dask": args.dask,
        "--dask-option": args.dask_option or None,
        "--nsys": args.nsys,
        "--ncu": args.ncu,
        "--mix": args.mix or None,
    }
    command = viewer_command(program, remote_paths, port, options)
    host = remote_paths[0].host
    with (
        stopped_by_signals(),
        Ssh.connected(remote_paths[0], args.ssh) as ssh,
        closing(Tunnel(ssh, command)) as link,
    ):
        url = local_url(link, port, host)
        print(url, flush=True)
        print(f"The viewer runs on {host}. Ctrl-C ends both.", file=sys.stderr)
        if not args.no_open:
            webbrowser.open(url)
        try:
            link.wait()
        except KeyboardInterrupt:
            return 0
    return 0


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) count as Ctrl-C, so that nothing is left running over there."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
