#!/usr/bin/env bash
# Train a policy on Harbor tasks with verl's GRPO. Needs GPUs, and vLLM for the servers.
#   python recipes/verl_dataset.py tasks --out train.parquet
#   recipes/verl_grpo.sh data.train_files=train.parquet data.val_files=train.parquet actor_rollout_ref.model.path=Qwen/Qwen3-4B
# Every field of verl's configuration is a flag. The flags below are the differences from verl's defaults.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_batch_size=16 \
  data.max_prompt_length=4096 \
  data.max_response_length=24576 \
  actor_rollout_ref.actor.ppo_mini_batch_size=16 \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns=30 \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$recipes/verl_loops.yaml" \
  data.gen_batch_size=1 \
  trainer.v1.sampler.sync_refill_failed_groups=true \
  'trainer.logger=[console]' \
  "$@"
