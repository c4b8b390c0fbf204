"""A command that runs where the run is: ssh://host/path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from rankscope.remote.ssh import (
    NOT_FOUND,
    SSH_FAILED,
    Ssh,
    check_remote,
    option_words,
    parse_remote_path,
    path_argument,
    program_words,
)


def run_there(args: argparse.Namespace, command: str, options: Mapping[str, object]) -> int:
    """Run `rankscope COMMAND PATH OPTIONS` over there; its output is ours, and so is its exit code."""
    remote_path = parse_remote_path(args.run)
    program = program_words(args.remote_rankscope)
    words = [*program, command, path_argument(remote_path.path), *option_words(options)]
    with Ssh.connected(remote_path, args.ssh) as ssh:
        code = ssh.run_attached(words, terminal=sys.stdout.isatty())
    if code in (SSH_FAILED, NOT_FOUND):
        check_remote(code, remote_path, program)
    return code


def is_elsewhere(run: Path | str) -> bool:
    return isinstance(run, str)
