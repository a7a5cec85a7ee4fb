#!/usr/bin/env bash
# DeepSpeed launcher; deepspeed.json as of DeepSpeed 0.19.8.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":80,"mbs":1,"model":"llama3-70b","n_devices":64,"n_micro":16,"n_nodes":8,"padded_vocab":129024,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[80],"tp":8,"vpp":1,"zero":1}
#
# TRAIN_SCRIPT builds llama3-70b (80 layers, flash attention, sequences of 8192) and calls
# deepspeed.initialize. The arguments after deepspeed.json are for that script.
# AutoTP splits a Hugging Face model over 8 ranks, which must read the same
# data. train_batch_size is left out: DeepSpeed would divide it by all ranks. The
# global batch is 128 = 1 x 16 x 8.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# ---- YOURS: the hosts (lines of `name slots=8`) and the training script ----
HOSTFILE="${HOSTFILE:-/job/hostfile}"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-train.py}"
# -----------------------------------------------------------------------------
MASTER_PORT="${MASTER_PORT:-29500}"

# The deepspeed launcher starts all nodes from the first, over SSH. Slurm and Kubernetes start this
# script once on every node instead, with NODE_RANK and MASTER_ADDR set: then torchrun starts the
# processes of this node, after the launcher's own eight words.
deepspeed() {
  if [[ -z "${NODE_RANK:-}" ]]; then
    command deepspeed "$@"
  else
    shift 8
    torchrun --nnodes 8 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
      --master-addr "${MASTER_ADDR:?set it with NODE_RANK}" --master-port "${MASTER_PORT}" "$@"
  fi
}

deepspeed --hostfile "${HOSTFILE}" --num_nodes 8 --num_gpus 8 \
  --master_port "${MASTER_PORT}" \
  "${TRAIN_SCRIPT}" \
  --deepspeed --deepspeed_config "${HERE}/deepspeed.json" \
  --seq-length 8192 --train-steps 10 \
  "$@"
