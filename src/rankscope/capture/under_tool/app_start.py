"""Started by a profiler in place of the application: writes its process id, then becomes the application.

``python -I -S app_start.py PIDFILE OUT ERR PARENT GROUP VARIABLES COMMAND…``. OUT and ERR are file descriptors of the
job's stdout and stderr, because the profiler may redirect both; "-" for none. Where the profiler has closed them,
PARENT's are used. GROUP is the job's process group, which the profiler has left. VARIABLES is a file with the
differences between the job's environment and the profiler's (ncu runs Python of its own, which must not be taken for a
rank): NAME=VALUE, or NAME for unset, each ended by a zero byte. It imports little, to start in a few milliseconds.
"""

import contextlib
import os
import signal
import sys


def main(words: list[str]) -> None:
    pid_file, out, err, parent, group, variables, *command = words
    with contextlib.suppress(OSError):  # the profiler has started a session of its own
        os.setpgid(0, int(group))
    try:
        with open(pid_file, "x") as file:  # noqa: PTH123  (pathlib takes longer to import than all the rest)
            file.write(str(os.getpid()))
    except FileExistsError:  # too late: the profiler was given up, and the job is started in another way
        sys.exit(1)
    if out != "-":
        for stream, descriptor in ((1, int(out)), (2, int(err))):
            _take(descriptor, stream, parent)
    with open(variables, "rb") as changes:  # noqa: PTH123
        for entry in changes.read().split(b"\0")[:-1]:
            name, given, value = entry.partition(b"=")
            os.environb.pop(name, None)
            if given:
                os.environb[name] = value
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores these, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"rankscope: cannot start {command[0]}: {error.strerror}\n")
        sys.exit(126)


def _take(descriptor: int, number: int, parent: str) -> None:
    try:
        os.dup2(descriptor, number)
        os.close(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # then output goes where the profiler sends it
            os.dup2(os.open(f"/proc/{parent}/fd/{number}", os.O_WRONLY | os.O_APPEND), number)


if __name__ == "__main__":
    main(sys.argv[1:])
