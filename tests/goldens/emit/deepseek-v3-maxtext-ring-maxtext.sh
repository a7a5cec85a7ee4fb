#!/usr/bin/env bash
# MaxText launcher; maxtext.yml keys as of MaxText 0.2.5.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":2,"cp_comm":"p2p","devices_per_node":4,"dp":32,"ep":4,"etp":1,"gbs":128,"generation":"tpu-v5p","layers":61,"mbs":1,"model":"deepseek-v3","n_devices":64,"n_micro":4,"n_nodes":16,"padded_vocab":129280,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":61,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[61],"tp":1,"unsaid":{"imbalance":1.0,"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# Start it once on every TPU host, all 64 devices as JAX counts them: XPK does that, the
# command stands in maxtext-xpk.txt. The global batch is 128 = 1 x 4 x 32.
# Options of your own go after the script name, as `key=value`, and win over the file:
# `dataset_type=grain grain_train_files=gs://...`.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# ---- YOURS: the name of the run, and the folder or bucket of its logs and checkpoints ----
RUN_NAME="${RUN_NAME:-planned}"
SAVE="${SAVE:-${HERE}/maxtext_output}"
# -------------------------------------------------------------------------------------------
python3 -m maxtext.trainers.pre_train.train "${HERE}/maxtext.yml" \
  run_name="${RUN_NAME}" base_output_directory="${SAVE}" \
  "$@"
