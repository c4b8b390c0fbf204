from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from rankscope.views import PIPED_WIDTH, terminal_width, use_color


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_width_of_a_pipe_is_generous() -> None:
    assert terminal_width(io.StringIO()) == PIPED_WIDTH == 160


def test_width_of_a_closed_stream() -> None:
    stream = io.StringIO()
    stream.close()
    assert terminal_width(stream) == PIPED_WIDTH
    assert not use_color(stream)


def test_width_of_a_terminal_without_a_descriptor() -> None:
    assert terminal_width(Terminal()) == 80


@pytest.mark.parametrize(
    ("columns", "width"), [("72", 72), ("0", 160), ("wide", 160), ("-3", 160), ("²", 160)]
)
def test_columns(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width(io.StringIO()) == width


@pytest.mark.parametrize(("columns", "width"), [(97, 97), (0, 80)])
def test_width_of_a_real_terminal(columns: int, width: int) -> None:
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        with os.fdopen(os.dup(terminal), "w") as stream:
            assert terminal_width(stream) == width
            assert use_color(stream)
    finally:
        os.close(controller)
        os.close(terminal)


def test_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_color(Terminal())
    assert not use_color(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert use_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(Terminal())


def test_an_empty_no_color_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert use_color(Terminal())


def test_no_color_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not use_color(Terminal())
