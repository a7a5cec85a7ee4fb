#!/usr/bin/env bash
# Megatron-LM launch script; flags as of Megatron-LM (megatron-core) 0.19.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":4,"etp":1,"gbs":128,"generation":"hopper","layers":12,"mbs":1,"model":"small","n_devices":24,"n_micro":16,"n_nodes":3,"padded_vocab":128256,"pipeline_partition":"type:block","pp":3,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"1f1b","shard":0,"sp":false,"split":"even","stage_layers":[4,4,4],"tp":1,"unsaid":{"imbalance":1.0,"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":1}
#
# Run it once on each of the 3 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
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

SMOKE=""
if [[ "${1:-}" == "--smoke" ]]; then
  echo "--smoke: the layers of this model have kernels for GPUs alone" >&2
  exit 2
fi
EXTRA=("$@")

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
# model, kinds of layers, experts, layout, batch and schedule, precision and optimizer, overlap, logging, evaluation, data.
torchrun --nnodes 3 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  "${MEGATRON_DIR}/pretrain_hybrid.py" \
  --num-layers 12 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16 \
  --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --normalization RMSNorm --vocab-size 128256 \
  --make-vocab-size-divisible-by 128 --hidden-dropout 0.0 --attention-dropout 0.0 \
  --attention-backend flash --group-query-attention --num-query-groups 8 --swiglu \
  --disable-bias-linear --untie-embeddings-and-output-weights --cross-entropy-loss-fusion \
  --cross-entropy-fusion-impl native --mamba-num-heads 32 --mamba-head-dim 64 --mamba-num-groups 8 \
  --mamba-state-dim 128 \
  --hybrid-layer-pattern 'MEM*|EMEM|EM*E' \
  --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec \
  --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --expert-model-parallel-size 4 \
  --expert-tensor-parallel-size 1 --moe-token-dispatcher-type alltoall \
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 3 --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 128 --train-iters 10 \
  --bf16 --accumulate-allreduce-grads-in-fp32 --optimizer adam --lr 1.5e-4 --clip-grad 1.0 \
  --overlap-grad-reduce --overlap-param-gather \
  --log-interval 1 --log-throughput \
  --eval-iters 0 --eval-interval 1000 \
  --mock-data --tokenizer-type NullTokenizer
