"""Bash wrappers as lines of `rankscope profile`: by example, and against bash itself."""

from __future__ import annotations

import random
import shlex
import subprocess
from pathlib import Path

import pytest

from rankscope.capture.rank import Identity
from rankscope.capture.selector import parse_selector
from rankscope.capture.wrapper_import import import_wrapper
from rankscope.cli import main
from rankscope.errors import UsageError

WRAPPERS = Path(__file__).parent / "wrappers"


@pytest.mark.parametrize(
    ("name", "words", "notes"),
    [
        (
            "polaris_nsys",
            "rankscope profile --tool nsys --ranks local:0@ranks:0-7 --stats=true --show-output=true",
            ["the folder of the reports is left out: `wc -l < $PBS_NODEFILE`"],
        ),
        (
            "polaris_ncu",
            "rankscope profile --tool ncu --ranks local:0@ranks:0-3 -o /lus/project/ncu --set=detailed "
            "--kernel-name=regex:gemm",
            ["rankscope the first 32"],
        ),
        (
            "slurm_exec",
            "rankscope profile --tool nsys --ranks 0 --trace=mpi,nvtx,cuda -f "
            "--tool-arg=--env-var=NSYS_MPI_STORE_TEAMS_PER_RANK=1",
            ["the condition is left out: ${PROFILE:-0} -ne 0", "its default is taken: report"],
        ),
        (
            "early_exec",
            "rankscope profile --tool nsys --ranks 0,4 -o '%q{SCRATCH}/nsys' --show-output=true --trace=cuda,nvtx,osrt "
            "--tool-arg=--sample=cpu --tool-arg=--cudabacktrace=true -f -c cudaProfilerApi",
            [],
        ),
        (
            "cases",
            "rankscope profile --tool nsys --ranks 0,8 --nsys /opt/nsight/bin/nsys -o reports --trace=cuda,nvtx "
            "--sample=none --tool-arg=--python-sampling=true --after 330s --for 50s",
            ["$EXTRAS is not known here", "--session-new=r$SLURM_PROCID is left out."],
        ),
        (
            "all_ranks",
            "rankscope profile --tool ncu --ranks all -o ./reports --clock-control=none --tool-arg=--set=basic "
            "--tool-arg=--section=PmSampling '--tool-arg=--section=regex:Speed.*' --launch-skip=2 --launch-count=10 -f",
            ["--replay-mode=application is left out.", "--csv is left out."],
        ),
        (
            "prepared",
            "rankscope profile --tool nsys --ranks all -o 'logs/%q{SLURM_JOB_ID}' --trace=cuda,cublas,nvtx -f "
            "-c cudaProfilerApi",
            ["the command is in $PROFILE_CMD", "the condition is left out: ${ENABLE_NSYS:-0} -eq 1"],
        ),
        (
            "batch",
            'srun -n 8 rankscope profile --tool nsys --ranks all -o out --trace=cuda python train.py --size "$size"',
            ["in the loop of line 6"],
        ),
        (
            "loop",
            "rankscope profile --tool nsys --ranks 0,4,8,12 -o '%q{SCRATCH}' --trace=cuda,nvtx",
            [],
        ),
    ],
)
def test_the_line_of_a_wrapper(
    name: str, words: str, notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    old_name = name == "loop"
    start = ["import-wrapper"] if old_name else ["profile", "--from-wrapper"]
    assert main([*start, str(WRAPPERS / f"{name}.sh")]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{words}\n"
    said = printed.err.splitlines()
    assert len(said) == len(notes)
    for line, note in zip(said, notes, strict=True):
        assert note in line


def test_options_beside_those_that_are_commented_out_are_offered() -> None:
    lines = import_wrapper(WRAPPERS / "commented.sh")
    start = "rankscope profile --tool ncu --ranks local:0@ranks:0-3 -o /lus/project/ncu --set="
    assert [" ".join(line.words) for line in lines] == [
        f"{start}full",
        f"{start}detailed",
        f"{start}roofline --kernel-name=regex:gemm",
    ]
    sources = ("$NCU_OPTS_FULL", "$NCU_OPTS_DETAILED", "$NCU_OPTS_ROOFLINE")
    for line, source in zip(lines, sources, strict=True):
        assert line.notes[0] == f"$NCU_OPTS_FULL is commented out; this line has the options of {source}"


@pytest.mark.parametrize("name", sorted(path.stem for path in WRAPPERS.glob("*.sh")))
def test_profile_accepts_the_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is a command that runs, with the values that the shell puts into it."""
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    line = import_wrapper(WRAPPERS / f"{name}.sh")[-1]
    words = shlex.split(" ".join(line.words))
    words = words[words.index("rankscope") + 1 :]
    tool = words[words.index("--tool") + 1]
    (program := tmp_path / tool).write_text("#!/bin/sh\necho version 2024.1.1\n")
    program.chmod(0o755)
    assert main(["profile", "-n", *words[1:3], f"--{tool}", str(program), *words[3:], "true"]) in (0, 1)
    assert "defect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "echo nsys profile\n", "nsys stats x\n", "module load ncu\n", "if then fi ((", "\x00\xff'"]
)
def test_a_file_without_a_profiler(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "w.sh").write_text(text)
    with pytest.raises(UsageError, match="runs neither"):
        import_wrapper(path)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "w.sh").write_text("nsys profile true\n" * 10_000)
    with pytest.raises(UsageError, match="too large for a wrapper"):
        import_wrapper(path)


def test_the_file_is_not_run(tmp_path: Path) -> None:
    (path := tmp_path / "w.sh").write_text(
        f'touch {tmp_path}/ran $(touch {tmp_path}/ran)\nnsys profile $(touch {tmp_path}/ran) "$@"\n'
    )
    import_wrapper(path)
    assert not (tmp_path / "ran").exists()


# -- against bash: random wrappers, run with a function in place of nsys


@pytest.mark.slow
def test_the_selected_ranks_are_those_that_bash_profiles(tmp_path: Path) -> None:
    """Wrappers whose conditions one selector can express: each rank of a job of 4 nodes with 4 ranks."""
    source = random.Random(36)
    compared = 0
    for number in range(40):
        (path := tmp_path / f"{number}.sh").write_text(text := wrapper(source))
        try:
            lines = import_wrapper(path)
        except UsageError:
            lines = []
        if any("left out" in note for line in lines for note in line.notes):
            continue  # it says that it could not express a condition
        compared += 1
        selectors = [parse_selector(line.words[line.words.index("--ranks") + 1]) for line in lines]
        ranks = [Identity(rank, rank % 4, 16, 4, rank // 4, "a test") for rank in range(16)]
        selected = [rank.rank for rank in ranks for selector in selectors if selector.selects(rank)]
        assert sorted(selected) == profiled_by_bash(path), text
    assert compared > 20


def profiled_by_bash(path: Path) -> list[int]:
    """The ranks on which the wrapper calls nsys, once for each call."""
    driver = (
        'nsys() { echo "$PMI_RANK"; }; shift 0\n'
        "for PMI_RANK in {0..15}; do export PMI_RANK PALS_LOCAL_RANKID=$((PMI_RANK % 4)) "
        f"PALS_NODEID=$((PMI_RANK / 4)); (source {shlex.quote(str(path))} true) ; done"
    )
    answer = subprocess.run(["bash", "-c", driver], capture_output=True, text=True, check=True)
    return sorted(map(int, answer.stdout.split()))


NSYS = 'nsys profile -t cuda -o r "$@"'


def wrapper(source: random.Random) -> str:
    """A wrapper with random conditions."""
    field = source.choice(["PMI_RANK", "PALS_LOCAL_RANKID", "PALS_NODEID"])
    first, second = condition(source, field), condition(source, source.choice([field, "PMI_RANK"]))
    join = source.choice(["&&", "&&", "||"])
    constants = "PROFRANK=1\nRANKCUTOFF=9\nME=${PMI_RANK:-$SLURM_PROCID}\n"
    shapes = [
        f'if {first} {join} {second}; then\n  {NSYS}\nelse\n  "$@"\nfi\n',
        f'if {first}; then "$@"; elif {second}; then {NSYS}; else "$@"; fi\n',
        f"if {first}; then\n  exec true\nfi\n{NSYS}\n",
        f"{first} && {NSYS} || true\n",
        f'case "${field}" in\n {source.randrange(3)}|{source.randrange(3, 6)}) {NSYS} ;;\n *) "$@" ;;\nesac\n',
        f"if {first}; then WITH=1; else WITH=0; fi\nif ! {second}; then {NSYS}; fi\n",
    ]
    return f"#!/bin/bash\n{constants}{source.choice(shapes)}"


def condition(source: random.Random, field: str) -> str:
    name = source.choice([field, "ME"]) if field == "PMI_RANK" else field
    value = source.choice([str(source.randrange(6)), "$PROFRANK", "${RANKCUTOFF}"])
    sign, arithmetic = source.choice(
        [("-eq", "=="), ("-ne", "!="), ("-lt", "<"), ("-le", "<="), ("-gt", ">"), ("-ge", ">=")]
    )
    forms = [
        f"[[ ${name} {sign} {value} ]]",
        f'[ "${{{name}}}" {sign} {value} ]',
        f"(( {name} {arithmetic} {value.strip('${}')} ))",
        f"test {value} {sign} ${name}",
    ]
    return source.choice(forms)
