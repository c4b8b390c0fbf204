#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:30:00
#SBATCH --output=train-%j.out
#SBATCH --error=train-%j.err
#SBATCH --signal=B:TERM@60

set -u
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
job="${SLURM_JOB_ID:?this script is for sbatch}"

export PYTHONUNBUFFERED=1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + ${job%%[!0-9]*} % 20000))

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
    srun --nodes=2 --ntasks=8 --ntasks-per-node=4 \
    --label --export="ALL,TMPDIR=$scratch/tmp" \
    python train.py --note 'it'"'"'s "two"
lines, $HOME'

srun --nodes=2 --ntasks=2 --ntasks-per-node=1 rm -rf "$scratch"
[ -z "$ended" ] || echo "rankscope: the job was ended early" >&2
echo "$job" "$status" >"$run/.job-exit-code"
exit "$status"
