#!/usr/bin/env bash
# Accelerate launcher; accelerate.yaml as of Accelerate 1.15.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":32,"mbs":1,"model":"llama3-8b","n_devices":8,"n_micro":16,"n_nodes":1,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":32,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[32],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# TRAIN_SCRIPT builds llama3-8b (32 layers, sequences of 8192) and reads the numbers of
# trainer_args.json: fsdp2_train.py, or a script of yours around the Hugging Face Trainer.
# The global batch is 128 = 1 x 16 x 8.
# sync_each_batch shards the gradients of every micro-batch, as the plan counts them.
# Accelerate reduces gradients in bf16, as the plan counts it.
#
# Run it once on each of the 1 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: data and checkpoints, another model or script ----
# DATA: a flat file of tokens (.bin), .jsonl, .parquet, a data set of Hugging Face; text needs
# TOKENIZER. SAVE: the folder of checkpoints, --resume goes on from there.
export DATA="${DATA:-}" TOKENIZER="${TOKENIZER:-}" SAVE="${SAVE:-}"
# MODEL, a config.json or repository id, takes the place of model_config.json.
export MODEL="${MODEL:-}" ATTENTION="${ATTENTION:-sdpa}"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-${HERE}/fsdp2_train.py}"
# --------------------------------------------------------------

# With --smoke: two steps on the CPU, all processes of the plan on this machine; words of the
# launcher's own up to the port are given anew, the port as a free one.
accelerate() {
  if [[ " $* " == *" --smoke "* ]]; then
    shift 9
    CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 command accelerate launch --num_machines 1 \
      --config_file "${HERE}/accelerate.yaml" --main_process_port 0 "$@"
  else
    command accelerate "$@"
  fi
}

accelerate launch --config_file "${HERE}/accelerate.yaml" \
  --machine_rank "${NODE_RANK}" \
  --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \
  "${TRAIN_SCRIPT}" \
  --trainer-args "${HERE}/trainer_args.json" --seq-length 8192 \
  "$@"
