"""What a profiler starts in place of the application: says its process id, then becomes it.

``python -I -S start.py PIDFILE OUT ERR PARENT VARIABLES COMMAND…``. The profiler may stand between the job and its
streams: OUT and ERR are file descriptors of the job's stdout and stderr (where the profiler has closed them, those
of PARENT serve), "-" for none. VARIABLES is a file with what the job's environment has and the profiler's has not
(ncu runs Python of its own, which must not take itself for a rank), as NAME=VALUE or NAME for unset, each ended by
a zero byte. Kept to what starts in a few milliseconds.
"""

import contextlib
import os
import signal
import sys


def main(words: list[str]) -> None:
    pid_file, out, err, parent, variables, *command = words
    with open(pid_file, "w") as file:  # noqa: PTH123  (pathlib costs more than all the rest)
        file.write(str(os.getpid()))
    if out != "-":
        for stream, descriptor in ((1, int(out)), (2, int(err))):
            _take(descriptor, stream, parent)
    with open(variables, "rb") as changes:  # noqa: PTH123
        for entry in changes.read().split(b"\0")[:-1]:
            name, given, value = entry.partition(b"=")
            os.environb.pop(name, None)
            if given:
                os.environb[name] = value
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it ignores stays ignored
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
        with contextlib.suppress(OSError):  # then the profiler's own way to the log must do
            os.dup2(os.open(f"/proc/{parent}/fd/{number}", os.O_WRONLY | os.O_APPEND), number)


if __name__ == "__main__":
    main(sys.argv[1:])
