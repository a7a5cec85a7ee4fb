#!/usr/bin/env bash
# Megatron-Bridge launcher; bridge_recipe.py as of Megatron-Bridge 0.6.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":64,"ep":64,"etp":1,"gbs":8192,"generation":"hopper","layers":61,"mbs":1,"model":"deepseek-v3","n_devices":1024,"n_micro":128,"n_nodes":128,"padded_vocab":129280,"pipeline_partition":"uniform","pp":16,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"1f1b","shard":0,"sp":false,"split":"ends","stage_layers":[3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2],"tp":1,"vpp":1,"zero":1}
#
# Run it once on each of the 128 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
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

torchrun --nnodes 128 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  "${HERE}/bridge_recipe.py" "$@"
