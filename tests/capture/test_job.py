"""One name for one job on all its ranks, another for every other job."""

from pathlib import Path

import pytest

from rankscope.capture.job_name import default_folder, job_id, name_run, script_name
from rankscope.capture.rank import Identity, detect
from rankscope.errors import CaptureError

TWO_NODES = Identity(0, 0, 4, 2, 0, "PMI")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TORCHELASTIC_RUN_ID": "abc"}, "abc"),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}, "12-3"),
        ({"PBS_JOBID": "99.polaris-pbs", "PALS_APID": "8ab-1"}, "99-8ab-1"),
        ({"PMIX_NAMESPACE": "prterun-n1-7@1"}, "prterun-n1-7-1"),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "10.0.0.1-29500"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}, "n1-1"),
    ],
)
def test_id_from_the_launcher(env: dict[str, str], expected: str) -> None:
    assert job_id(env, TWO_NODES) == expected


def test_several_nodes_without_any_id_need_a_folder() -> None:
    with pytest.raises(CaptureError, match="-o DIR is needed"):
        job_id({}, TWO_NODES)
    folder, job = name_run({}, TWO_NODES, ("python", "t.py"), "runs/a", None)
    assert (folder, job) == (Path.cwd() / "runs/a", "a")


def test_one_node_without_any_id_has_its_launcher() -> None:
    env = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert job_id(env, detect(env)) == job_id({**env, "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}, detect(env))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "/a/train.py", "--x", "y.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "src/gpt.py"], "gpt"),
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["python3", "-m", "torch.distributed.run", "t.py"], "t"),
        (["./run all.sh"], "run-all.sh"),
    ],
)
def test_script_name(command: list[str], expected: str) -> None:
    assert script_name(command) == expected
    assert default_folder(command, "7") == f"rankscope-{expected}-7"
