#!/bin/bash
# Megatron-FSDP with HSDP, the variable that it refuses unset.
unset CUDA_DEVICE_MAX_CONNECTIONS
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --use-megatron-fsdp \
  --data-parallel-sharding-strategy optim_grads_params --num-distributed-optimizer-instances 2 \
  --ckpt-format fsdp_dtensor --init-model-with-meta-device --no-gradient-accumulation-fusion \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu \
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
  --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \
  --bf16 --micro-batch-size 1 --global-batch-size 128 --vocab-size 128256 --tokenizer-type NullTokenizer \
  --mock-data --train-iters 10 --lr 1e-4 --attention-dropout 0 --hidden-dropout 0 --calculate-per-token-loss
