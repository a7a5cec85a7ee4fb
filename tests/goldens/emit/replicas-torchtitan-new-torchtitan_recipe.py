# torchtitan recipe; fields as of torchtitan 0.3.0.
# *
# model tiny, cluster several, over several pools
# *
# *
# for nodes 2 to 3, of pool new: 32 of the 48 sequences of a step
# a global batch of 64 stands for 2 accumulation step(s) of 4, as if all ranks took as many
# layout: {"cp":1,"devices_per_node":2,"dp":8,"ep":1,"etp":1,"gbs":64,"generation":"hopper","layers":4,"mbs":4,"model":"tiny","n_devices":8,"n_micro":2,"n_nodes":4,"padded_vocab":32000,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":2,"sp":false,"split":"even","stage_layers":[4],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":1333526528.0,"vocab_multiple":128},"vpp":1,"zero":3}
"""One plan for torchtitan: `--module torchtitan_recipe --config train`.

torchtitan.sh beside this file starts it. Options of the command line win over what stands here.
Learning rate, rotary base, router and initialisation do not change the cost and are yours; so is
torch.compile (--compile.enable), without which the plan is priced.
"""

import os
from functools import partial

import torch.nn as nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
)
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

# ---- YOURS: where things are; torchtitan.sh sets them ----
HF_ASSETS = os.environ.get("HF_ASSETS", "./tests/assets/tokenizer")
DATASET = os.environ.get("DATASET", "c4_test")
DATASET_PATH = os.environ.get("DATASET_PATH") or None
# ----------------------------------------------------------

# The model.
LAYERS = 4
HIDDEN = 2048
HEADS = 16
KV_HEADS = 8
HEAD_DIM = 128
FFN = 8192
VOCAB = 32000
SEQ_LEN = 4096

WEIGHT = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}


def norm(width: int) -> RMSNorm.Config:
    """Return a normalisation."""
    return RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})


def attention(layer: int):
    """Return the attention of one layer."""
    return make_gqa_config(
        dim=HIDDEN,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        fuse_qkv=True,
        wqkv_param_init=WEIGHT,
        wo_param_init=WEIGHT,
        inner_attention=get_attention_config("flex"),
        rope=ComplexRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=500000.0),
    )


def mlp(width: int):
    """Return a gated MLP of this inner width."""
    return make_ffn_config(
        dim=HIDDEN, hidden_dim=width, w1_param_init=WEIGHT, w2w3_param_init=WEIGHT
    )


def block(layer: int) -> Llama3TransformerBlock.Config:
    """Return one layer."""
    return Llama3TransformerBlock.Config(
        attention_norm=norm(HIDDEN),
        ffn_norm=norm(HIDDEN),
        attention=attention(layer),
        feed_forward=mlp(FFN),
    )


def model_spec() -> ModelSpec:
    """Return the model and the code that parallelises it."""
    return ModelSpec(
        name="llama3",
        flavor="plan",
        model=Llama3Model.Config(
            dim=HIDDEN,
            vocab_size=VOCAB,
            tok_embeddings=Embedding.Config(
                num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init=WEIGHT
            ),
            norm=norm(HIDDEN),
            lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=WEIGHT),
            layers=[block(layer) for layer in range(LAYERS)],
        ),
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )


def train() -> Trainer.Config:
    """Return the configuration of the run."""
    # 2 local batches are accumulated in a step.
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS,
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET, dataset_path=DATASET_PATH),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1.5e-4),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
            local_batch_size=4,
            global_batch_size=64,
            seq_len=SEQ_LEN,
            steps=5087,
            mixed_precision_param="bfloat16",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=4,
            data_parallel_shard_degree=2,
            fsdp_reshard_after_forward="always",
            tensor_parallel_degree=1,
            enable_sequence_parallel=False,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            pipeline_parallel_degree=1,
        ),
        activation_checkpoint=None,
    )
