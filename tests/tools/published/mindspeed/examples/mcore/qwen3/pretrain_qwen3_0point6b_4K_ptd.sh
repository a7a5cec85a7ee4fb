#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1

NPUS_PER_NODE=8
NNODES=1
TOKENIZER_PATH="your tokenizer path"

torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    --use-mcore-models --transformer-impl local --sequence-parallel \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --num-layers 28 --hidden-size 1024 --num-attention-heads 16 --ffn-hidden-size 3072 \
    --kv-channels 128 --qk-layernorm --group-query-attention --num-query-groups 8 \
    --max-position-embeddings 32768 --make-vocab-size-divisible-by 1 \
    --padded-vocab-size 151936 --rotary-base 1000000 --position-embedding-type rope \
    --disable-bias-linear --swiglu --normalization RMSNorm --norm-epsilon 1e-6 \
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path $TOKENIZER_PATH \
    --no-gradient-accumulation-fusion --attention-softmax-in-fp32 \
    --use-flash-attn --use-fused-rotary-pos-emb --use-rotary-position-embeddings \
    --use-fused-swiglu --use-fused-rmsnorm --no-masked-softmax-fusion \
    --use-distributed-optimizer --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 \
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 32 --train-iters 2000 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --split 100,0,0 --log-interval 1 --eval-interval 1000 --eval-iters 0 \
    --distributed-backend nccl --ckpt-format torch
