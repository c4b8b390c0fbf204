"""A path on another machine, and the commands that reach it: ssh and rsync."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import RemoteError, ToolError, UsageError

SCHEME = "ssh://"
SSH_FAILED = 255
"""ssh's exit code for its own errors."""
NOT_FOUND = 127
"""A shell's exit code when there is no such program."""
_KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# Seconds without a command after which the connection closes: only if this program was killed and could not close it.
_PERSIST = ("-o", "ControlPersist=60")


class RemotePath(NamedTuple):
    """A path on another machine."""

    host: str
    """[user@]host."""
    port: int | None
    path: str
    """Relative to the home folder unless it starts with /."""

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


def parse_remote_path(text: str) -> RemotePath:
    """ssh://[user@]host[:port]/path, ssh://host/~/path (from the home folder), or host:path as scp has it."""
    match = re.fullmatch(r"(?P<host>[^/:]+)(?P<rest>[:/].*)?", text.removeprefix(SCHEME), re.DOTALL)
    host = match["host"] if match else ""
    rest = (match["rest"] or "") if match else ""
    with_port = re.fullmatch(r":(\d+)(/.*)", rest, re.DOTALL) if text.startswith(SCHEME) else None
    port, path = (int(with_port[1]), with_port[2]) if with_port else (None, rest.removeprefix(":"))
    if path.startswith("/~/"):
        path = path[3:]
    path = path.removeprefix("~/")
    named = re.fullmatch(r"([\w.+-]+@)?[\w.-]+", host) and not host.startswith("-")
    if not named or not path or (not text.startswith(SCHEME) and not rest.startswith(":")) or "\0" in path:
        raise UsageError(
            f"{text!r} is not a path on another machine",
            why="A host and a path are needed.",
            hint="For example: host:runs/a, or ssh://user@host:2222/data/runs/a",
        )
    return RemotePath(host, port, path)


class Ssh:
    """How to reach one machine."""

    def __init__(self, remote_path: RemotePath, command: str = "ssh") -> None:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise ToolError(
                f"{words[0] if words else 'ssh'} is not installed here",
                why="It is needed to reach other machines.",
                hint="Install OpenSSH's client, or name another: --ssh PATH",
            )
        port = ["-p", str(remote_path.port)] if remote_path.port else []
        self.remote_path = remote_path
        self.start = [*words, *port, *_KEEP_ALIVE]

    @classmethod
    @contextmanager
    def connected(cls, remote_path: RemotePath, command: str = "ssh") -> Iterator[Ssh]:
        """One connection for all commands inside: a password or a one-time code is asked for once, by the first.

        If the user's own ssh keeps a connection to this machine open (ControlMaster), it is used and stays open.
        """
        ssh = cls(remote_path, command)
        if ssh.control("check").returncode == 0:
            yield ssh
            return
        base = tempfile.gettempdir()  # ssh limits the length of the socket's name to about 100 characters
        with tempfile.TemporaryDirectory(
            prefix="rankscope-", dir=base if len(base) < 40 else "/tmp"
        ) as folder:
            ssh.start += ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/s", *_PERSIST]
            try:
                yield ssh
            finally:
                ssh.control("exit")

    def control(self, what: str, *options: str) -> subprocess.CompletedProcess[str]:
        """A request to the process that holds the connection: check, forward, cancel, exit."""
        words = [*self.start, "-O", what, *options, "--", self.remote_path.host]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def run(self, command: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command over there to its end; its stderr is shown as it comes."""
        words = [*self.start, "--", self.remote_path.host, shlex.join(command)]
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False
        )

    def run_attached(self, command: Sequence[str], terminal: bool) -> int:
        """Run a command over there with our stdin and stdout, in a terminal if `terminal`; returns its exit code. It
        ends with the connection."""
        words = [*self.start, *(["-t"] if terminal else []), "--", self.remote_path.host, shlex.join(command)]
        return subprocess.run(words, check=False).returncode


def check_remote(code: int, remote_path: RemotePath, program: Sequence[str]) -> None:
    """Raise the error that an exit code of ssh means; 0 is no error."""
    if code == SSH_FAILED:
        raise RemoteError(
            f"cannot reach {remote_path.host}",
            why="ssh's own message is above.",
            hint=f"Try it alone: ssh {remote_path.host} true. Other options for ssh: --ssh 'ssh -i KEY -J GATE'",
        )
    if code == NOT_FOUND:
        raise RemoteError(
            f"there is no {program[0]} on {remote_path.host}",
            why="It is not on the PATH of a non-login shell.",
            hint="Install it there, or give its path there: --remote-rankscope .venv/bin/rankscope. "
            "Or copy the traces with rsync and read them here.",
        )
    if code:
        raise RemoteError(
            f"{program[0]} on {remote_path.host} ended with {code}",
            why="Its own message is above.",
            hint=f"Run it there to see more: ssh {remote_path.host}",
        )


def rsync(
    ssh: Ssh, sources: Sequence[str], target: Path, options: Sequence[str], silent: bool = False
) -> int:
    """Copy files and folders from another machine, no links or devices; returns rsync's exit code.

    Its own messages are shown, unless `silent`.
    """
    program = shutil.which("rsync")
    if program is None:
        raise ToolError(
            "rsync is not installed here",
            why="It copies only what has changed.",
            hint="Install rsync on both machines.",
        )
    start = shlex.join(ssh.start)
    messages = subprocess.DEVNULL if silent else 2
    # --protect-args: the shell over there does not split names with spaces
    words = [program, "--archive", "--no-links", "--no-devices", "--no-specials", "--protect-args", *options]
    words += ["-e", start]
    words += [f"{ssh.remote_path.host}:{source}" for source in sources]
    return subprocess.run(
        [*words, str(target)], stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, check=False
    ).returncode


def program_words(text: str) -> list[str]:
    """--remote-rankscope as words."""
    words = shlex.split(text)
    if not words:
        raise UsageError("--remote-rankscope is empty", hint="Leave it out, or name the program over there.")
    return words


def path_argument(path: str) -> str:
    """A path as an argument: one that starts with a dash must not be taken for an option."""
    return f"./{path}" if path.startswith("-") else path
