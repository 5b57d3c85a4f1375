#!/bin/bash
# A sweep on one node: runs one after the other; finished runs are kept when it is started again.
# On several nodes at once: start Ray in the job, and add --cluster auto.
#SBATCH --job-name=pets-sweep
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=/shared/logs/sweep-%j.log

source /shared/venv/bin/activate
export ONSIGHT_CACHE=/shared/cache

sweep=/shared/sweeps/pets
resume=()
[ -e "$sweep/sweep.json" ] && resume=(--resume)

exec onsight sweep /shared/pets --try learning_rate=0.001,0.003 --try model=lenet,compact \
  --out "$sweep" "${resume[@]}"
