#!/usr/bin/env bash
# Train a prepared run as an array of jobs, one for each leaf:
#   sbatch --array=0-$(($(choral leaves RUN --json | python -c 'import json, sys; print(len(json.load(sys.stdin)))') - 1)) slurm.sh RUN
# A job that is preempted is queued again and goes on from the leaf's newest checkpoint. Leaves are listed behind the one they go on
# from, so waiting for it cannot fill the queue with jobs that wait for each other.
#SBATCH --job-name=choral
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
export OMP_NUM_THREADS=1
srun choral run-leaf "$1" --index "$SLURM_ARRAY_TASK_ID" --wait 14400 --quiet
