#!/bin/bash
#SBATCH --job-name=harbor-gym
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#
# Train with the groups played on every node but the first, which runs the trainer's driver and Ray's head:
#
#     SANDBOXES=64 sbatch docs/deploy/slurm.sh --task-dir tasks/devops_task --env local --rollout-workers 16
#
# The checkout and its .venv must be at the same path on all nodes; tasks, transcripts and caches need not be shared.
set -euo pipefail

: "${SANDBOXES:=64}" # that a node holds at once
port=6379
export RAY_USAGE_STATS_ENABLED=0 HARBOR_GYM_CACHE=${HARBOR_GYM_CACHE:-${TMPDIR:-/tmp}/harbor_gym_cache}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):$port

stop() {
  # The driver interrupts its groups, which close their sandboxes; Ray ends after it.
  kill -TERM "${driver:-}" 2>/dev/null || true
  wait "${driver:-}" || true
  kill "${rays[@]}" 2>/dev/null || true
}
trap stop TERM INT

rays=()
srun --nodes=1 --ntasks=1 -w "$head" \
  .venv/bin/ray start --head --node-ip-address="${address%:*}" --port=$port --num-cpus=0 --block &
rays+=($!)
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 -w "$node" \
    .venv/bin/ray start --address="$address" --resources="{\"harbor_sandbox\": $SANDBOXES}" --block &
  rays+=($!)
done

RAY_ADDRESS=$address .venv/bin/python recipes/train.py --rollout-executor ray "$@" &
driver=$!
wait "$driver"
stop
