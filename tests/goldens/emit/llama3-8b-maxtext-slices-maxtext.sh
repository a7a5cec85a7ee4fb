#!/usr/bin/env bash
# MaxText launcher; maxtext.yml keys as of MaxText 0.2.5.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":2,"cp_comm":"a2a","devices_per_node":4,"dp":16,"ep":1,"etp":1,"gbs":128,"generation":"tpu-v5p","layers":32,"mbs":1,"model":"llama3-8b","n_devices":32,"n_micro":8,"n_nodes":8,"padded_vocab":128256,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":32,"schedule":"none","shard":8,"sp":false,"split":"even","stage_layers":[32],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":3}
#
# Start it once on every TPU host, all 32 devices as JAX counts them: XPK does that, the
# command stands in maxtext-xpk.txt. The global batch is 128 = 1 x 8 x 16.
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
