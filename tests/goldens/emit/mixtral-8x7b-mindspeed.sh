#!/usr/bin/env bash
# Launch script of MindSpeed-LLM 26.1.0, on Megatron-LM core_v0.12.1.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":64,"ep":8,"etp":1,"gbs":128,"generation":"ascend","layers":32,"mbs":1,"model":"mixtral-8x7b","n_devices":64,"n_micro":2,"n_nodes":8,"padded_vocab":32000,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[32],"tp":1,"unsaid":{"imbalance":1.0,"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":1}
#
# Run it once on each of the 8 node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node), where CANN and torch_npu are set up. Further options of your own go after the script
# name and win over those below, for example: mindspeed.sh --train-iters 20.
# The learning rate does not change the cost and is yours.
set -euo pipefail

MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"
NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

# Megatron-LM asks for one queue with tensor or context parallelism.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# Ranks of large jobs start minutes apart: HCCL waits for them, and for slow steps.
export HCCL_CONNECT_TIMEOUT="${HCCL_CONNECT_TIMEOUT:-3600}"
export HCCL_EXEC_TIMEOUT="${HCCL_EXEC_TIMEOUT:-3600}"
# Less fragmentation, launches in two threads, processes bound to cores of their own.
export PYTORCH_NPU_ALLOC_CONF="${PYTORCH_NPU_ALLOC_CONF:-expandable_segments:True}"
export TASK_QUEUE_ENABLE="${TASK_QUEUE_ENABLE:-2}" CPU_AFFINITY_CONF="${CPU_AFFINITY_CONF:-1}"

# ---- YOURS: where things are ----
# Folder of the MindSpeed-LLM checkout, with megatron/ of core_v0.12.1 in it.
MINDSPEED_LLM_DIR="${MINDSPEED_LLM_DIR:-.}"
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_PATH=/models/Meta-Llama-3-8B
DATA_PATH="${DATA_PATH:-}"
TOKENIZER_PATH="${TOKENIZER_PATH:-}"
# ---------------------------------

EXTRA=("$@")
cd "${MINDSPEED_LLM_DIR}"

# Puts real data in place of the synthetic and adds the options of your own.
torchrun() {
  local words=() word
  for word in "$@"; do
    if [[ -n "${DATA_PATH}" && "${word}" == "--mock-data" ]]; then
      # Several weighted paths are several words.
      # shellcheck disable=SC2206
      words+=(--data-path ${DATA_PATH} --split "99,1,0")
    elif [[ -n "${DATA_PATH}" && "${word}" == "NullTokenizer" ]]; then
      words+=(PretrainedFromHF --tokenizer-name-or-path)
      words+=("${TOKENIZER_PATH:?set it with DATA_PATH}")
    else
      words+=("${word}")
    fi
  done
  command torchrun "${words[@]}" "${EXTRA[@]+"${EXTRA[@]}"}"
}

# Options, each group from a new line:
# model, experts, layout, batch and schedule, precision and optimizer, overlap, logging, evaluation, data, checkpoints.
torchrun --nnodes 8 --nproc-per-node 8 --node-rank "${NODE_RANK}" \
  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
  pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --normalization RMSNorm --vocab-size 32000 \
  --make-vocab-size-divisible-by 128 --hidden-dropout 0.0 --attention-dropout 0.0 \
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --use-mcore-models --transformer-impl local \
  --no-masked-softmax-fusion --use-flash-attn --use-fused-rotary-pos-emb --use-fused-rmsnorm \
  --use-fused-swiglu \
  --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 14336 --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 --moe-token-dispatcher-type alltoall \
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm \
  --gemm-gradient-accumulation-fusion --moe-permute-fusion \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 128 --train-iters 10 \
  --bf16 --accumulate-allreduce-grads-in-fp32 --optimizer adam --lr 1.5e-4 --clip-grad 1.0 \
  --overlap-grad-reduce --overlap-param-gather \
  --log-interval 1 --log-throughput \
  --eval-iters 0 --eval-interval 1000 \
  --mock-data --tokenizer-type NullTokenizer \
  --ckpt-format torch
