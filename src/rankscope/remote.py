"""Another machine, reached with the user's own ssh: run rankscope there, tunnel a port, copy a store.

Standard library only. One connection serves a command and its tunnel, so a password is asked for once.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import RemoteError, ToolError, UsageError

SCHEME = "ssh://"
_ENDING_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
"""For a slow line; a tunnel that is refused says so at once."""
_SSH_FAILED = 255
_NOT_FOUND = 127
_KEEP_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")


class Place(NamedTuple):
    """A path on another machine."""

    host: str
    """As ssh takes it: [user@]host."""
    port: int | None
    path: str
    """As the shell over there takes it; relative to the home folder unless it starts with /."""

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


def parse_place(text: str) -> Place:
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
            f"{text!r} names no path on another machine",
            why="A host and a path are needed.",
            hint="For example: host:runs/a, or ssh://user@host:2222/data/runs/a",
        )
    return Place(host, port, path)


class Ssh:
    """How to reach one machine."""

    def __init__(self, place: Place, command: str = "ssh") -> None:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise ToolError(
                f"{words[0] if words else 'ssh'} is not here",
                why="Other machines are reached through it.",
                hint="Install OpenSSH's client, or name one: --ssh PATH",
            )
        port = ["-p", str(place.port)] if place.port else []
        self.place = place
        self.start = [*words, *port, *_KEEP_ALIVE]

    def run(self, command: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """A command over there, to its end; its stderr is shown as it comes."""
        words = [*self.start, "--", self.place.host, shlex.join(command)]
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False
        )


def check_remote(code: int, place: Place, program: Sequence[str]) -> None:
    """An error for what ssh's exit code says; 0 is no error."""
    if code == _SSH_FAILED:
        raise RemoteError(
            f"cannot reach {place.host}",
            why="ssh says why in the line above.",
            hint=f"Try it alone: ssh {place.host} true. Other options for ssh: --ssh 'ssh -i KEY -J GATE'",
        )
    if code == _NOT_FOUND:
        raise RemoteError(
            f"there is no {program[0]} on {place.host}",
            why="A shell that is not a login shell does not find it on its PATH.",
            hint=f"Install it there, or say where it is: --remote-rankscope {place.host}'s path, "
            "such as .venv/bin/rankscope. To copy the traces and read them here: rsync.",
        )
    if code:
        raise RemoteError(
            f"{program[0]} on {place.host} ended with {code}",
            why="It says why in the lines above.",
            hint=f"Try it there: ssh {place.host}",
        )


class Tunnel:
    """A server that runs over there, and a port here that leads to it."""

    def __init__(self, ssh: Ssh, command: Sequence[str], folder: str) -> None:
        self._ssh, self._command = ssh, command
        # ssh's limit for this name is some hundred characters.
        self._control = ["-o", f"ControlPath={folder}/s"]
        master = [*ssh.start, *self._control, "-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
        self._process = subprocess.Popen(
            [*master, "--", ssh.place.host, shlex.join(command)],
            stdin=subprocess.PIPE,  # the server over there ends when this is closed
            stdout=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        """Its address over there, which it says when it is ready; what a shell's profile prints is passed over."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("http://"):
                return line.strip()
        check_remote(self._process.wait() or 1, self._ssh.place, self._command)
        raise AssertionError("a code that is not 0 is an error")

    def forward(self, remote_port: int, port: int) -> None:
        """Lead a port here to one over there."""
        words = [
            *self._ssh.start,
            *self._control,
            "-O",
            "forward",
            "-L",
            f"127.0.0.1:{port}:127.0.0.1:{remote_port}",
        ]
        done = subprocess.run(
            [*words, "--", self._ssh.place.host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RemoteError(
                f"cannot tunnel port {port} to {self._ssh.place.host}",
                why=(done.stderr.strip().splitlines() or ["ssh does not say why."])[-1],
                hint="Choose another port here: --port 0 takes a free one.",
            )

    def wait(self) -> None:
        """Until it ends, which nobody asked for: an error."""
        code = self._process.wait()
        raise RemoteError(
            f"the connection to {self._ssh.place.host} has ended",
            why="ssh lost it." if code == _SSH_FAILED else f"The viewer over there ended with {code}.",
            hint="Start it again; what was read over there is kept.",
        )

    def end(self) -> None:
        """End the server over there, then the connection."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def tunnel(ssh: Ssh, command: Sequence[str]) -> Iterator[Tunnel]:
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="rankscope-", dir=base if len(base) < 40 else "/tmp") as folder:
        made = Tunnel(ssh, command, folder)
        try:
            yield made
        finally:
            made.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Does a web server speak at this port here? A tunnel that the other side refuses closes at once."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS) as probe:
            probe.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def rsync(
    ssh: Ssh, sources: Sequence[str], target: Path, options: Sequence[str], silent: bool = False
) -> int:
    """Copy from over there; returns rsync's exit code. Its own messages are shown, unless `silent`."""
    program = shutil.which("rsync")
    if program is None:
        raise ToolError(
            "rsync is not here",
            why="Only what has changed is copied, through it.",
            hint="Install rsync here and over there.",
        )
    start = shlex.join(ssh.start)
    errors = subprocess.DEVNULL if silent else None
    # --protect-args: names with spaces come through a shell over there untouched
    words = [program, "--archive", "--protect-args", *options, "-e", start]
    words += [f"{ssh.place.host}:{source}" for source in sources]
    return subprocess.run(
        [*words, str(target)], stdin=subprocess.DEVNULL, stderr=errors, check=False
    ).returncode
