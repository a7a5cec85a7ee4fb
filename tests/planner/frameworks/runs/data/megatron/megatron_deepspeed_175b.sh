#!/bin/bash
set -ex
# Megatron-DeepSpeed: Megatron's flags, the engine's configuration in a heredoc.
DS_CONFIG=ds_config.json
HF=/job/hostfile
TP=1
PP=1
NLAYERS=96
HIDDEN=12288
HEADS=96
SEQ=1024
MICRO_BATCH=4
NODES=64
GPN=8
GLOBAL_BATCH=$(( ${GPN} * ${MICRO_BATCH} * ${NODES} ))
OFFLOAD_DEVICE="none"
CPU_OPTIM=" "
ZERO_STAGE=3
OUTPUT_DIR=out_${OFFLOAD_DEVICE}_stage_${ZERO_STAGE}_nl${NLAYERS}
mkdir -p $OUTPUT_DIR
cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {
    "stage": 3,
    "contiguous_gradients": true,
    "overlap_comm": true,
    "reduce_bucket_size": 90000000,
    "offload_optimizer": { "device": "$OFFLOAD_DEVICE" }
  },
  "fp16": { "enabled": true, "initial_scale_power" : 15 },
  "wall_clock_breakdown": true
}
EOT
ds_args=" --deepspeed"
ds_args=" --no-pipeline-parallel ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
ds_args=" --deepspeed-activation-checkpointing ${ds_args}"
deepspeed --force_multi --num_nodes=$NODES --num_gpus $GPN --hostfile $HF pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers $NLAYERS \
    --hidden-size $HIDDEN \
    --num-attention-heads $HEADS \
    --seq-length $SEQ \
    --max-position-embeddings $SEQ \
    --micro-batch-size $MICRO_BATCH \
    --global-batch-size $GLOBAL_BATCH \
    --train-iters 1000 \
    --lr 6.0e-5 \
    --fp16 \
    --checkpoint-activations \
    $CPU_OPTIM $ds_args \
    --exit-interval 5000 | tee ${OUTPUT_DIR}/output.log
