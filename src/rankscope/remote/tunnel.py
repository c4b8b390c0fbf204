"""The viewer on another machine, seen here through an ssh tunnel."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
from collections.abc import Sequence
from urllib.parse import urlsplit

from rankscope.errors import RemoteError, UsageError
from rankscope.remote.ssh import SSH_FAILED, RemotePath, Ssh, check_remote, path_argument

_ENDING_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
"""Enough for a slow line; a refused tunnel closes at once."""


class Tunnel:
    """A server that runs over there, and a port here that leads to it. Both use the connection of ``ssh``."""

    def __init__(self, ssh: Ssh, command: Sequence[str]) -> None:
        self._ssh, self._command = ssh, command
        self._forwarded: str | None = None
        self._process = subprocess.Popen(
            [*ssh.start, "--", ssh.remote_path.host, shlex.join(command)],
            stdin=subprocess.PIPE,  # the server over there ends when this is closed
            stdout=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        """The server's address over there, printed when it is ready. A shell's profile may print lines before it."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("http://"):
                return line.strip()
        check_remote(self._process.wait() or 1, self._ssh.remote_path, self._command)
        raise AssertionError("a code that is not 0 is an error")

    def forward(self, remote_port: int, port: int) -> None:
        """Lead a port here to one over there."""
        self._forwarded = f"127.0.0.1:{port}:127.0.0.1:{remote_port}"
        done = self._ssh.control("forward", "-L", self._forwarded)
        if done.returncode:
            raise RemoteError(
                f"cannot tunnel port {port} to {self._ssh.remote_path.host}",
                why=(done.stderr.strip().splitlines() or ["ssh gives no reason."])[-1],
                hint="Choose another port here: --port 0 takes a free one.",
            )

    def wait(self) -> None:
        """Wait until it ends by itself, which is an error."""
        code = self._process.wait()
        raise RemoteError(
            f"the connection to {self._ssh.remote_path.host} was lost",
            why="ssh ended." if code == SSH_FAILED else f"The viewer over there ended with exit code {code}.",
            hint="Start it again; the traces that were read over there are kept.",
        )

    def close(self) -> None:
        """End the server over there, and the tunnel: the connection may be one that the user keeps open."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()
        if self._forwarded is not None:
            self._ssh.control("cancel", "-L", self._forwarded)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether a web server answers at this port. A tunnel that the other side refuses closes at once."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS) as probe:
            probe.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def viewer_command(
    program: Sequence[str], remote_paths: Sequence[RemotePath], port: int, options: Sequence[str]
) -> list[str]:
    """The command that starts the viewer over there, for a tunnel from ``port`` here."""
    paths = [path_argument(remote_path.path) for remote_path in remote_paths]
    return [*program, "view", *paths, "--no-open", "--tunnel", str(port), *options]


def check_one_machine(remote_paths: Sequence[RemotePath | None]) -> list[RemotePath]:
    """The runs of one viewer; None is a run on this machine."""
    remote = [remote_path for remote_path in remote_paths if remote_path is not None]
    if (
        len(remote) != len(remote_paths)
        or len({(remote_path.host, remote_path.port) for remote_path in remote}) > 1
    ):
        raise UsageError(
            "the two runs are not on one machine",
            why="One viewer shows both, so it must be able to read both.",
            hint="Copy them first: rankscope fetch HOST:PATH, then view both here.",
        )
    return remote


def local_url(link: Tunnel, port: int, host: str) -> str:
    """The viewer's address as a browser here opens it; the tunnel is made and tried."""
    there = urlsplit(link.address())
    assert there.port
    link.forward(there.port, port)
    if not answers(port):
        raise RemoteError(
            f"the tunnel to {host} does not reach the viewer",
            why="Its ssh server does not allow tunnels (AllowTcpForwarding), or the viewer has ended.",
            hint="Copy the run and view it here: rankscope fetch HOST:PATH",
        )
    return there._replace(netloc=f"127.0.0.1:{port}").geturl()
