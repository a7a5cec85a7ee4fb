# torchtitan recipe; fields as of torchtitan 0.3.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":16,"ep":1,"etp":1,"gbs":1024,"generation":"hopper","layers":80,"mbs":1,"model":"llama3-70b","n_devices":512,"n_micro":64,"n_nodes":64,"padded_vocab":129024,"pipeline_partition":"","pp":4,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"full","recompute_layers":2,"schedule":"interleaved","shard":0,"sp":true,"split":"even","stage_layers":[4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4,4],"tp":8,"vpp":5,"zero":1}
"""One plan for torchtitan: `--module torchtitan_recipe --config train`.

torchtitan.sh beside this file starts it. Options of the command line win over what stands here.
Learning rate, rotary base, router and initialisation do not change the cost and are yours; so is
torch.compile (--compile.enable), without which the plan is priced.
"""

import os
from dataclasses import dataclass
from functools import partial

import torch.nn as nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
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
LAYERS = 80
HIDDEN = 8192
HEADS = 64
KV_HEADS = 8
HEAD_DIM = 128
FFN = 28672
VOCAB = 128256
SEQ_LEN = 8192

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


class FirstLayersAC(FullAC):
    """Recompute the first layers of every stage."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: int

    def apply(self, model: nn.Module) -> None:
        blocks = model.get_submodule("layers")
        for name, block in list(blocks.named_children())[: self.config.layers]:
            blocks.register_module(name, self._wrap_block(block))


def train() -> Trainer.Config:
    """Return the configuration of the run."""
    # A local batch is the 64 micro-batches of 1 that one
    # pipeline runs in a step; nothing is accumulated beside them.
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS,
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET, dataset_path=DATASET_PATH),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1.5e-4),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
            local_batch_size=64,
            global_batch_size=1024,
            seq_len=SEQ_LEN,
            steps=10,
            mixed_precision_param="bfloat16",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=16,
            fsdp_reshard_after_forward="never",
            tensor_parallel_degree=8,
            enable_sequence_parallel=True,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            pipeline_parallel_degree=4,
            pipeline_parallel_schedule="Interleaved1F1B",
            pipeline_parallel_microbatch_size=1,
            pipeline_parallel_layers_per_stage=4,
            pipeline_parallel_first_stage_less_layers=0,
            pipeline_parallel_last_stage_less_layers=0,
        ),
        activation_checkpoint=FirstLayersAC.Config(layers=2),
    )
