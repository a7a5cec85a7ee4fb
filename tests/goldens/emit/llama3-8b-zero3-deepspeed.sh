#!/usr/bin/env bash
# DeepSpeed launcher; deepspeed.json as of DeepSpeed 0.19.8.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":32,"mbs":1,"model":"llama3-8b","n_devices":8,"n_micro":16,"n_nodes":1,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":7,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[32],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# TRAIN_SCRIPT builds llama3-8b (32 layers, sequences of 8192) and calls deepspeed.initialize.
# The arguments after deepspeed.json are for that script. deepspeed_train.py is one; another
# has to do what the next lines say.
# Recompute: the first 7 layers; the script decides which, the JSON only how
# their inputs are kept.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# ---- YOURS: the hosts (lines of `name slots=8`), data and checkpoints, another script ----
HOSTFILE="${HOSTFILE:-/job/hostfile}"
# DATA: a flat file of tokens (.bin), .jsonl, .parquet, a data set of Hugging Face; text needs
# TOKENIZER. SAVE: the folder of checkpoints, --resume goes on from there.
export DATA="${DATA:-}" TOKENIZER="${TOKENIZER:-}" SAVE="${SAVE:-}"
# MODEL, a config.json or repository id, takes the place of model_config.json.
export MODEL="${MODEL:-}" ATTENTION="${ATTENTION:-sdpa}"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-${HERE}/deepspeed_train.py}"
# -------------------------------------------------------------------------------------------
MASTER_PORT="${MASTER_PORT:-29500}"

# The deepspeed launcher starts all nodes from the first, over SSH. Slurm and Kubernetes start this
# script once on every node instead, with NODE_RANK and MASTER_ADDR set: then torchrun starts the
# processes of this node, after the launcher's own eight words.
# With --smoke: two steps on the CPU, all processes of the plan on this machine.
deepspeed() {
  if [[ " $* " == *" --smoke "* ]]; then
    shift 8
    DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 \
      torchrun --standalone --nproc-per-node 8 "$@"
  elif [[ -z "${NODE_RANK:-}" ]]; then
    command deepspeed "$@"
  else
    shift 8
    torchrun --nnodes 1 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
      --master-addr "${MASTER_ADDR:?set it with NODE_RANK}" --master-port "${MASTER_PORT}" "$@"
  fi
}

deepspeed --hostfile "${HOSTFILE}" --num_nodes 1 --num_gpus 8 \
  --master_port "${MASTER_PORT}" \
  "${TRAIN_SCRIPT}" \
  --deepspeed --deepspeed_config "${HERE}/deepspeed.json" \
  --seq-length 8192 --train-steps 10 --recompute full --recompute-layers 7 \
  "$@"
