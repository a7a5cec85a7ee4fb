#!/usr/bin/env bash
# Accelerate launcher; accelerate.yaml as of Accelerate 1.15.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":32,"mbs":1,"model":"llama3-8b","n_devices":8,"n_micro":16,"n_nodes":1,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":32,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[32],"tp":1,"vpp":1,"zero":3}
#
# TRAIN_SCRIPT builds llama3-8b (32 layers, attn_implementation flash_attention_2, sequences of 8192),
# reads TrainingArguments from trainer_args.json and runs the Hugging Face Trainer, or
# sets the same numbers in a loop of its own. The global batch is 128 = 1 x 16 x 8.
# sync_each_batch shards the gradients of every micro-batch, as the plan counts them.
# Accelerate reduces gradients in bf16, half the traffic that the plan counts.
#
# Run it once on each of the 1 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: the training script ----
TRAIN_SCRIPT="${TRAIN_SCRIPT:-train.py}"
# ------------------------------------
accelerate launch --config_file "${HERE}/accelerate.yaml" \
  --machine_rank "${NODE_RANK}" \
  --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \
  "${TRAIN_SCRIPT}" \
  --trainer-args "${HERE}/trainer_args.json" --seq-length 8192 \
  "$@"
