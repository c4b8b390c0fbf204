"""--on-signal: a window each time the signal comes."""

from __future__ import annotations

import signal
import threading

from rankscope.capture.schedule import OnSignal
from rankscope.errors import CaptureError
from rankscope.inapp.engine import Engine


def listen(engine: Engine) -> None:
    """Answer the signal, unless the script answers it already."""
    when = engine.plan.when
    if not isinstance(when, OnSignal):
        return
    number = signal.Signals[f"SIG{when.signal}"]
    if threading.current_thread() is not threading.main_thread():
        raise CaptureError(f"--on-signal {when.signal} needs torch to be imported by the main thread")
    if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
        raise CaptureError(
            f"--on-signal {when.signal}: the script answers SIG{when.signal} itself",
            hint="Choose another signal.",
        )
    signal.signal(number, lambda *_: engine.request())
    engine.voice.tell(f"waiting for kill -{when.signal} {engine.files.manifest['pid']}")
