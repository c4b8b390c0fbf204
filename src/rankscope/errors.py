"""Every error a user can meet, in three parts: what happened, why, and what to do.

RankscopeError              exit 1
├── UsageError              exit 2: the command line alone is wrong; nothing was started
├── ReadError               a file cannot be read as what it claims to be
│   ├── NotATraceError      it is not a trace, or of a kind no reader knows
│   │   └── EmptyTraceError it has no bytes at all: a trace that was never written
│   └── RankError           the rank of a file cannot be told, or two files claim one rank
├── StoreError              the run folder cannot be opened or written
├── CaptureError            this rank cannot be captured; the job it belongs to runs on
├── ToolError               nsys or ncu is not there, or does not do what was asked
├── RemoteError             another machine (ssh, kubectl) cannot be reached, or does not do what was asked
├── MissingPackageError     an optional package is asked for and not installed
└── QueryError              the SQL is wrong
"""

from __future__ import annotations


class RankscopeError(Exception):
    """What happened, why, and what to do next. Shown as three lines, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, why: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.message, self.why, self.hint) if part)

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[str, str, str]]:
        """Keep the three parts apart when an error crosses a process."""
        return type(self), (self.message, self.why, self.hint)


class UsageError(RankscopeError):
    exit_code = 2


class ReadError(RankscopeError):
    pass


class NotATraceError(ReadError):
    pass


class EmptyTraceError(NotATraceError):
    pass


class RankError(ReadError):
    pass


class StoreError(RankscopeError):
    pass


class CaptureError(RankscopeError):
    pass


class ToolError(RankscopeError):
    pass


class RemoteError(RankscopeError):
    pass


class MissingPackageError(RankscopeError):
    pass


class QueryError(RankscopeError):
    pass
