"""The files in deploy/ and the GitHub Action: run here where that is possible, else checked against what the platform
accepts. There is no cluster, no cloud and no GitHub here; what stands for them is named as a fake.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from conftest import DATA, ROOT
from fake_programs import Fake
from integration.jobs import environment
from rankscope.integrations.environment import plan_of
from rankscope.watch.metrics import metrics
from simulated_telemetry import Job, read_state, telemetry, write_rings

DEPLOY = ROOT / "deploy"


# -- Kubeflow and SkyPilot


def test_the_runtime_of_kubeflow() -> None:
    """Its form is that of the definition trainer.kubeflow.org_clustertrainingruntimes (Trainer 2.2)."""
    runtime = yaml.safe_load((DEPLOY / "kubeflow-runtime.yaml").read_text())
    assert (runtime["apiVersion"], runtime["kind"]) == (
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
    )
    assert runtime["spec"].keys() == {"mlPolicy", "template"}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1, "torch": {}}
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    pod = job["template"]["spec"]["template"]["spec"]
    whole = {**pod, "restartPolicy": "Never"}
    batch = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**batch, "spec": {"template": {"spec": whole}}}, "1.31", strict=True)
    (container,) = pod["containers"]
    assert job["name"] == container["name"] == "node", "the operator gives the job's words to this container"
    names = [variable["name"] for variable in container["env"]]
    assert names == ["TRAINJOB", "RANKSCOPE"], "a variable is put into those after it"
    plan = plan_of(container["env"][1]["value"].replace("$(TRAINJOB)", "a"))
    assert plan.watch and (plan.output, plan.watcher) == ("/runs/a", "--kubeflow")


def test_the_task_of_skypilot(tmp_path: Path) -> None:
    """Its `run` with SkyPilot's variables, and a fake torchrun."""
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    (folder,) = task["file_mounts"]
    assert (plan_of(task["envs"]["RANKSCOPE"]).output or "").startswith(folder)
    fake = Fake(tmp_path / "bin", "torchrun")
    sky = {"NUM_NODES": "2", "NODE_RANK": "1", "NUM_GPUS_PER_NODE": "8", "NODE_IPS": "10.0.0.1\n10.0.0.2"}
    env = {f"SKYPILOT_{name}": value for name, value in sky.items()}
    path = f"{fake.folder}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", task["run"]], env={**env, "PATH": path}, check=True)
    words = "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1 --master-port 29500 train.py"
    assert fake.calls == [["torchrun", *words.split()]]


# -- enroot


@pytest.fixture
def hook(tmp_path: Path) -> Callable[[dict[str, str]], tuple[str, str, str]]:
    """Runs the hook as enroot does, with a folder of the test's own: mounts, variables, and stderr."""
    folder = tmp_path / "rankscope"
    script = tmp_path / "50-rankscope.sh"
    text = (DEPLOY / "enroot-hook.sh").read_text()
    assert text.count("\nfolder=/opt/rankscope\n") == 1
    script.write_text(text.replace("\nfolder=/opt/rankscope\n", f"\nfolder={folder}\n"))
    script.chmod(0o755)
    mounts, variables = tmp_path / "mounts", tmp_path / "environ"

    def run_hook(job: dict[str, str]) -> tuple[str, str, str]:
        mounts.write_text("")
        variables.write_text("PYTHONPATH=/old\nPYTHONPATH=/image\nHOME=/root\n")
        env = {
            "PATH": os.environ["PATH"],
            "ENROOT_MOUNTS": str(mounts),
            "ENROOT_ENVIRON": str(variables),
            **job,
        }
        done = subprocess.run([str(script)], env=env, capture_output=True, text=True, check=True)
        return mounts.read_text(), variables.read_text(), done.stderr

    return run_hook


def test_the_hook_of_enroot_puts_rankscope_into_a_container(
    tmp_path: Path, hook: Callable[[dict[str, str]], tuple[str, str, str]]
) -> None:
    folder = tmp_path / "rankscope"
    assert hook({}) == ("", "PYTHONPATH=/old\nPYTHONPATH=/image\nHOME=/root\n", "")
    words = "profile --steps 20:24 -o 'runs/a b'"
    mounts, _, err = hook({"RANKSCOPE": words})
    assert mounts == "" and f"not captured, the job goes on: there is no {folder}" in err
    about = folder / "rankscope_autoload-0.2.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rankscope-autoload\nVersion: 0.2.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nrankscope = rankscope_autoload:load\n")
    shutil.copy(ROOT / "autoload" / "rankscope_autoload.py", folder)
    mounts, variables, err = hook({"RANKSCOPE": words})
    assert mounts == f"{folder} {folder} none x-create=dir,bind,ro,nosuid,nodev,private\n" and err == ""
    inside = dict(line.split("=", 1) for line in variables.splitlines())
    assert inside["RANKSCOPE"] == words and plan_of(words).output == "runs/a b"
    assert inside["PYTHONPATH"] == f"{folder}:/image"
    code = (
        "from importlib.metadata import entry_points\n"
        "print([point.load().__name__ for point in entry_points(group='torch.backends', name='rankscope')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), **inside},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['load']\n", "what `import torch` loads in the container"


# -- the GitHub Action


class FakeGitHub:
    """A fake of GitHub's API for the comments of an issue: what the action's step calls, and nothing else."""

    def __init__(self, comments: list[dict[str, Any]], refuses: bool = False) -> None:
        fake = self
        self.comments = comments
        self.calls: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                fake.calls.append(f"{self.command} {self.path}")
                size = int(self.headers["Content-Length"] or 0)
                content = json.loads(self.rfile.read(size) or "null")
                allowed = self.headers["Authorization"] == "Bearer secret" and not refuses
                body = json.dumps(fake.answer(self.command, self.path, content) if allowed else {}).encode()
                self.send_response(200 if allowed else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, method: str, path: str, content: Any) -> Any:
        if method == "GET":
            page = re.fullmatch(r"/repos/team/model/issues/7/comments\?per_page=100&page=(\d+)", path)
            assert page is not None
            end = 100 * int(page[1])
            return self.comments[end - 100 : end]
        if method == "POST":
            assert path == "/repos/team/model/issues/7/comments"
            self.comments.append({"id": len(self.comments), **content})
            return self.comments[-1]
        self.comments[int(path.removeprefix("/repos/team/model/issues/comments/"))] |= content
        return content


@pytest.fixture
def github() -> Iterator[Callable[..., FakeGitHub]]:
    started: list[FakeGitHub] = []

    def start(*args: Any, **kwargs: Any) -> FakeGitHub:
        started.append(FakeGitHub(*args, **kwargs))
        return started[-1]

    yield start
    for fake in started:
        fake.server.shutdown()
        fake.server.server_close()


def run_action(folder: Path, fake: FakeGitHub, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """The action's step as a runner starts it: exit code, its output, and the files that it leaves for the runner."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    context = {
        "github.token": "secret",
        "github.action_path": str(ROOT),
        "github.event.pull_request.number": "7",
    }

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: context[match[1]], text)

    for name, about in action["inputs"].items():
        context[f"inputs.{name}"] = inputs.get(name.replace("-", "_"), filled(about.get("default", "")))
    assert "${{" not in step["run"], "a value that stands in the script is run as a part of it"
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env = {
        **environment(),
        **{name: filled(text) for name, text in step["env"].items()},
        **{name: str(path) for name, path in files.items()},
        "RUNNER_TEMP": str(folder),
        "GITHUB_API_URL": f"http://127.0.0.1:{fake.server.server_port}",
        "GITHUB_REPOSITORY": "team/model",
    }
    script = folder / "step.sh"
    script.write_text(step["run"])
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]  # as a runner's `shell: bash`
    done = subprocess.run(shell, cwd=folder, env=env, capture_output=True, text=True, check=False)
    written = {name: path.read_text() if path.exists() else "" for name, path in files.items()}
    return done.returncode, done.stdout + done.stderr, written


@pytest.mark.slow
def test_the_action_fails_and_comments_once(tmp_path: Path, github: Callable[..., FakeGitHub]) -> None:
    for name in ("seqpar-gloo4", "seqpar-gloo4-slow2"):
        shutil.copytree(DATA / name, tmp_path / name)
    others = [{"id": number, "body": f"> <!-- rankscope diff --> {number}"} for number in range(100)]
    fake = github(others)
    inputs = {"base": "seqpar-gloo4", "new": "seqpar-gloo4-slow2", "reports": "steps,collectives"}
    code, output, written = run_action(tmp_path, fake, **inputs)
    assert code == 3 and written["GITHUB_OUTPUT"] == "exit-code=3\n", output
    assert len(fake.comments) == 101 and fake.calls[-1].startswith("POST ")
    body = fake.comments[100]["body"]
    assert body.startswith("<!-- rankscope diff -->\n### rankscope diff: slower by more than 3%\n")
    row = "collectives: reduce_scatter"
    assert row in body and row in written["GITHUB_STEP_SUMMARY"]
    code, _, written = run_action(tmp_path, fake, **{**inputs, "new": "seqpar-gloo4"})
    assert code == 0 and written["GITHUB_OUTPUT"].endswith("exit-code=0\n")
    assert len(fake.comments) == 101 and fake.calls[-1].startswith("PATCH ")
    assert "no row is slower by more than 3%" in fake.comments[100]["body"]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_action_without_permission_and_without_a_run(
    tmp_path: Path, github: Callable[..., FakeGitHub]
) -> None:
    shutil.copytree(DATA / "seqpar-nccl1-bf16", tmp_path / "a")
    fake = github([], refuses=True)
    code, output, written = run_action(tmp_path, fake, base="a", new="a", reports="steps")
    assert code == 0 and "::warning::no comment was written" in output and len(fake.calls) == 1
    assert "no row is slower" in written["GITHUB_STEP_SUMMARY"]
    code, output, _ = run_action(tmp_path, fake, base="a", new="b; echo injected > c")
    assert code == 1 and "rankscope: " in output and not (tmp_path / "c").exists() and len(fake.calls) == 1


def test_a_comment_has_github_s_size_and_calls_nobody(
    tmp_path: Path, github: Callable[..., FakeGitHub]
) -> None:
    fake = github([])
    (tmp_path / "table.md").write_text("@team " + "x" * 100_000)
    env = {
        **environment(
            TOKEN="secret", TITLE="speed", VERDICT="slower", NUMBER="7", GITHUB_REPOSITORY="team/model"
        ),
        "GITHUB_API_URL": f"http://127.0.0.1:{fake.server.server_port}",
    }
    comment = [sys.executable, str(DEPLOY / "github_comment.py"), "table.md"]
    subprocess.run(comment, cwd=tmp_path, env=env, check=True)
    body = fake.comments[0]["body"]
    assert body.startswith("<!-- speed -->\n### speed: slower\n") and "@team" not in body
    assert 65_000 < len(body) < 65_536


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck (tests/install-packages.sh)")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    scripts = [DEPLOY / "enroot-hook.sh"]
    texts = (action["runs"]["steps"][0]["run"], yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())["run"])
    for number, text in enumerate(texts):
        scripts.append(tmp_path / f"{number}.sh")
        scripts[-1].write_text(f"#!/usr/bin/env bash\n{text}")
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


# -- Grafana


def test_the_dashboard_asks_only_for_what_there_is(tmp_path: Path) -> None:
    """Every metric and label in its queries and legends is one that `rankscope watch` writes, and all are shown."""
    job = Job(8, steps=100)
    now = time.time_ns()
    write_rings(tmp_path, job, telemetry(job), phases=(), ended_unix_ns=now, alive_unix_ns=now)
    written = {metric.name: set(metric.samples[0][0]) for metric in metrics(read_state(tmp_path)[0])}
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\brankscope_\w+", target["expr"])
            labels = {*re.findall(r"[{,]\s*(\w+)\s*=~?", target["expr"])}
            labels |= {*re.findall(r"{{(\w+)}}", target["legendFormat"])}
            labels |= {*re.findall(r"by \((\w+)\)", target["expr"])}
            assert names and all(labels <= written[name] for name in names), target
            asked |= {*names}
    assert asked == written.keys()
    (query,) = [item["query"]["query"] for item in dashboard["templating"]["list"] if item["name"] == "run"]
    match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert match is not None and match[2] in written[match[1]]


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """What its schema requires (kinds/dashboard/dashboard_kind.cue), and panels that lie beside each other."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert dashboard["title"] and dashboard["schemaVersion"] >= 36 and "id" not in dashboard
    names = {item["name"] for item in dashboard["templating"]["list"]}
    assert (
        {*re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard["panels"]))} == names == {"datasource", "run"}
    )
    cells: list[tuple[int, int]] = []
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells += [
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ]
    assert len(cells) == len({*cells}), "two panels overlap"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len({*ids}) and {panel["type"] for panel in dashboard["panels"]} == {
        "stat",
        "timeseries",
    }
