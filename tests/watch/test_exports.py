"""What `rankscope watch` sends elsewhere: the status of a Kubeflow TrainJob, OpenTelemetry's protocol; and the watcher
that rank 0 starts. The servers are local ones that keep what they get; there is no Kubeflow and no collector here.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from integration.jobs import PROFILE, PYTHON, STANDIN, environment, run
from rankscope.cli import main
from rankscope.watch import kubeflow
from rankscope.watch.alarms import HOST, SLOW_RANK
from rankscope.watch.kubeflow import TrainJobStatus, trainer_status
from rankscope.watch.metrics import metrics
from simulated_telemetry import Fault, Job, read_state, telemetry, write_rings

TEXT = {"type": "string", "minLength": 1, "maxLength": 64}
METRIC = {
    "type": "object",
    "required": ["name", "value"],
    "additionalProperties": False,
    "properties": {"name": TEXT, "value": TEXT},
}
STATUS = {
    "type": "object",
    "required": ["lastUpdatedTime"],
    "additionalProperties": False,
    "properties": {
        "progressPercentage": {"type": "integer", "minimum": 0, "maximum": 100},
        "estimatedRemainingSeconds": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "metrics": {"type": "array", "maxItems": 256, "items": METRIC},
        "lastUpdatedTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
    },
}
"""TrainerStatus of Kubeflow Trainer's API v1alpha1, with its limits."""


def simulated(folder: Path, ranks: int = 8, ended: bool = False) -> Path:
    job = Job(ranks, steps=100)
    now = time.time_ns()
    steps = telemetry(job, Fault(SLOW_RANK, HOST, (3,), 70, 0.3))
    phases = ("ended",) * ranks if ended else ()
    write_rings(folder, job, steps, phases=phases, ended_unix_ns=now, alive_unix_ns=now)
    return folder


@contextlib.contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[tuple[Any, bytes]]]]:
    """A local server, its address, and the headers and contents of what was POSTed to it."""
    got: list[tuple[Any, bytes]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}", got
        server.shutdown()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that only itself vouches for, and a server's context with it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "ca.crt").write_bytes(signed.public_bytes(pem))
    (folder / "key").write_bytes(key.private_bytes(pem, *form))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    return folder / "ca.crt", context


def test_progress_and_alarms_reach_the_trainjob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path / "run")
    trusted, context = certificate(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    words = ["watch", str(folder), "--once", "--kubeflow", "--total-steps", "404"]
    with receiver(context) as (address, got):
        path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/a/status"
        monkeypatch.setenv(kubeflow.ADDRESS, address + path)
        monkeypatch.setenv(kubeflow.TOKEN, str(tmp_path / "token"))
        assert main(words) == 0  # this server's certificate is not trusted
        assert "--kubeflow failed" in capsys.readouterr().err and got == []
        monkeypatch.setenv(kubeflow.CERTIFICATE, str(trusted))
        assert main(words) == 0
        assert capsys.readouterr().err == ""
    ((headers, content),) = got
    assert headers["Authorization"] == "Bearer secret" and headers["Content-Type"] == "application/json"
    status = json.loads(content)["trainerStatus"]
    jsonschema.validate(status, STATUS)
    values = {metric["name"]: metric["value"] for metric in status["metrics"]}
    assert values["step"] == "100" and values["alarms"] == "1" and values["ranks_alive"] == "8"
    assert values["alarm_1"].startswith("rank 3 is slow")
    assert status["progressPercentage"] == 25
    state, _ = read_state(folder)
    assert status["estimatedRemainingSeconds"] == pytest.approx(303 * state["step_ns"]["median"] / 1e9, abs=1)


def test_a_status_stays_within_kubeflows_limits(tmp_path: Path) -> None:
    state, _ = read_state(simulated(tmp_path))
    state["alarms"] = [{**state["alarms"][0], "text": f"{number} é " + "x" * number} for number in range(300)]
    for total in (None, 1, 50, 10**6, 10**18):
        jsonschema.validate(trainer_status(state, total), STATUS)
    assert trainer_status(state, 50)["progressPercentage"] == 100
    assert "progressPercentage" not in trainer_status(state, None)
    assert len(json.dumps(trainer_status(state, 50))) < 1 << 16
    state["last_step"] = 0
    assert trainer_status(state, 50)["progressPercentage"] == 0


@pytest.mark.slow
def test_at_most_one_report_in_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own: one state a second for 20 s, then the end."""
    state, _ = read_state(simulated(tmp_path))
    now = [1000.0]
    sent: list[float] = []
    monkeypatch.setattr(kubeflow, "monotonic", lambda: now[0])
    monkeypatch.setattr(kubeflow, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with receiver() as (address, got):
        monkeypatch.setenv(kubeflow.ADDRESS, address)
        status = TrainJobStatus(None)
        for second in range(20):
            now[0] = 1000.0 + second
            assert status.report({**state, "last_step": second}) == ""
            sent += [now[0]] * (len(got) - len(sent))
        assert status.report({**state, "last_step": 20, "state": "ended"}) == ""
        sent.append(now[0])
    assert sent == [1000.0 + 5 * number for number in range(5)]
    steps = [json.loads(content)["trainerStatus"]["metrics"][0]["value"] for _, content in got]
    assert steps == [*(f"{5 * number}" for number in range(4)), "20"], "the end is not left out"


@pytest.mark.parametrize(
    ("words", "what"),
    [(["--kubeflow"], f"{kubeflow.ADDRESS} is not set"), (["--total-steps", "9"], "needs --kubeflow")],
)
def test_without_kubeflow(
    tmp_path: Path,
    words: list[str],
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(kubeflow.ADDRESS, raising=False)
    assert main(["watch", str(simulated(tmp_path)), "--once", *words]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.slow
def test_opentelemetry_gets_the_metrics_of_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    folder = simulated(tmp_path / "run", ended=True)
    with receiver() as (address, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        assert main(["watch", str(folder), "--otlp"]) == 0
    sent = ExportMetricsServiceRequest.FromString(got[-1][1])
    (scope,) = sent.resource_metrics[0].scope_metrics
    received = {
        (metric.name, metric.unit): [
            (
                {label.key: label.value.string_value for label in point.attributes},
                point.as_double or point.as_int,
            )
            for point in metric.gauge.data_points
        ]
        for metric in scope.metrics
    }
    expected = {(metric.name, metric.unit): metric.samples for metric in metrics(read_state(folder)[0])}
    assert received == expected and len(received) == 8


def test_without_opentelemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.metrics", None)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter", None)
    assert main(["watch", str(simulated(tmp_path)), "--once", "--otlp"]) == 1
    assert "pip install 'rankscope[otlp]'" in capsys.readouterr().err


@pytest.mark.slow
def test_rank_0_starts_a_watcher_that_ends_with_it(tmp_path: Path) -> None:
    with receiver() as (address, got):
        env = environment(KUBEFLOW_TRAINER_SERVER_URL=address)
        options = "--watcher=--kubeflow --total-steps 20 --every 0.2s"
        job = [PYTHON, STANDIN, "--steps", "20", "--step-seconds", "0.05"]
        run([*PROFILE, "--watch", options, "-o", "a", *job], tmp_path, env=env)
    last = json.loads(got[-1][1])["trainerStatus"]
    assert last["progressPercentage"] == 100 and {"name": "step", "value": "19"} in last["metrics"]


def test_a_watcher_needs_telemetry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--watcher=--kubeflow", "true"]) == 2
    assert "--watcher needs --watch" in capsys.readouterr().err
    assert main(["profile", "--watch", "--watcher=--on-alarm 'mail", "true"]) == 2
    assert "cannot be divided into words" in capsys.readouterr().err
