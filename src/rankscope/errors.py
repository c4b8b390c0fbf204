"""All errors of rankscope. Each has three parts: what happened, why, and what to do.

RankscopeError              exit 1
├── UsageError              exit 2: an argument or option is wrong; nothing was started
├── ReadError               a file cannot be read
│   ├── NotATraceError      it is not a trace, or of a format that no reader knows
│   │   └── EmptyTraceError it is empty: a trace that was never written
│   ├── RankError           the rank of a file is not known, or two files have the same rank
│   └── MixedRunsError      the files are of different runs
├── StoreError              the run folder cannot be opened or written
├── CaptureError            this rank cannot be captured; the job continues
├── ToolError               nsys or ncu is not installed, or fails
├── RemoteError             another machine (ssh, kubectl) cannot be reached, or a command fails there
├── MissingPackageError     an optional package is needed and not installed
└── QueryError              the SQL is wrong
"""

from __future__ import annotations

import errno
import os

_LONGEST_PATH = 300
_SYSTEM_HINTS = {
    errno.ENOENT: "It may have been moved or deleted. Check the path.",
    errno.EACCES: "Ask its owner for access to it and to the folders above it: chmod a+rX",
    errno.EPERM: "Ask its owner for access to it and to the folders above it: chmod a+rX",
    errno.EISDIR: "Give the files inside it, or the folder of a whole run.",
    errno.ENAMETOOLONG: "Check the path: a name has at most 255 bytes, a whole path 4095.",
    errno.ENOSPC: "Free some space, or name another folder.",
    errno.EDQUOT: "Free some space, or name another folder.",
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
}


class RankscopeError(Exception):
    """The base of all errors. The command line shows its three parts as lines, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, why: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        """Three lines. What happened is one of them, even if it names a file with a line end in its name."""
        what = self.message.replace("\n", "\\n")
        return "\n  ".join(part for part in (what, self.why, self.hint) if part)

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[str, str, str]]:
        """Keep the three parts apart when an error crosses a process."""
        return type(self), (self.message, self.why, self.hint)


class UsageError(RankscopeError):
    """An argument or option is wrong; nothing was started."""

    exit_code = 2


class ReadError(RankscopeError):
    """A file cannot be read."""


class NotATraceError(ReadError):
    """A file is not a trace, or of a format that no reader knows."""


class EmptyTraceError(NotATraceError):
    """A file is empty: a trace that was never written."""


class RankError(ReadError):
    """The rank of a file is not known, or two files have the same rank."""


class MixedRunsError(ReadError):
    """The files are of different runs, which cannot be compared."""


class StoreError(RankscopeError):
    """The run folder cannot be opened or written."""


class CaptureError(RankscopeError):
    """This rank cannot be captured; the job continues."""


class ToolError(RankscopeError):
    """nsys or ncu is not installed, or fails."""


class RemoteError(RankscopeError):
    """Another machine cannot be reached, or a command fails there."""


class MissingPackageError(RankscopeError):
    """An optional package is needed and not installed."""


class QueryError(RankscopeError):
    """The SQL is wrong."""


def system_hint(error: OSError) -> str:
    """What to do about a refusal of the system."""
    return _SYSTEM_HINTS.get(error.errno or 0, "Check the disk and the path.")


def system_error(error: OSError) -> RankscopeError:
    """What the system refused, in three parts."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
    if len(path) > _LONGEST_PATH:
        path = f"{path[: _LONGEST_PATH // 2]}…{path[-_LONGEST_PATH // 2 :]}"
    what, hint = f"cannot use {path}" if path else "the system refused what is needed", system_hint(error)
    if not path and error.errno == errno.ENOENT:
        what, hint = "the working folder does not exist any more", "Go to another folder: cd"
    return RankscopeError(what, why=f"{error.strerror or error}.", hint=hint)
