"""A real sshd on the loopback interface with its own keys and settings. To ssh it is another machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from integration.jobs import free_port

SSHD = "/usr/sbin/sshd"


def missing() -> str:
    """Why sshd cannot be started here; empty if it can."""
    absent = [name for name in (SSHD, "ssh", "ssh-keygen", "rsync") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (tests/install-packages.sh installs them as root)"
    if os.geteuid() != 0 and not Path("/run/sshd").is_dir():
        return "sshd needs /run/sshd, which only root can create"
    return ""


class LocalSshd:
    """An sshd with its files in one folder; `ssh` is the client's command line for it."""

    def __init__(self, folder: Path, path: str, *settings: str, before: Sequence[str] = ()) -> None:
        """sshd takes the first value of a setting: those in ``before`` replace the ones here."""
        folder.mkdir(parents=True)
        self.folder = folder
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True)
        self.port = free_port()
        (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
        (folder / "authorized").chmod(0o600)
        lines = [
            *before,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder / 'host'}",
            f"AuthorizedKeysFile {folder / 'authorized'}",
            f"PidFile {folder / 'pid'}",
            "StrictModes no",  # pytest's folders are below /tmp
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            f"SetEnv PATH={path}",
            *settings,
        ]
        (folder / "sshd_config").write_text("\n".join([*lines, ""]))
        (folder / "ssh_config").write_text(
            f"Host there\n  HostName 127.0.0.1\n  Port {self.port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n  BatchMode yes\n"
            f"  UserKnownHostsFile {folder / 'known'}\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
        )
        self.ssh = f"ssh -F '{folder / 'ssh_config'}'"
        words = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
        self._wait()

    def _wait(self) -> None:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.folder / "log").read_text())

    def sessions(self) -> list[int]:
        """The processes that serve connections: children of the one that listens."""
        found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
