"""All errors of rankscope. Each has three parts: what happened, why, and what to do.

RankscopeError              exit 1
├── UsageError              exit 2: an argument or option is wrong; nothing was started
├── ReadError               a file cannot be read
│   ├── NotATraceError      it is not a trace, or of a format that no reader knows
│   │   ├── EmptyTraceError it is empty: a trace that was never written
│   │   └── NoTimesError    it has no times: it can only add to the trace of its rank
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


class NoTimesError(NotATraceError):
    """A file has no times: it can only add to the trace of its rank."""


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
