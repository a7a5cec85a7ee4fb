#!/usr/bin/env bash
# Accelerate launcher; accelerate.yaml as of Accelerate 1.15.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":2,"cp_comm":"p2p","devices_per_node":8,"dp":32,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":80,"mbs":1,"model":"llama3-70b","n_devices":64,"n_micro":4,"n_nodes":8,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":16,"sp":false,"split":"even","stage_layers":[80],"tp":1,"vpp":1,"zero":2}
#
# TRAIN_SCRIPT builds llama3-70b (80 layers, attn_implementation sdpa, sequences of 8192),
# reads TrainingArguments from trainer_args.json and runs the Hugging Face Trainer, or
# sets the same numbers in a loop of its own. The global batch is 128 = 1 x 4 x 32.
# sync_each_batch shards the gradients of every micro-batch, as the plan counts them.
# FSDP gathers the weights for each micro-batch, the plan counts it once.
# Accelerate reduces gradients in bf16, half the traffic that the plan counts.
#
# Run it once on each of the 8 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
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
