#!/bin/bash
#SBATCH --nodes=2
cat <<'END' > note.txt
nsys profile is not run here
END
for size in 1 2; do
    srun -n 8 nsys profile -o out/%q{SLURM_PROCID} -t cuda python train.py --size $size > log.txt 2>&1
done
