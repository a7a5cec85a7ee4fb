#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-64}
TP=8; PP=8
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_addr $MASTER_ADDR --master_port 6000)
GPT_MODEL_ARGS=(
    --num-layers 80
    --hidden-size 8192
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --ffn-hidden-size 28672 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --seq-length 8192 --max-position-embeddings 8192
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 1024 --train-iters 500000 --eval-interval 1000 --bf16 --lr 6.0e-5 --recompute-activations --recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 3 --overlap-param-gather --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
