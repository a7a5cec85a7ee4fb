#!/usr/bin/env bash
# Megatron-LM launch script; flags as of Megatron-LM (megatron-core) 0.19.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":16,"ep":1,"etp":1,"gbs":1536,"generation":"ampere","layers":96,"mbs":1,"model":"gpt3-175b","n_devices":1024,"n_micro":96,"n_nodes":128,"padded_vocab":51200,"pipeline_partition":"type:block","pp":8,"precision":"fp16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"1f1b","shard":0,"sp":true,"split":"even","stage_layers":[12,12,12,12,12,12,12,12],"tp":8,"unsaid":{"max_positions":0,"padded_vocab":51200,"tokens":300000000000.0,"vocab_multiple":128},"vpp":1,"zero":0}
#
# Run it once on each of the 128 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Further flags of your own go after the script name and win over those below, for
# example: megatron.sh --train-iters 20, or megatron.sh --save DIR --save-interval 500.
# Learning rate, epsilon, rotary base and initialisation do not change the cost and are yours.
set -euo pipefail

MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# ---- YOURS: where things are ----
# Folder of the Megatron-LM checkout.
MEGATRON_DIR="${MEGATRON_DIR:-.}"
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_MODEL=meta-llama/Meta-Llama-3-8B
DATA_PATH="${DATA_PATH:-}"
TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"
# ---------------------------------

# megatron.sh --smoke: two steps on CPU processes of this machine, for a plan of a tiny model.
SMOKE=""
if [[ "${1:-}" == "--smoke" ]]; then
  SMOKE="$(dirname "${BASH_SOURCE[0]}")/megatron_smoke.py"
  shift
fi
EXTRA=("$@")

# One hardware queue keeps collectives ahead of the GEMMs they overlap; required
# with tensor parallelism before Blackwell.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# Puts real data in place of the synthetic and adds the flags of your own.
torchrun() {
  local words=() word
  for word in "$@"; do
    if [[ -n "${DATA_PATH}" && "${word}" == "--mock-data" ]]; then
      # Several weighted paths are several words.
      # shellcheck disable=SC2206
      words+=(--data-path ${DATA_PATH} --split "99,1,0")
    elif [[ -n "${DATA_PATH}" && "${word}" == "NullTokenizer" ]]; then
      words+=(HuggingFaceTokenizer --tokenizer-model "${TOKENIZER_MODEL:?set it with DATA_PATH}")
    else
      words+=("${word}")
    fi
  done
  if [[ -n "${SMOKE}" ]]; then
    exec "${PYTHON:-python3}" "${SMOKE}" "${words[@]}" "${EXTRA[@]}"
  fi
  command torchrun "${words[@]}" "${EXTRA[@]}"
}

# Flags, each group from a new line:
# model, layout, batch and schedule, precision and optimizer, overlap, logging, evaluation, data.
torchrun --nnodes 128 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  "${MEGATRON_DIR}/pretrain_gpt.py" \
  --num-layers 96 --hidden-size 12288 --ffn-hidden-size 49152 --num-attention-heads 96 \
  --kv-channels 128 --seq-length 2048 --max-position-embeddings 2048 \
  --position-embedding-type learned_absolute --normalization LayerNorm --vocab-size 50257 \
  --make-vocab-size-divisible-by 128 --hidden-dropout 0.1 --attention-dropout 0.1 \
  --attention-backend flash --cross-entropy-loss-fusion --cross-entropy-fusion-impl native \
  --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 8 \
  --micro-batch-size 1 --global-batch-size 1536 --train-iters 95368 \
  --fp16 --optimizer adam --lr 1.5e-4 --clip-grad 1.0 \
  --overlap-grad-reduce \
  --log-interval 1 --log-throughput \
  --eval-iters 0 --eval-interval 1000 \
  --mock-data --tokenizer-type NullTokenizer
