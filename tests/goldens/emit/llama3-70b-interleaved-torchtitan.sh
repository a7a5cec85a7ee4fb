#!/usr/bin/env bash
# torchtitan launcher; torchtitan_recipe.py as of torchtitan 0.3.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":16,"ep":1,"etp":1,"gbs":1024,"generation":"hopper","layers":80,"mbs":1,"model":"llama3-70b","n_devices":512,"n_micro":64,"n_nodes":64,"padded_vocab":129024,"pipeline_partition":"","pp":4,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":2,"schedule":"interleaved","shard":0,"sp":true,"split":"even","stage_layers":[4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4],"tp":8,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":5,"zero":1}
#
# Run it once on each of the 64 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Options of your own go after the script name and win over the recipe, for example
# --training.steps 20. It takes PyTorch 2.14 or later: with 2.13 torchtitan 0.3.0 does not start.
# With --smoke all ranks run on this machine's CPUs for two steps: torchtitan_smoke.py.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: where things are; torchtitan_recipe.py reads them ----
# Folder of the tokenizer, as torchtitan's scripts/download_hf_assets.py leaves it.
export HF_ASSETS="${HF_ASSETS:-./tests/assets/tokenizer}"
# A data set that torchtitan knows (c4, c4_test), and its folder where it is a local copy.
export DATASET="${DATASET:-c4_test}" DATASET_PATH="${DATASET_PATH:-}"
# ------------------------------------------------------------------
export PYTHONPATH="${HERE}${PYTHONPATH:+:${PYTHONPATH}}"
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"

if [[ " $* " == *" --smoke "* ]]; then
  exec env CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
    python "${HERE}/torchtitan_smoke.py" 512 "$@"
fi

torchrun --nnodes 64 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  -m torchtitan.train --module torchtitan_recipe --config train \
  "$@"
