"""`fetch` and `view` ssh:// with a real sshd and rsync on the loopback interface."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import DATA, ROOT, open_trace
from integration.local_sshd import LocalSshd, missing
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.run_info import facts
from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.remote.ssh import RemotePath, parse_remote_path
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.slow

needs_sshd = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSshd]:
    """Another machine with rankscope on its PATH."""
    folder = tmp_path_factory.mktemp("there")
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "rankscope"
    # A profile that talks, as many do: it must not be taken for an answer.
    program.write_text(
        f'#!/bin/sh\necho "Welcome"\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m rankscope "$@"\n'
    )
    program.chmod(0o755)
    sshd = LocalSshd(folder / "sshd", f"{programs}:/usr/bin:/bin")
    yield sshd
    sshd.stop()


@pytest.fixture(scope="module")
def run(there: LocalSshd) -> Path:
    """A run on the remote side, with spaces in its name."""
    folder = there.folder / "my run"
    shutil.copytree(DATA / "ddp-gloo4", folder)
    (folder / "rankscope.json").write_text('{"format": 1, "job": "j-17"}')
    return folder


@needs_sshd
@pytest.mark.thorough
def test_fetch_brings_the_store_and_not_the_traces(
    there: LocalSshd,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    fetch = ["fetch", f"there:{run}", "--ssh", there.ssh]
    assert main(fetch) == 0
    out = capsys.readouterr().out
    assert "Copied 4 files of there:" in out and "Next: rankscope stats" in out
    here = tmp_path / "my run"
    assert not list(here.glob("*.json.gz")) and (here / "rankscope.json").is_file()
    assert all(word in (here / ".rankscope" / "store.json").read_text() for word in ("there:/", "my run"))
    tables = []
    for folder in (run, here):
        assert main(["stats", str(folder), "-r", "breakdown,steps", "--format", "json", "-q"]) == 0
        tables.append(capsys.readouterr().out.replace("there:", "").replace(str(folder), "RUN"))
    assert tables[0] == tables[1]
    assert ("Job", "j-17") in facts(open_trace(here), Scope())["Run"]  # from the manifest that came along
    # Again: an earlier copy is brought up to date; another run's folder is not touched.
    shutil.rmtree(here / ".rankscope" / "rank=00003")
    assert main(fetch) == 0
    assert (here / ".rankscope" / "rank=00003").is_dir()
    assert main(["fetch", f"there:{run}/rank-0.json.gz", "--ssh", there.ssh]) == 0
    assert main(["stats", "rank-0", "-r", "steps", "-q"]) == 0
    capsys.readouterr()
    assert main(["fetch", f"elsewhere:{run}", "--ssh", there.ssh]) == 2
    assert "exists already" in capsys.readouterr().err


@needs_sshd
def test_fetch_without_rankscope_over_there(
    there: LocalSshd, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ssh", there.ssh, "--remote-rankscope", "/nowhere/rankscope"]
    assert main(["ingest", "-q", str(run)]) == 0
    assert (
        main(["fetch", f"there:{run}", "-o", str(tmp_path / "a"), *words]) == 0
    )  # somebody has read it before
    unread = there.folder / "unread"
    shutil.copytree(DATA / "ddp-gloo4", unread)
    capsys.readouterr()
    assert main(["fetch", f"there:{unread}", "-o", str(tmp_path / "b"), *words]) == 1
    error = capsys.readouterr().err
    assert "there is no /nowhere/rankscope on there" in error and len(error.strip().splitlines()) == 3
    assert not (tmp_path / "b").exists()


@needs_sshd
def test_fetch_without_rsync_over_there(
    there: LocalSshd, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = (there.folder / "sshd_config").read_text()
    programs = config.split("SetEnv PATH=")[1].split(":")[0]
    bare = LocalSshd(tmp_path / "sshd", programs)  # rankscope, and not a program more
    try:
        assert main(["fetch", f"there:{run}", "-o", str(tmp_path / "a"), "--ssh", bare.ssh]) == 1
        assert "rsync could not copy from there" in capfd.readouterr().err
    finally:
        bare.stop()


@needs_sshd
def test_fetch_of_what_is_not_there(
    there: LocalSshd, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "there:/no/such/run", "-o", str(tmp_path / "a"), "--ssh", there.ssh]) == 1
    error = capfd.readouterr().err
    assert "there is no /no/such/run" in error and "rankscope on there ended with 1" in error
    assert not (tmp_path / "a").exists()


@pytest.mark.slow(every_variation=True)
@needs_sshd
@pytest.mark.parametrize("command", ["fetch", "view"])
def test_a_host_that_refuses(
    command: str, there: LocalSshd, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Its key is not one it knows.
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "stranger")], check=True
    )
    config = (
        (there.folder / "ssh_config")
        .read_text()
        .replace(str(there.folder / "user"), str(tmp_path / "stranger"))
    )
    (tmp_path / "config").write_text(config)
    place = f"there:{run}" if command == "fetch" else f"ssh://there{run}"
    more = ["-o", str(tmp_path / "a")] if command == "fetch" else ["--no-open"]
    assert main([command, place, *more, "--ssh", f"ssh -F {tmp_path / 'config'}"]) == 1
    error = capfd.readouterr().err
    assert "Permission denied" in error and "cannot reach there" in error


@pytest.fixture
def one_time(there: LocalSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneTimeMachine]:
    machine = OneTimeMachine(there, tmp_path / "one-time")
    monkeypatch.setenv("SSH_ASKPASS", str(machine.askpass))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    yield machine
    machine.sshd.stop()


class OneTimeMachine:
    """A machine that lets each user in once, and a key that asks for its passphrase at each login.

    As with one-time passwords, a second connection is refused. A connection is told by its sshd process.
    """

    def __init__(self, there: LocalSshd, folder: Path) -> None:
        path = (there.folder / "sshd_config").read_text().split("SetEnv PATH=")[1].splitlines()[0]
        self.folder = folder
        folder.mkdir()
        once = folder / "once.sh"
        once.write_text(
            f"first=$(cat {folder}/first 2>/dev/null)\n"
            f'[ -z "$first" ] && echo $PPID > {folder}/first && first=$PPID\n'
            f'[ "$first" = $PPID ] && cat {folder}/sshd/user.pub\n'
        )
        self.sshd = LocalSshd(
            folder / "sshd",
            path,
            f"AuthorizedKeysCommand /bin/sh {once}",
            "AuthorizedKeysCommandUser root",
            before=["AuthorizedKeysFile none"],
        )
        key = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(folder / "sshd" / "user")]
        subprocess.run(key, check=True)
        self.askpass = folder / "askpass"
        self.askpass.write_text(f"#!/bin/sh\necho asked >> {folder}/asked\necho secret\n")
        self.askpass.chmod(0o755)
        self.ssh = f"{self.sshd.ssh} -o BatchMode=no"

    def counts(self) -> tuple[int, int]:
        """How often the user was asked, and how many logins sshd has accepted."""
        log = (self.sshd.folder / "log").read_text()
        return (self.folder / "asked").read_text().count("asked"), log.count("Accepted publickey")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="sshd runs AuthorizedKeysCommand only as root")


@pytest.mark.thorough
@needs_sshd
@needs_root
@pytest.mark.parametrize("more", [[], ["--raw"]], ids=["store", "raw"])
def test_fetch_asks_a_one_time_machine_once(
    more: list[str], one_time: OneTimeMachine, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["-o", str(tmp_path / "a"), "--ssh", one_time.ssh, "-q", *more]
    assert main(["fetch", f"there:{run}", *words]) == 0, capfd.readouterr().err
    assert one_time.counts() == (1, 1)
    assert len(list((tmp_path / "a").glob("*.json.gz"))) == (4 if more else 0)
    wait_until(lambda: not one_time.sshd.sessions())  # closed at the end
    assert main(["fetch", f"there:{run}", *words]) == 1
    assert "cannot reach there" in capfd.readouterr().err


@needs_sshd
@needs_root
def test_view_asks_a_one_time_machine_once(one_time: OneTimeMachine, run: Path) -> None:
    with View(one_time.sshd, run, ssh=one_time.ssh) as view:
        assert b"<html" in ask(view.url).lower()
    assert one_time.counts() == (1, 1)
    assert none_left(run)
    wait_until(lambda: not one_time.sshd.sessions())


@needs_sshd
def test_a_connection_that_the_user_keeps_open_is_used(
    there: LocalSshd, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = f"{there.ssh} -o ControlPath={tmp_path}/own"
    subprocess.run(f"{own} -o ControlMaster=yes -f -N there", shell=True, check=True)
    try:
        logins = (there.folder / "log").read_text().count("Accepted publickey")
        assert main(["fetch", f"there:{run}", "-o", str(tmp_path / "a"), "-q", "--ssh", own]) == 0
        with View(there, run, ssh=own) as view:
            port = view.url.split(":")[2].split("/")[0]
            assert ask(view.url)
        assert (there.folder / "log").read_text().count("Accepted publickey") == logins
        with pytest.raises(OSError):
            socket.create_connection(
                ("127.0.0.1", int(port)), timeout=5
            )  # the tunnel does not outlive the view
        assert subprocess.run(f"{own} -O check there", shell=True, check=False).returncode == 0
    finally:
        subprocess.run(f"{own} -O exit there", shell=True, check=False)


@needs_sshd
@pytest.mark.thorough
def test_fetch_raw_files(
    there: LocalSshd, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rankscope over there; traces in another folder come too."""
    monkeypatch.chdir(tmp_path)
    job, board = there.folder / "raw job", there.folder / "tb"
    job.mkdir()
    board.mkdir()
    shutil.copy(DATA / "ddp-gloo4" / "rank-0.json.gz", job)
    shutil.copy(DATA / "ddp-gloo4" / "rank-1.json.gz", board / "rank-1.pt.trace.json.gz")
    for name in ("a_0.nsys-rep", "a_0.ncu-rep", "a_0.qdstrm", "checkpoint.bin", "profiler_list.dat"):
        (job / name).write_text(name)
    windows = [{"index": 0, "state": "whole", "file": str(board / "rank-1.pt.trace.json.gz")}]
    (job / "rankscope.json").write_text('{"format": 1, "job": "j-17"}')
    (job / "rank-00001.rankscope.json").write_text(json.dumps({"rank": 1, "windows": windows}))
    words = ["--raw", "--ssh", there.ssh, "--remote-rankscope", "/nowhere/rankscope"]
    assert main(["fetch", f"there:{job}", *words]) == 0
    assert "Copied 6 files of there:" in capsys.readouterr().out
    here = tmp_path / "raw job"
    shown = {path.name for path in here.iterdir() if not path.name.startswith(".")}
    assert shown == {path.name for path in job.iterdir()} - {"checkpoint.bin"} | {"rank-1.pt.trace.json.gz"}
    for name in ("a_0.nsys-rep", "a_0.ncu-rep", "a_0.qdstrm"):
        (here / name).unlink()  # not real reports
    assert Run(ingest([here])).ranks == [0, 1]
    (job / "profiler_list.dat").write_text("newer")
    assert main(["fetch", f"there:{job}", *words]) == 0  # again: an earlier copy
    assert (here / "profiler_list.dat").read_text() == "newer"
    assert main(["fetch", f"there:{job}/rank-0.json.gz", *words]) == 0
    assert (tmp_path / "rank-0" / "rank-0.json.gz").is_file()
    empty = there.folder / "empty"
    empty.mkdir()
    capsys.readouterr()
    assert main(["fetch", f"there:{empty}", *words]) == 1
    assert "there is no trace in" in capsys.readouterr().err and not (tmp_path / "empty").exists()


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 10 s")


class View:
    """rankscope view ssh://… as a process."""

    def __init__(self, sshd: LocalSshd, run: Path, *more: str, ssh: str | None = None) -> None:
        command = ["view", f"ssh://there{run}", "--no-open", "--ssh", ssh or sshd.ssh, *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=60)

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


def viewers(run: Path) -> list[int]:
    """The remote viewers of this run: those started with --tunnel."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--tunnel" in words and str(run).encode() in words:
                found.append(int(folder.name))
    return found


def none_left(run: Path) -> bool:
    for _ in range(600):
        if not viewers(run):
            return True
        time.sleep(0.05)
    return False


def ask(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
        return content


@needs_sshd
def test_view_over_ssh_and_its_end(there: LocalSshd, run: Path) -> None:
    with View(there, run) as view:
        assert view.url.startswith("http://127.0.0.1:"), view.end()
        assert b"<html" in ask(view.url).lower()
        assert viewers(run)
        view.process.send_signal(signal.SIGTERM)
        code, err = view.end()
    assert code in (0, 130) and "Traceback" not in err
    assert none_left(run)
    with pytest.raises(urllib.error.URLError):
        ask(view.url)


@needs_sshd
def test_view_when_the_connection_breaks(there: LocalSshd, run: Path) -> None:
    with View(there, run) as view:
        assert ask(view.url)
        for pid in there.sessions():
            os.kill(pid, signal.SIGKILL)
        code, err = view.end()
    assert code == 1
    assert "the connection to there was lost" in err and "ssh ended" in err
    assert none_left(run)


@needs_sshd
def test_view_where_tunnels_are_not_allowed(there: LocalSshd, run: Path, tmp_path: Path) -> None:
    path = (there.folder / "sshd_config").read_text().split("SetEnv PATH=")[1].splitlines()[0]
    strict = LocalSshd(tmp_path / "sshd", path, "AllowTcpForwarding no")
    try:
        view = View(strict, run)
        code, err = view.end()
        assert (code, view.url) == (1, "")
        assert "the tunnel to there does not reach the viewer" in err and "rankscope fetch" in err
        assert none_left(run)
    finally:
        strict.stop()


@needs_sshd
def test_view_without_rankscope_over_there(there: LocalSshd, run: Path) -> None:
    view = View(there, run, "--remote-rankscope", "/nowhere/rankscope")
    code, err = view.end()
    assert (code, view.url) == (1, "")
    assert "there is no /nowhere/rankscope on there" in err and "Traceback" not in err


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host:runs/a", RemotePath("host", None, "runs/a")),
        ("me@host:/data/a b", RemotePath("me@host", None, "/data/a b")),
        ("host:~/a", RemotePath("host", None, "a")),
        ("ssh://host/data/a", RemotePath("host", None, "/data/a")),
        ("ssh://me@host:2222/data/a", RemotePath("me@host", 2222, "/data/a")),
        ("ssh://host/~/a", RemotePath("host", None, "a")),
        ("ssh://host:runs/a", RemotePath("host", None, "runs/a")),
    ],
)
def test_places(text: str, place: RemotePath) -> None:
    assert parse_remote_path(text) == place


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        "/data/a",
        "ssh://",
        "ssh://host",
        "-oProxyCommand=x:/a",
        "a b:/c",
        ":/a",
        "host/a",
    ],
)
def test_not_a_place(text: str) -> None:
    with pytest.raises(UsageError, match="is not a path"):
        parse_remote_path(text)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(
    "words",
    [
        ["ssh://host/a", "b"],
        ["ssh://host/a", "ssh://other/a"],
        ["ssh://host/a", "--perfetto"],
        ["ssh://host/a", "--host", "0.0.0.0"],
        ["ssh://host/a", "--remote-rankscope", ""],
    ],
)
def test_what_cannot_be_viewed_over_ssh(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) >= 2


def test_no_ssh_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["view", "ssh://host/a"], ["fetch", "host:a", "-o", str(tmp_path / "a")]):
        assert main(words) == 1
        assert "ssh is not installed here" in capsys.readouterr().err


def test_view_ends_with_stdin(tmp_path: Path) -> None:
    """The tunnel relies on it."""
    shutil.copytree(DATA / "ddp-gloo4", tmp_path / "a")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "view", str(tmp_path / "a"), "--no-open", "--tunnel", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline().startswith("http://")
    _, err = process.communicate("", timeout=60)
    assert process.returncode == 0 and "Traceback" not in err
