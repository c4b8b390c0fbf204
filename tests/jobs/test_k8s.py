"""Kubernetes manifests: valid by the cluster's own definitions, the command exact, mistakes found before anything
is sent. There is no cluster here: kubectl is a recording fake.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import ROOT
from fake_programs import Fake
from rankscope.cli import end_tables, main
from rankscope.jobs import k8s

Validator = jsonschema.Draft7Validator  # jsonschema.validate() would check the large schema each time
GOLDEN = Path(__file__).parent / "golden"
AWKWARD = (
    "python",
    "train.py",
    "a b",
    "it's",
    'say "x"',
    "$(HOME) $$ ${A}",
    "line\nbreak",
    "",
    "yes",
    "*",
    "1e3",
    "ü",
)
JOBS = {
    "mpijob-pvc": ["--nodes", "2", "--ppn", "8", "--pvc", "reports", "--steps", "10:12"],
    "mpijob-efa-nsys": [
        *("--nodes", "4", "--ppn", "8", "--efa", "4", "--memory", "512Gi", "--cpu", "96", "--tool", "nsys"),
        *("--gpu-metrics-device", "all", "--ranks", "all", "--env", "NCCL_DEBUG=INFO", "--namespace", "team"),
    ],
    "mpijob-per-node": [
        *("--nodes", "2", "--ppn", "8", "--pvc", "reports", "--launcher", "torchrun", "--tool", "nsys"),
        *("--per-node", "--stats=nsys:cuda_gpu_kern_sum", "--install-operator"),
    ],
    "pytorchjob": ["--kind", "pytorchjob", "--nodes", "3", "--ppn", "4", "--shm", "32Gi", "--stats"],
    "pytorchjob-none": ["--kind", "pytorchjob", "--ppn", "4", "--tool", "none"],
    "job-one-node": ["--kind", "job", "--ppn", "2", "--gpus", "0"],
    "job-two-nodes-ncu": ["--kind", "job", "--nodes", "2", "--tool", "ncu", "--ranks", "0"],
}


@pytest.fixture(autouse=True)
def table_names_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a process for each list; tests/cli/test_end_tables.py tests it."""
    monkeypatch.setattr(end_tables, "missing_libraries", lambda: ["duckdb"])


def rendered(
    capsys: pytest.CaptureFixture[str], *options: str, command: tuple[str, ...] = ("python", "t.py")
) -> str:
    argv = ["job", "k8s", "--image", "registry.example.org/team/train:1", "--name", "train", *options]
    assert main([*argv, "--", *command]) == 0
    return capsys.readouterr().out


@pytest.fixture
def crd(shared: Path) -> dict[str, Any]:
    return _crd(shared / "public" / "kubeflow" / "mpijob-crd.yaml.gz")


@functools.cache
def _crd(path: Path) -> dict[str, Any]:
    """The MPIJob's schema, with every field that it does not name made an error."""
    text = gzip.decompress(path.read_bytes())
    definition = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v2beta1"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}  # the cluster's own, not in the definition
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def pod_templates(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for item in node for found in pod_templates(item)]
    if not isinstance(node, dict):
        return []
    here = [node["template"]] if "template" in node else []
    return here + [found for value in node.values() for found in pod_templates(value)]


@pytest.mark.parametrize("name", JOBS)
def test_manifests_are_golden_and_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, *JOBS[name])
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    for document in yaml.safe_load_all(text):
        if not document["apiVersion"].startswith("kubeflow"):
            kubernetes_validate.validate(document, "1.31", strict=True)
        for template in pod_templates(document):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
            kubernetes_validate.validate(pod, "1.31", strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_manifests_match_the_definition_of_an_mpijob(
    name: str, capsys: pytest.CaptureFixture[str], crd: dict[str, Any]
) -> None:
    replicas = crd["properties"]["spec"]["properties"]["mpiReplicaSpecs"]["additionalProperties"]
    for document in yaml.safe_load_all(rendered(capsys, *JOBS[name])):
        if document["kind"] == "MPIJob":
            Validator(crd).validate(document)
        for template in pod_templates(document):  # a PyTorchJob has the same pod templates
            Validator(replicas["properties"]["template"]).validate(template)


def test_the_schema_refuses_a_field_it_does_not_know(
    capsys: pytest.CaptureFixture[str], crd: dict[str, Any]
) -> None:
    job = yaml.safe_load(rendered(capsys))
    job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        Validator(crd).validate(job)


def kubernetes_expands(word: str) -> str:
    """$$ is $; the variables named here are not set, so $(NAME) stays."""
    return re.sub(r"\$\$", "$", word)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_the_command_comes_through_exactly(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "--kind", kind, command=AWKWARD)
    commands = [
        c["command"]
        for t in pod_templates(list(yaml.safe_load_all(text)))
        for c in t["spec"]["containers"]
        if "command" in c
    ]
    for words in commands:
        expanded = [kubernetes_expands(word) for word in words]
        assert tuple(expanded[-len(AWKWARD) :]) == AWKWARD
        assert expanded[expanded.index("rankscope") :][:4] == ["rankscope", "profile", "-o", "/reports/train"]


@pytest.mark.slow
@settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the table of characters takes a second
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_yaml_reads_back_what_was_written(words: list[str]) -> None:
    job = k8s.K8sJob("train", "i", ("python", *words), "job", profiled=False)
    [command] = words_of(k8s.manifest(job))
    assert [kubernetes_expands(word) for word in command[-len(words) :]] == words


TEXTS = (
    "yes",
    "No",
    "null",
    "~",
    "1e3",
    "0x1f",
    "12:30",
    "2024-01-01",
    "a: b",
    "- x",
    "#",
    "=",
    "x:",
    "{name}",
)


def test_yaml_quotes_what_would_be_something_else() -> None:
    job = k8s.K8sJob("null", "i", TEXTS, "job", env={"NO": "no", "A": "{key}"}, pvc="1e3", namespace="12")
    document = yaml.safe_load(k8s.manifest(job))
    assert (document["metadata"]["name"], document["metadata"]["namespace"]) == ("null", "12")
    [container] = document["spec"]["template"]["spec"]["containers"]
    assert tuple(container["command"][-len(TEXTS) :]) == TEXTS
    assert [one["value"] for one in container["env"][-2:]] == ["no", "{key}"]


def words_of(text: str) -> list[list[str]]:
    """The commands of the pods that have one."""
    templates = pod_templates(list(yaml.safe_load_all(text)))
    return [c["command"] for t in templates for c in t["spec"]["containers"] if "command" in c]


def follow(words: list[str], *some: str) -> bool:
    """Whether these words stand beside each other."""
    return any(tuple(words[at : at + len(some)]) == some for at in range(len(words)))


def test_mpirun_gives_the_ranks_the_first_worker(capsys: pytest.CaptureFixture[str]) -> None:
    [words] = words_of(rendered(capsys, "--nodes", "2", "--ppn", "4"))
    assert words[:2] == ["sh", "-c"] and 'head -n 1 "$$hosts"' in words[2]
    assert follow(words, "-np", "8", "--map-by", "ppr:4:node")
    assert follow(words, "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "PYTHONUNBUFFERED", "rankscope")
    [words] = words_of(rendered(capsys, "--nodes", "2", "--ppn", "4", "--launcher", "torchrun"))
    assert follow(words, "-np", "2", "--map-by", "ppr:1:node")
    assert follow(
        words, "torchrun", "--nnodes=2", "--nproc-per-node=4", "--no-python", "rankscope", "profile"
    )


def test_one_report_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    """The profiler stands before torchrun; in pods without a launcher it is told which node this is."""
    around = ("--tool", "nsys", "--per-node")
    [words] = words_of(rendered(capsys, *around, "--nodes", "2", "--launcher", "torchrun"))
    assert follow(words, "--per-node", "--stats=true", "--", "torchrun")
    for words in words_of(rendered(capsys, *around, "--nodes", "2", "--kind", "pytorchjob")):
        assert follow(words, "--rank", "$(RANK)", "--local-rank", "0", "--node-rank", "$(RANK)")
        assert follow(words, "--world-size", "2", "--", "torchrun", "--nnodes=2", "--node-rank=$(RANK)")
        assert words[-3:] == ["--no-python", "python", "t.py"]


def test_the_start_of_mpirun_is_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (tests/install-packages.sh installs it)")
    for script in (k8s._START_OF_MPIRUN, k8s._START_OF_TORCHRUN):
        done = subprocess.run(
            ["shellcheck", "-s", "sh", "-"], input=script, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_installing_the_operator_with_a_fake_kubectl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is applied is said, before and after; a cluster that has the operator is left alone."""
    fake = Fake(tmp_path / "bin", "kubectl")
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    missing = (["get", "crd"], (1, "", "Error from server (NotFound): no"))
    fake.answer(missing, (["apply"], (0, "namespace/mpi-operator serverside-applied\n", "")))
    argv = ["job", "k8s", "--image", "i", "--name", "train", "--submit", "--install-operator"]
    assert main([*argv, "--", "python", "t.py"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Installing the MPI operator v0.8.2: kubectl apply --server-side -f https://")
    assert said[1] == "  namespace/mpi-operator serverside-applied"
    verbs = [call[1] for call in fake.calls]
    assert verbs == ["get", "apply", "wait", "wait", "create"], "the job comes when the operator is there"
    fake.answer((["get", "crd"], (0, "mpijobs.kubeflow.org", "")))
    assert main([*argv, "--", "python", "t.py"]) == 0
    assert [call[1] for call in fake.calls[len(verbs) :]] == ["get", "create"]
    assert "Installing" not in capsys.readouterr().err


def capabilities(text: str) -> bool:
    return "SYS_ADMIN" in text


def test_administrator_only_where_counters_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert not capabilities(rendered(capsys))
    assert not capabilities(rendered(capsys, "--tool", "nsys"))
    assert capabilities(rendered(capsys, "--tool", "nsys", "--gpu-metrics-device", "0"))
    assert capabilities(rendered(capsys, "--tool", "ncu"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nodes", "0"], "--nodes 0"),
        (["--ppn", "x"], "--ppn: invalid int value: 'x'"),
        (["--name", "Not_A_Name"], "is not a valid job name"),
        (["--image", ""], "no --image"),
        (["--memory", "lots"], "--memory 'lots' cannot be used"),
        (["--efa", "4"], "--efa needs --memory"),
        (["--hugepages", "3Mi", "--memory", "1Gi", "--shm", "1Mi"], "not a whole number of pages"),
        (["--shm", "64Gi", "--memory", "32Gi"], "more than --memory"),
        (["--cpu", "many"], "--cpu 'many'"),
        (["--gpus", "-1"], "--gpus -1"),
        (["-o", "runs/a"], "--output is not for a job"),
        (["--ranks", "x:y"], "x:y"),
        (["--env", "A"], "--env A has no value"),
        (["--env", "A B=1"], "--env 'A B'"),
        (["--pvc", "Rep orts"], "--pvc"),
        (["--namespace", "x/y"], "--namespace"),
        (["--host-path", "reports"], "--host-path"),
        (["--image", "a b"], "--image"),
        (["--set", "full"], "option of --tool ncu"),
        (["--kind", "job", "--launcher", "mpirun"], "--launcher mpirun is not for a Job"),
        (["--tool", "nsys", "--per-node"], "--per-node is for torchrun"),
        (["--kind", "job", "--install-operator"], "--install-operator is not for a plain Job"),
        (["--stats", "--ranks", "1"], "--stats needs rank 0"),
    ],
)
def test_mistakes_are_said_before_anything_is_sent(
    options: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(tmp_path / "bin", "kubectl")
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    given = options if "--image" in options else ["--image", "i", *options]
    assert main(["job", "k8s", *given, "--submit", "--", "python", "t.py"]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) >= 2
    assert fake.calls == []


@pytest.mark.parametrize("command", [[], ["torchrun", "t.py"], ["/usr/bin/mpirun", "x"]])
def test_a_command_of_one_rank_is_needed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "k8s", "--image", "i", "--", *command]) == 2
    assert "COMMAND" in capsys.readouterr().err or command


def test_a_manifest_in_a_file_and_what_to_do_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "my profile.yaml"
    argv = ["job", "k8s", "--image", "i", "--name", "train", "--script", str(path), "--", "python", "t.py"]
    assert main(argv) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"Wrote {path}",
        f"Next: kubectl apply -f '{path}'",
        "Its output: kubectl logs -f -l rankscope/job=train --all-containers",
        "Its reports: rankscope job fetch train --kind mpijob",
    ]


def test_submit_with_a_fake_kubectl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path / "bin", "kubectl")
    fake.answer((["create"], (0, "mpijob.kubeflow.org/train created\n", "")))
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    argv = ["job", "k8s", "--image", "i", "--name", "train", "--namespace", "team", "--submit"]
    assert main([*argv, "--script", str(tmp_path / "job.yaml"), "--", "python", "t.py"]) == 0
    out, err = capsys.readouterr()
    assert out == "mpijob.kubeflow.org/train created\n"
    assert "rankscope job fetch train --kind mpijob --namespace team" in err
    assert fake.calls == [
        ["kubectl", "-n", "team", "get", "crd", "mpijobs.kubeflow.org"],
        ["kubectl", "-n", "team", "create", "-f", "-", (tmp_path / "job.yaml").read_text()],
    ]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            'Error from server (NotFound): customresourcedefinitions "x" not found',
            "this cluster has no MPIJob",
        ),
        ("The connection to the server localhost:8080 was refused", "cannot reach the cluster"),
    ],
)
def test_submit_says_what_the_cluster_lacks(
    said: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(tmp_path / "bin", "kubectl")
    fake.answer((["get", "crd"], (1, "", said)))
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    assert main(["job", "k8s", "--image", "i", "--submit", "--", "python", "t.py"]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 3
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert (error in page) == ("MPIJob" in message)
    assert not any("create" in call for call in fake.calls)


def test_no_kubectl_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["job", "k8s", "--image", "i", "--submit", "--", "python", "t.py"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert main(["job", "fetch", "a", "-o", str(tmp_path / "x")]) == 1


def _noted(reports: str) -> str:
    return json.dumps({"metadata": {"annotations": {k8s.REPORTS_NOTE: reports, k8s.IMAGE_NOTE: "i"}}})


@pytest.mark.slow
@pytest.mark.parametrize(("reports", "readers"), [("pvc:rep", 1), ("hostPath:/tmp/rankscope", 2)])
def test_fetch_copies_from_the_volume_or_every_node(
    reports: str,
    readers: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = {"items": [{"spec": {"nodeName": name}} for name in ("n1", "n2", "n1")] + [{"spec": {}}]}
    fake = Fake(tmp_path / "bin", "kubectl")
    fake.answer(
        (["get", "mpijob"], (0, _noted(reports), "")),
        (["get", "pods"], (0, json.dumps(pods), "")),
        (["cp"], (0, "", "")),
    )
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    assert main(["job", "fetch", "a", "-o", str(tmp_path / "a")]) == 0
    assert f"Copied {readers} file" in capsys.readouterr().out
    made = [yaml.safe_load(call[-1]) for call in fake.calls if call[1] == "create"]
    for pod in made:
        kubernetes_validate.validate(pod, "1.31", strict=True)
    assert [pod["spec"].get("nodeName") for pod in made] == ([None] if readers == 1 else ["n1", "n2"])
    deleted = [call[3] for call in fake.calls if call[1:3] == ["delete", "pod"]]
    assert deleted == [pod["metadata"]["name"] for pod in made]


@pytest.mark.slow
def test_fetch_cleans_up_and_says_when_there_is_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path / "bin", "kubectl")
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    target = tmp_path / "a"
    answers = [
        ([(["get", "mpijob"], (1, "", "Error from server (NotFound)"))], "there is no mpijob a"),
        ([(["get", "mpijob"], (0, '{"metadata": {}}', ""))], "reports is not known"),
        ([(["get", "mpijob"], (0, _noted("pvc:r"), "")), (["test"], (1, "", ""))], "has written no reports"),
        ([(["get", "mpijob"], (0, _noted("pvc:r"), "")), (["wait"], (1, "", "timed out"))], "timed out"),
        (
            [
                (["get", "mpijob"], (0, _noted("hostPath:/x"), "")),
                (["get", "pods"], (0, '{"items": []}', "")),
            ],
            "the nodes of job a are not known",
        ),
    ]
    for answer, says in answers:
        fake.answer(*answer)
        assert main(["job", "fetch", "a", "-o", str(target)]) == 1
        assert says in capsys.readouterr().err
        created, deleted = (sum(call[1:2] == [word] for call in fake.calls) for word in ("create", "delete"))
        assert created == deleted


@pytest.mark.slow
def test_delete(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path / "bin", "kubectl")
    fake.answer((["get", "job"], (0, _noted("pvc:r"), "")), (["delete", "job"], (0, "job deleted\n", "")))
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    assert main(["job", "delete", "a", "--scheduler", "k8s", "--kind", "job"]) == 0
    assert capsys.readouterr().out == "job deleted\n"
    assert [call[1:4] for call in fake.calls[1:]] == [["delete", "job", "a"], ["delete", "service", "a"]]
