#!/bin/bash
#SBATCH -N 4 --ntasks-per-node=8 --gres=gpu:a100:8 -t 4:00:00
# Options in one string, the whole command in another; one task a device.
export CUDA_DEVICE_MAX_CONNECTIONS=1
NAME="gpt3-8b"
options=" \
    --tensor-model-parallel-size 4 \
    --sequence-parallel \
    --pipeline-model-parallel-size 1 \
    --use-distributed-optimizer \
    --recompute-activations \
    --num-layers 32 \
    --hidden-size 4096 \
    --num-attention-heads 32 \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --micro-batch-size 4 \
    --global-batch-size 256 \
    --train-samples 268554688 \
    --lr 3.0e-4 \
    --min-lr 3.0e-5 \
    --lr-decay-style cosine \
    --log-interval 10 \
    --tokenizer-type GPTSentencePieceTokenizer \
    --tokenizer-model /data/nemotron_2_256k.model \
    --data-path ${DATA_BLEND} \
    --split 98,2,0 \
    --clip-grad 1.0 \
    --squared-relu \
    --disable-bias-linear \
    --bf16 "
run_cmd="python -u /opt/megatron/pretrain_gpt.py ${options}"
srun -l \
     --container-image /images/megatron.sqsh \
     --output=/logs/${NAME}_%j.log sh -c "${run_cmd}"
set +x
