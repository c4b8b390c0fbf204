"""A small job for the capture trials. Its outcome does not depend on the moment at which something is done to it.

    python capture_job.py [--torch | --standin] [--group] [--handle | --deadly] [--odd NAME] [--end HOW] [--folder RUN]

It writes its process id to the file `pid`, then works: with --torch a training loop, with --standin the same with
tests/torch_standin. With --handle it counts the
signals that arrive, goes on for a while after the first, and tells how many of each there were; with --deadly it works
until one kills it; else it ends after its steps. --group: it makes a process group of its own. --odd is a list of
things that scripts do; --end is how it ends: a number, a signal's name or "_exit:N", "@R" for rank R only. What it
prints and writes is compared with what it does without rankscope.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.resources
import importlib.util
import inspect
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

# All but those that cannot be handled, and those that stop and continue it.
STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
HANDLED = signal.valid_signals() - STOPS - {signal.SIGKILL, signal.SIGCHLD}
# A second signal, sent by mistake, arrives within this time.
AFTER_THE_FIRST_S = 0.3
STEPS = 8
received: Counter[str] = Counter()
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 writes the process's id when it forks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--standin", dest="torch", action="store_const", const="standin")
    parser.add_argument("--group", action="store_true")
    parser.add_argument("--handle", action="store_true")
    parser.add_argument("--deadly", action="store_true")
    parser.add_argument("--odd", type=lambda text: text.split(","), default=[])
    parser.add_argument("--end", default="0")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args()
    if args.group:
        with contextlib.suppress(PermissionError):  # alone it leads its session
            os.setpgid(0, 0)
    if args.handle:
        for handled in HANDLED:
            signal.signal(handled, lambda number, _: received.update([_name(number)]))
    if args.deadly:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # One write a line: `python -u` writes the end of a line apart, and other ranks write between.
    sys.stdout.write(f"up, {len(args.rest)} more words\n")
    sys.stdout.flush()
    sys.stderr.write("the job's own line\n")
    rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "")))
    Path(f"pid{rank}.new").write_text(str(os.getpid()))
    Path(f"pid{rank}.new").replace(f"pid{rank}")
    step = trainer(args.torch) if args.torch else lambda: None
    number, until = 0, time.monotonic() + 60
    while number < STEPS or ((args.deadly or (args.handle and not received)) and time.monotonic() < until):
        step()
        number += 1
        if number == 3 or (number == 7 and args.torch):
            for what in args.odd:
                odd(what, args.folder, number)
        if args.deadly or args.handle:
            time.sleep(0.01)
    if args.handle:
        end = time.monotonic() + AFTER_THE_FIRST_S
        while time.monotonic() < end:
            step()
            time.sleep(0.01)
        print(dict(received), flush=True)
        Path("checkpoint").write_text(f"{dict(received)}\n")
    sys.stdout.write("done\n")
    sys.stdout.flush()
    Path(f"done{rank}").write_text("done\n")
    finish(args.end, rank)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in list(signal.Signals) else f"real-time {number}"


def trainer(which: object) -> Any:
    tests = Path(__file__).resolve().parents[1]
    if which == "standin":
        sys.path.insert(0, str(tests / "torch_standin"))
    else:
        sys.path.insert(0, str(tests / "integration"))
        import fake_compiler  # noqa: F401
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return step


def odd(what: str, folder: Path | None, number: int) -> None:
    if what == "closerange":
        os.closerange(3, 256)
        files = [open(f"data{number}-{index}", "w") for index in range(4)]  # noqa: PTH123, SIM115
        for file in files:
            file.write("the job's data\n")
            file.close()
    elif what == "fork":
        child = os.fork()
        if child == 0:
            print("the child", flush=True)
            sys.exit(3)
        print("its status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    elif what == "wait":
        child = os.fork()
        if child == 0:
            time.sleep(0.1)
            os._exit(4)
        print("the right child:", os.wait()[0] == child, flush=True)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no other child", flush=True)
    elif what == "sigchld":
        signal.signal(signal.SIGCHLD, lambda *_: received.update(["CHLD"]))
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.1)
        print("children that ended:", received["CHLD"], flush=True)
    elif what == "environment":
        # torch itself sets PET_MASTER_PORT, to a free port.
        subprocess.run(["sh", "-c", "env | grep -v -e '^_=' -e '^PET_MASTER_PORT=' | sort"], check=True)
        print(sorted(item for item in os.environ.items() if item[0] != "PET_MASTER_PORT"), flush=True)
    elif what == "chdir":
        Path("elsewhere").mkdir()
        os.chdir("elsewhere")
    elif what == "loader":
        spec = importlib.util.find_spec("torch")
        assert spec is not None and isinstance(spec.loader, importlib.abc.FileLoader)
        print(type(spec.loader).__name__, spec.loader.get_filename(), spec.origin)
        print(len(inspect.getsource(sys.modules["torch"])), importlib.resources.files("torch"))
        print(next(iter(pkgutil.iter_modules(spec.submodule_search_locations))).name, flush=True)
    elif what == "vanish" and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    elif what == "stderr" and number == 3:
        os.close(2)
        file = open("mine", "w")  # noqa: PTH123, SIM115  (it gets the number 2)
        file.write("the job's data\n")
        file.flush()


def finish(how: str, rank: str) -> None:
    how, _, only = how.partition("@")
    if only and only != rank:
        time.sleep(0.5)
        sys.exit(0)
    until = time.monotonic() + 30
    while only and not Path(f"done{1 - int(only)}").exists() and time.monotonic() < until:
        time.sleep(0.01)  # the launcher ends the other rank: not before it is done
    if how.startswith("_exit:"):
        os._exit(int(how.partition(":")[2]))
    if how == "raise":
        raise RuntimeError("the job's own failure")
    if not how.isdecimal():
        os.kill(os.getpid(), signal.Signals[how])
        time.sleep(10)
    sys.exit(int(how))


if __name__ == "__main__":
    main()
