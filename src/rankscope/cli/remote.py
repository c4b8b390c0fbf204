"""ssh://host/path: a command runs where the run is; of `view`, the viewer runs there and the browser here."""

from __future__ import annotations

import argparse
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from rankscope.cli.common import add_reading_options
from rankscope.cli.options import words_of
from rankscope.errors import UsageError
from rankscope.remote.ssh import (
    NOT_FOUND,
    SCHEME,
    SSH_FAILED,
    Ssh,
    check_remote,
    parse_remote_path,
    path_argument,
    program_words,
)
from rankscope.remote.tunnel import Tunnel, check_one_machine, free_port, local_url, viewer_command

WATCHED_RUN = """\
[RUN]  the run folder of a job that was started with --watch; or ssh://host/path (default: the newest one here)
"""


def path_or_remote(text: str) -> Path | str:
    """A path here, or ssh://… unchanged (a Path would lose one of its slashes)."""
    return text if text.startswith(SCHEME) else Path(text)


def run_there(
    args: argparse.Namespace, command: str, configure: Callable[[argparse.ArgumentParser], object]
) -> int:
    """Run a command with the same options over there; its output is ours, and so is its exit code."""
    remote = parse_remote_path(args.run)
    program = program_words(args.remote_rankscope)
    options = words_of(args, configure, "ssh", "remote_rankscope")
    words = [*program, command, path_argument(remote.path), *options]
    with Ssh.connected(remote, args.ssh) as ssh:
        code = ssh.run_attached(words, terminal=sys.stdout.isatty())
    if code in (SSH_FAILED, NOT_FOUND):
        check_remote(code, remote, program)
    return code


def view_remote(args: argparse.Namespace) -> int:
    """Until Ctrl-C here, or until the connection is lost; either way the viewer over there ends."""
    runs = [run for run in (args.run, args.other) if run is not None]
    remote_paths = check_one_machine(
        [parse_remote_path(run) if isinstance(run, str) else None for run in runs]
    )
    refused = (
        (args.perfetto, "--perfetto does not work over ssh://", "Perfetto's page reads the trace from this machine.",
         "rankscope fetch HOST:PATH, then rankscope view PATH --perfetto"),
        (args.host != "127.0.0.1", f"--host {args.host} cannot be used with ssh://",
         "The tunnel ends at 127.0.0.1, on both machines.", "Leave it out."),
        (args.at, "--at does not work over ssh://", "The address is made on the other machine.",
         f"Add {args.at} to the address that is printed."),
    )  # fmt: skip
    for is_given, what, why, hint in refused:
        if is_given:
            raise UsageError(what, why=why, hint=hint)
    program = program_words(args.remote_rankscope)
    port = args.port or free_port()
    options = words_of(args, add_reading_options, "quiet")
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
