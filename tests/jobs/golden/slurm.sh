#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:30:00
#SBATCH --partition=gpu
#SBATCH --account=A
#SBATCH --licenses=home,eagle
#SBATCH --output=train-%j.out
#SBATCH --error=train-%j.err
#SBATCH --signal=B:TERM@60

set -u
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
job="${SLURM_JOB_ID:?this script is for sbatch}"

set +u
module load cuda
module load python/3.11
conda activate my
set -u

export PYTHONUNBUFFERED=1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + ${job%%[!0-9]*} % 20000))

if ! command -v rankscope >/dev/null; then
    echo "rankscope: not on PATH on $(hostname); give its environment: --venv, --conda, --modules" >&2
    exit 1
fi

# The run folder, and a folder on each node's disk, where the profiler writes while the job runs.
run=rankscope-train-"$job"
case $run in /*) ;; *) run="$PWD/$run" ;; esac
scratch="/tmp/rankscope-${USER:-$(id -un)}-$job"
if [ -e "$run/rankscope.json" ]; then
    echo "rankscope: $run holds another run; name another folder with -o DIR, or add -f" >&2
    exit 1
fi
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 mkdir -p "$scratch/tmp" || exit 1
mkdir -p "$run" || exit 1

# On TERM (walltime, or the job is cancelled): the ranks write what they have recorded, then the script continues.
launcher=
ended=
signal_ranks() {
    ended=TERM
    [ -z "$launcher" ] || scancel --signal=TERM "$job"
}
trap signal_ranks TERM

run_step() {
    "$@" &
    launcher=$!
    wait "$launcher"
    status=$?
    # A trap interrupts `wait`; the launcher is still running.
    while kill -0 "$launcher" 2>/dev/null; do
        wait "$launcher"
        status=$?
    done
    launcher=
}

run_step \
    srun --nodes=2 --ntasks=4 --ntasks-per-node=2 \
    --label --export="ALL,TMPDIR=$scratch/tmp" \
    rankscope profile -o "$scratch/run" --steps 3:5 --quiet -- \
    python train.py --note 'it'"'"'s "two"
lines, $HOME'

# Copy the files from every node's disk to the run folder, all nodes at once, after a failure too.
if srun --nodes=2 --ntasks=2 --ntasks-per-node=1 \
    rankscope job collect "$scratch/run" "$run"; then
    srun --nodes=2 --ntasks=2 --ntasks-per-node=1 rm -rf "$scratch"
else
    echo "rankscope: not all files could be copied; they are still in $scratch on the nodes" >&2
fi

[ -z "$ended" ] || echo "rankscope: the job was ended early; the recording may be partial" >&2
echo "rankscope: the run is in $run"
rankscope stats "$run" || true
echo "$job" "$status" >"$run/.job-exit-code"
exit "$status"
