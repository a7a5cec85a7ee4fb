#!/bin/bash
#SBATCH --job-name=llama3-70b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# One task a node starts torchrun through bash -c; sizes follow from the job.
set -euo pipefail
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8
PP=${PP:-4}
GPUS=$((SLURM_NNODES * SLURM_GPUS_ON_NODE))
DP=$((GPUS / TP / PP))
MBS=1
GBS=$((DP * 64))
MODEL="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256"
PARALLEL="--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
  --num-virtual-stages-per-pipeline-rank 5 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
srun --container-image=nvcr.io/nvidia/pytorch:25.01-py3 bash -c "
  torchrun --nnodes \$SLURM_NNODES --nproc-per-node 8 --rdzv-endpoint $head_node_ip:29500 \
    pretrain_gpt.py $MODEL $PARALLEL --bf16 --micro-batch-size $MBS --global-batch-size $GBS \
    --train-samples 10000000 --mock-data --tokenizer-type NullTokenizer --lr 1e-4 \
    --cross-entropy-loss-fusion
"
