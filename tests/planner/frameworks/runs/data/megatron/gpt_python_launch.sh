#! /bin/bash
# The launcher of older PyTorch, arguments as plain strings.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=2
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank 0 --master_addr localhost --master_port 6000"
GPT_ARGS="
    --num-layers 24
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --micro-batch-size 4
    --global-batch-size 64
    --lr 0.00015
    --train-iters 500000
    --lr-decay-iters 320000
    --fp16
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
"
DATA_ARGS="--data-path $DATA_PATH --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 949,50,1"
python -m torch.distributed.launch $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       $GPT_ARGS \
       $DATA_ARGS \
       --distributed-backend nccl \
       --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
