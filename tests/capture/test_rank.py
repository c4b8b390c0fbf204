"""Every launcher's variables (docs/facts.md), and the combinations of them that real jobs have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.capture.rank import FAMILIES, SINGLE, Identity, detect, disagreements

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
MPICH = {"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}
PALS = {
    "PALS_RANKID": "3",
    "PALS_LOCAL_RANKID": "1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PALS_LOCAL_SIZE": "2",
    "PALS_NODEID": "1",
}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_GTIDS": "2,3",
    "SLURM_NODEID": "1",
}
DEEPSPEED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "CROSS_RANK": "1"}


@pytest.mark.parametrize(
    ("env", "source"),
    [
        (TORCHRUN, "torchrun"),
        (DEEPSPEED, "RANK"),
        (OMPI, "OpenMPI"),
        (PALS, "PALS"),
        (MPICH, "PMI"),
        (SRUN, "Slurm"),
    ],
)
def test_each_family_gives_all_five_facts(env: dict[str, str], source: str) -> None:
    identity = detect(env)
    assert identity[:5] == (3, 1, 4, 2, 1)
    assert identity.source == source


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "8"},
            (5, 1, 8, None, None),
        ),
        (
            {"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "8"},
            (5, 1, 8, None, None),
        ),
        ({"FLUX_TASK_RANK": "5", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "8"}, (5, 1, 8, None, None)),
        ({"ALPS_APP_PE": "5"}, (5, None, None, None, None)),
    ],
)
def test_what_a_launcher_does_not_say_is_unknown_not_zero(
    env: dict[str, str], expected: tuple[object, ...]
) -> None:
    assert detect(env)[:5] == expected


def test_body_of_an_sbatch_script_is_no_rank() -> None:
    assert detect({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}).source == SINGLE


def test_pod_index_of_a_pytorchjob_is_no_rank() -> None:
    assert detect({"RANK": "1", "WORLD_SIZE": "2", "PET_NODE_RANK": "1"}).source == SINGLE


def test_mpiexec_inside_sbatch_takes_mpi_and_says_the_difference() -> None:
    env = {**MPICH, **SRUN, "SLURM_PROCID": "1"}
    identity = detect(env)
    assert (identity.rank, identity.source) == (3, "PMI")
    assert disagreements(env, identity) == ["PMI gives rank 3, but SLURM_PROCID is 1; PMI's rank is used"]


def test_torchrun_inside_srun_is_no_disagreement() -> None:
    env = {**TORCHRUN, **SRUN, "SLURM_PROCID": "1"}
    assert disagreements(env, detect(env)) == []


def test_two_families_that_agree_say_nothing() -> None:
    assert disagreements({**OMPI, **MPICH}, detect({**OMPI, **MPICH})) == []


def test_option_comes_first() -> None:
    assert detect(TORCHRUN, {"rank": 9, "local_rank": 2})[:5] == (9, 2, None, None, None)


def test_node_is_derived_only_when_the_numbers_fit() -> None:
    assert detect(OMPI).node_derived
    cyclic = {**OMPI, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert detect(cyclic).node is None


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(sorted({name for f in FAMILIES for name in f.gate})), st.text(max_size=4))
)
def test_no_environment_breaks_it(env: dict[str, str]) -> None:
    assert isinstance(detect(env), Identity)
