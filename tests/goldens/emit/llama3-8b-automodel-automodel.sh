#!/usr/bin/env bash
# Launcher of NeMo AutoModel; automodel.yaml as of nemo_automodel 0.7.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":4,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":32,"mbs":1,"model":"llama3-8b","n_devices":8,"n_micro":32,"n_nodes":1,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":0,"sp":true,"split":"even","stage_layers":[32],"tp":2,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# Run it once on each of the 1 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Options of your own go after the script name and win over the recipe, for example
# --step_scheduler.max_steps 20.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: the model; data and weights stand in the recipe ----
# MODEL, a folder with a config.json or a repository id, takes the place of this config.json.
export MODEL="${MODEL:-${HERE}}"
# ----------------------------------------------------------------

torchrun --nnodes 1 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  -m nemo_automodel.cli.app "${HERE}/automodel.yaml" \
  "$@"
