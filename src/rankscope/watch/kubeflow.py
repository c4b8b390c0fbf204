"""Progress and alarms in the status of a Kubeflow TrainJob: the protocol of Kubeflow's proposal 2779.

The operator gives the pods of a TrainJob an address, a token and a certificate; a POST replaces the whole
`status.trainerStatus`. Limits: pkg/apis/trainer/v1alpha1/trainjob_types.go, pkg/statusserver/server.go (Trainer 2.2).
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from rankscope.errors import UsageError
from rankscope.units import shorten_middle
from rankscope.watch.state import FINAL_STATES, State

ADDRESS = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
PERIOD_S = 5.0
"""The least time between two reports, as Kubeflow's own SDK keeps it."""
_TEXT = 64
"""Characters of a metric's name and of its value."""
_ALARMS = 50
"""Of 256 metrics; all of them fit into the 64 kB of a request."""
_TIMEOUT_S = 5.0


class TrainJobStatus:
    """Reports the state of a job. A report that fails is left out; the next one has everything."""

    def __init__(self, total_steps: int | None) -> None:
        if not os.environ.get(ADDRESS):
            raise UsageError(
                f"--kubeflow: {ADDRESS} is not set",
                why="Kubeflow Trainer sets it in the pods of a TrainJob if its feature gate TrainJobStatus is on.",
                hint="Turn it on in the controller: --feature-gates=TrainJobStatus=true",
            )
        self._total_steps = total_steps
        self._sent = -PERIOD_S

    def report(self, state: State) -> str:
        """Send the state, unless the last report was just now; returns why that failed, or "". The last state of a
        job is sent in any case."""
        wait_s = PERIOD_S - (monotonic() - self._sent)
        if wait_s > 0 and state["state"] not in FINAL_STATES:
            return ""
        sleep(max(wait_s, 0))
        self._sent = monotonic()
        content = json.dumps({"trainerStatus": trainer_status(state, self._total_steps)}).encode()
        headers = {"Content-Type": "application/json"}
        try:
            if token := os.environ.get(TOKEN):  # read each time: it is replaced every hour
                headers["Authorization"] = f"Bearer {Path(token).read_text().strip()}"
            trusted = ssl.create_default_context(cafile=os.environ.get(CERTIFICATE) or None)
            request = urllib.request.Request(os.environ[ADDRESS], content, headers)
            urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted).close()
        except (OSError, ValueError) as error:
            return f"{error}"
        return ""


def trainer_status(state: State, total_steps: int | None) -> dict[str, Any]:
    """The field `trainerStatus`. Without `total_steps` nothing is said of progress."""
    step, step_s = state["last_step"], (state["step_ns"] or {}).get("median", 0) / 1e9
    values = {
        "step": f"{step}",
        "ranks_alive": f"{state['alive_ranks']}",
        "alarms": f"{len(state['alarms'])}",
    }
    if step_s:
        values["step_seconds"] = f"{step_s:.4g}"
    for number, alarm in enumerate(state["alarms"][:_ALARMS], 1):
        values[f"alarm_{number}"] = shorten_middle(alarm["text"], _TEXT)[:_TEXT]
    status: dict[str, Any] = {
        "metrics": [{"name": name, "value": value} for name, value in values.items()],
        "lastUpdatedTime": f"{datetime.fromtimestamp(state['unix_ns'] // 10**9, tz=timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
    }
    if total_steps:
        done = min(step + 1 if step else 0, total_steps)  # steps are counted from 0
        status["progressPercentage"] = 100 * done // total_steps
        if step_s and state["state"] == "running":
            status["estimatedRemainingSeconds"] = min(round((total_steps - done) * step_s), 2**31 - 1)
    return status
