#!/bin/bash
# Degrees in a file beside the script; a command read from a heredoc.
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source ./sizes.env
export CUDA_DEVICE_MAX_CONNECTIONS=1
read -r -d '' FLAGS <<EOF
--num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40
--seq-length ${SEQ} --max-position-embeddings ${SEQ} --swiglu --normalization RMSNorm
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
--bf16 --micro-batch-size 1 --global-batch-size 128 --train-iters 100 --lr 1e-4
--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --sequence-parallel
--decoder-first-pipeline-num-layers 8 --decoder-last-pipeline-num-layers 8
--tokenizer-type Llama2Tokenizer --tokenizer-model tok.model --data-path ${DATA}
EOF
torchrun --nproc-per-node=8 --nnodes=4 ${MEGATRON_PATH}/pretrain_gpt.py ${FLAGS}
