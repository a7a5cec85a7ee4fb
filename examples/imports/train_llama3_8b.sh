#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-4}
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --seq-length 8192 --max-position-embeddings 8192
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --train-iters 100000 --eval-interval 1000 --bf16 --lr 3.0e-4)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
