#!/bin/bash
# Two machines of four GPUs each; the first is where the ranks meet.
set -euo pipefail
hosts=(gpu1 gpu2)
run=/shared/runs/pets
resume=""
[ -e "$run/config.toml" ] && resume=--resume

for node in "${!hosts[@]}"; do
  ssh -tt "${hosts[$node]}" "source /shared/venv/bin/activate && ONSIGHT_CACHE=/shared/cache \
    torchrun --nnodes=${#hosts[@]} --nproc-per-node=4 --node-rank=$node \
      --master-addr=${hosts[0]} --master-port=29500 \
      -m onsight train /shared/pets --out $run $resume" &
done
wait
