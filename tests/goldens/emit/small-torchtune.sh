#!/usr/bin/env bash
# torchtune launcher; torchtune.yaml says what is trained.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":4,"mbs":1,"model":"small","n_devices":8,"n_micro":16,"n_nodes":1,"padded_vocab":1024,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":4,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[4],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# Run it once on each of the 1 node(s), 8 process(es) each, with NODE_RANK and
# MASTER_ADDR set (Slurm: one task per node). Further options go on to the tool.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "${HERE}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

tune run --nnodes 1 --nproc_per_node 8 \
  lora_finetune_distributed --config "${HERE}/torchtune.yaml" \
  "$@"
