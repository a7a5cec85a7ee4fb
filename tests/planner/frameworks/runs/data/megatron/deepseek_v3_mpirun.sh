#!/bin/bash
# MLA, MTP, layout string and dense first layers under mpirun.
export CUDA_DEVICE_MAX_CONNECTIONS=1
MLA=(--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128)
MOE=(
  --num-experts 256 --moe-layer-freq "([0]*3+[1]*58)" --moe-ffn-hidden-size 2048
  --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-router-num-groups 8
  --moe-router-group-topk 4 --moe-router-score-function sigmoid --moe-router-enable-expert-bias
  --moe-grouped-gemm --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep
)
mpirun -np 1024 --map-by ppr:8:node -x MASTER_ADDR \
  python pretrain_gpt.py \
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm \
  --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --qk-layernorm \
  --attention-dropout 0.0 --hidden-dropout 0.0 --mtp-num-layers 1 \
  "${MLA[@]}" "${MOE[@]}" --vocab-size 129280 --tokenizer-type NullTokenizer --mock-data \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 \
  --expert-tensor-parallel-size 1 --pipeline-model-parallel-layout "Et*3|(tt|)*29m|L" \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --recompute-granularity selective \
  --recompute-modules mla_up_proj layernorm mlp --bf16 --fp8-format e4m3 --fp8-recipe blockwise \
  --micro-batch-size 1 --global-batch-size 8192 --train-iters 100 --lr 2.2e-4
