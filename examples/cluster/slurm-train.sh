#!/bin/bash
# Two nodes of four GPUs, a rank for each. /shared is mounted on all nodes.
#SBATCH --job-name=pets
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=128G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=/shared/logs/pets-%j.log
#SBATCH --requeue

source /shared/venv/bin/activate
export ONSIGHT_CACHE=/shared/cache

run=/shared/runs/pets
resume=()
[ -e "$run/config.toml" ] && resume=(--resume)

srun --kill-on-bad-exit=1 onsight train /shared/pets --out "$run" "${resume[@]}"
code=$?
[ "$code" -eq 143 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
