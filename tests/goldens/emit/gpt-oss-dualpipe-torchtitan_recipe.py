# torchtitan recipe; fields as of torchtitan 0.3.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":8,"etp":1,"gbs":128,"generation":"hopper","layers":24,"mbs":1,"model":"gpt-oss-20b","n_devices":32,"n_micro":16,"n_nodes":4,"padded_vocab":201088,"pipeline_partition":"","pp":4,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"dualpipe-v","shard":0,"sp":false,"split":"even","stage_layers":[3,3,3,3,3,3,3,3],"tp":1,"vpp":2,"zero":1}
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
from torchtitan.components.optimizer import default_adamw, register_moe_load_balancing_hook
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import FusedQKVLinear
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_token_dispatcher_config,
)
from torchtitan.models.common.linear import ScaledBiasRowwiseLinear
from torchtitan.models.common.moe import RoutedExperts, TokenChoiceTopKRouter
from torchtitan.models.gpt_oss import GptOssModel, parallelize_gptoss
from torchtitan.models.gpt_oss.model import Attention, GptOssTransformerBlock
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts, GptOssMoE
from torchtitan.models.gpt_oss.state_dict_adapter import GptOssStateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

# ---- YOURS: where things are; torchtitan.sh sets them ----
HF_ASSETS = os.environ.get("HF_ASSETS", "./tests/assets/tokenizer")
DATASET = os.environ.get("DATASET", "c4_test")
DATASET_PATH = os.environ.get("DATASET_PATH") or None
# ----------------------------------------------------------

# The model.
LAYERS = 24
HIDDEN = 2880
HEADS = 64
KV_HEADS = 8
HEAD_DIM = 64
FFN = 14336
VOCAB = 201088
SEQ_LEN = 8192
N_EXPERTS = 32
TOP_K = 4
EXPERT_FFN = 2880
SHARED_FFN = 0
N_GROUPS = 1
TOP_GROUPS = 1
DENSE_LAYERS = 0
MOE_EVERY = 1
# Every second layer of gpt-oss looks back this far; the plan counts all tokens.
WINDOW = 128

WEIGHT = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}


def norm(width: int) -> RMSNorm.Config:
    """Return a normalisation."""
    return RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})


def attention(layer: int) -> Attention.Config:
    """Return the attention of one layer."""
    return Attention.Config(
        dim=HIDDEN,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        qkv_linear=FusedQKVLinear.Config(
            head_dim=HEAD_DIM,
            n_heads=HEADS,
            n_kv_heads=KV_HEADS,
            wqkv=Linear.Config(
                in_features=HIDDEN,
                out_features=(HEADS + 2 * KV_HEADS) * HEAD_DIM,
                bias=True,
                param_init=WEIGHT,
            ),
        ),
        wo=ScaledBiasRowwiseLinear.Config(
            in_features=HEADS * HEAD_DIM, out_features=HIDDEN, bias=True, param_init=WEIGHT
        ),
        sliding_window_size=WINDOW if layer % 2 == 0 else None,
        inner_attention=get_attention_config("flex"),
        param_init={"sinks": WEIGHT["weight"]},
        rope=CosSinRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=150000.0),
    )


def moe() -> GptOssMoE.Config:
    """Return the experts of one layer."""
    names = ("mlp1_weight_EGD", "mlp1_bias_EG", "mlp2_weight_EDF", "mlp2_bias_ED")
    return GptOssMoE.Config(
        num_experts=N_EXPERTS,
        load_balance_coeff=1e-3,
        routed_experts=RoutedExperts.Config(
            inner_experts=GptOssGroupedExperts.Config(
                dim=HIDDEN,
                hidden_dim=EXPERT_FFN,
                num_experts=N_EXPERTS,
                param_init=dict.fromkeys(names, WEIGHT["weight"]),
            ),
            token_dispatcher=make_token_dispatcher_config(
                num_experts=N_EXPERTS, top_k=TOP_K, comm_backend="standard", hidden_dim=HIDDEN
            ),
        ),
        router=TokenChoiceTopKRouter.Config(
            num_experts=N_EXPERTS,
            score_func="softmax",
            route_norm=True,
            gate=Linear.Config(
                in_features=HIDDEN, out_features=N_EXPERTS, bias=True, param_init=WEIGHT
            ),
            top_k=TOP_K,
        ),
    )


def block(layer: int) -> GptOssTransformerBlock.Config:
    """Return one layer."""
    return GptOssTransformerBlock.Config(
        attention_norm=norm(HIDDEN),
        ffn_norm=norm(HIDDEN),
        attention=attention(layer),
        moe=moe(),
    )


def model_spec() -> ModelSpec:
    """Return the model and the code that parallelises it."""
    return ModelSpec(
        name="gpt_oss",
        flavor="plan",
        model=GptOssModel.Config(
            dim=HIDDEN,
            vocab_size=VOCAB,
            tok_embeddings=Embedding.Config(
                num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init=WEIGHT
            ),
            norm=norm(HIDDEN),
            lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=WEIGHT),
            layers=[block(layer) for layer in range(LAYERS)],
        ),
        parallelize_fn=parallelize_gptoss,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=register_moe_load_balancing_hook,
        state_dict_adapter=GptOssStateDictAdapter,
    )


def train() -> Trainer.Config:
    """Return the configuration of the run."""
    # A local batch is the 16 micro-batches of 1 that one
    # pipeline runs in a step; nothing is accumulated beside them.
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS,
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET, dataset_path=DATASET_PATH),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1.5e-4),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
            local_batch_size=16,
            global_batch_size=128,
            seq_len=SEQ_LEN,
            steps=10,
            mixed_precision_param="bfloat16",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=8,
            fsdp_reshard_after_forward="never",
            tensor_parallel_degree=1,
            enable_sequence_parallel=False,
            context_parallel_degree=1,
            expert_parallel_degree=8,
            pipeline_parallel_degree=4,
            pipeline_parallel_schedule="DualPipeV",
            pipeline_parallel_microbatch_size=1,
            pipeline_parallel_layers_per_stage=3,
            pipeline_parallel_first_stage_less_layers=0,
            pipeline_parallel_last_stage_less_layers=0,
        ),
        activation_checkpoint=None,
    )
