#!/usr/bin/env bash
# Megatron-Bridge launcher; bridge_recipe.py as of Megatron-Bridge 0.6.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":16,"ep":1,"etp":1,"gbs":1024,"generation":"hopper","layers":80,"mbs":1,"model":"llama3-70b","n_devices":512,"n_micro":64,"n_nodes":64,"padded_vocab":129024,"pipeline_partition":"","pp":4,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":2,"schedule":"interleaved","shard":0,"sp":true,"split":"even","stage_layers":[4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4],"tp":8,"vpp":5,"zero":1}
#
# Run it once on each of the 64 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: where things are; bridge_recipe.py reads them ----
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_MODEL=meta-llama/Meta-Llama-3-8B
export DATA_PATH="${DATA_PATH:-}" TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"
# Folder of the checkpoints; empty: none are written.
export SAVE="${SAVE:-}"
# --------------------------------------------------------------

# One hardware queue keeps collectives ahead of the GEMMs they overlap; required
# with tensor parallelism before Blackwell.
export CUDA_DEVICE_MAX_CONNECTIONS=1

torchrun --nnodes 64 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  "${HERE}/bridge_recipe.py" "$@"
