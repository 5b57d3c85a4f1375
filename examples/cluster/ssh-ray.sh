#!/bin/bash
# A Ray cluster of these machines, and a sweep on it.
set -euo pipefail
hosts=(gpu1 gpu2)
start="source /shared/venv/bin/activate && export RAY_USAGE_STATS_ENABLED=0 ONSIGHT_CACHE=/shared/cache && ray start"

ssh "${hosts[0]}" "$start --head --port=6379 --include-dashboard=false"
for host in "${hosts[@]:1}"; do
  ssh "$host" "$start --address=${hosts[0]}:6379"
done

ssh -tt "${hosts[0]}" "source /shared/venv/bin/activate && onsight sweep /shared/pets \
  --try learning_rate=0.001,0.003 --try model=lenet,compact --cluster auto --out /shared/sweeps/pets"

for host in "${hosts[@]}"; do
  ssh "$host" "source /shared/venv/bin/activate && ray stop"
done
