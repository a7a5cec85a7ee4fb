torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 \
    --vocab-size 128256 --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 1
