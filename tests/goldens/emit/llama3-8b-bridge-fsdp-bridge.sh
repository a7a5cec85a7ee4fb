#!/usr/bin/env bash
# Megatron-Bridge launcher; bridge_recipe.py as of Megatron-Bridge 0.6.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":16,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":32,"mbs":1,"model":"llama3-8b","n_devices":16,"n_micro":8,"n_nodes":2,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":8,"sp":false,"split":"even","stage_layers":[32],"tp":1,"vpp":1,"zero":3}
#
# Run it once on each of the 2 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
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

# Megatron-FSDP refuses the value 1, which some containers set.
unset CUDA_DEVICE_MAX_CONNECTIONS

torchrun --nnodes 2 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  "${HERE}/bridge_recipe.py" "$@"
