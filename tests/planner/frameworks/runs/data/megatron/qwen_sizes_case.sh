#!/usr/bin/env bash
# Sizes chosen by case from a variable with a default; a function starts the run; eval of a string.
MODEL_SIZE=${MODEL_SIZE:-7B}
SP=${SP:-true}
AC=${AC:-sel}
TP=${TP:-4}; PP=${PP:-2}; CP=${CP:-1}
export CUDA_DEVICE_MAX_CONNECTIONS=1
case $MODEL_SIZE in
  0.5B|500M) NUM_LAYERS=24; HIDDEN=896; HEADS=14; INTER=4864; GROUPS_=2 ;;
  7B)   NUM_LAYERS=28; HIDDEN=3584; HEADS=28; INTER=18944; GROUPS_=4 ;;
  72B)  NUM_LAYERS=80; HIDDEN=8192; HEADS=64; INTER=29568; GROUPS_=8 ;;
  *) echo "unknown size"; exit 1 ;;
esac
if [ $AC = full ]; then
    activation_options=" --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_options=" --recompute-activations"
else
    activation_options=""
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then sp_options=" --sequence-parallel"; elif [ $SP = false ]; then sp_options=""; fi
megatron_options="  \
    --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN} --num-attention-heads ${HEADS} \
    --ffn-hidden-size ${INTER} --group-query-attention --num-query-groups ${GROUPS_} \
    --seq-length 4096 --max-position-embeddings 32768 --swiglu --normalization RMSNorm \
    --add-qkv-bias --disable-bias-linear --position-embedding-type rope --bf16 \
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size 1 --global-batch-size 512 --train-iters 1000 --lr 1e-5 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --context-parallel-size ${CP} \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B --mock-data"
function run_training() {
    local launcher="torchrun --nproc_per_node ${GPUS:-8} --nnodes ${WORLD_NODES:-4} --node_rank 0"
    run_cmd="$launcher pretrain_gpt.py ${megatron_options} ${activation_options} ${sp_options} $*"
    echo ${run_cmd}
    eval ${run_cmd}
}
run_training --use-distributed-optimizer --overlap-grad-reduce
