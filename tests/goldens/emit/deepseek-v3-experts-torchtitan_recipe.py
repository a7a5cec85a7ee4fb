# torchtitan recipe; fields as of torchtitan 0.3.0.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":1024,"ep":64,"etp":1,"gbs":8192,"generation":"hopper","layers":61,"mbs":1,"model":"deepseek-v3","n_devices":1024,"n_micro":8,"n_nodes":128,"padded_vocab":129280,"pipeline_partition":"type:block","pp":1,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"none","shard":0,"sp":false,"split":"even","stage_layers":[61],"tp":1,"vpp":1,"zero":3}
"""One plan for torchtitan: `--module torchtitan_recipe --config train`.

torchtitan.sh beside this file starts it. Options of the command line win over what stands here.
Learning rate, rotary base, router and initialisation do not change the cost and are yours; so is
torch.compile (--compile.enable), without which the plan is priced.
"""

import os
from functools import partial

import torch.nn as nn
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw, register_moe_load_balancing_hook
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import (
    make_ffn_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.models.deepseek_v3 import (
    DeepSeekV3Model,
    MTPLoss,
    MTPTransformerBlock,
    make_mla_attention_config,
    parallelize_deepseekv3,
)
from torchtitan.models.deepseek_v3.model import DeepSeekV3TransformerBlock
from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

# ---- YOURS: where things are; torchtitan.sh sets them ----
HF_ASSETS = os.environ.get("HF_ASSETS", "./tests/assets/tokenizer")
DATASET = os.environ.get("DATASET", "c4_test")
DATASET_PATH = os.environ.get("DATASET_PATH") or None
# ----------------------------------------------------------

# The model.
LAYERS = 61
HIDDEN = 7168
HEADS = 128
FFN = 18432
VOCAB = 129280
SEQ_LEN = 8192
Q_RANK = 1536
KV_RANK = 512
QK_NOPE = 128
QK_ROPE = 64
V_HEAD = 128
N_EXPERTS = 256
TOP_K = 8
EXPERT_FFN = 2048
SHARED_FFN = 2048
N_GROUPS = 8
TOP_GROUPS = 4
DENSE_LAYERS = 3
MOE_EVERY = 1
MTP_LAYERS = 1

WEIGHT = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}


def norm(width: int) -> RMSNorm.Config:
    """Return a normalisation."""
    return RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})


def attention(layer: int):
    """Return the attention of one layer."""
    return make_mla_attention_config(
        layer_id=layer,
        dim=HIDDEN,
        n_heads=HEADS,
        q_lora_rank=Q_RANK,
        kv_lora_rank=KV_RANK,
        qk_nope_head_dim=QK_NOPE,
        qk_rope_head_dim=QK_ROPE,
        v_head_dim=V_HEAD,
        attn_backend="flex",
        linear_init=WEIGHT,
        norm_init={"weight": nn.init.ones_},
        depth_init=lambda _: WEIGHT,
        rope=ComplexRoPE.Config(dim=QK_ROPE, max_seq_len=SEQ_LEN, theta=10000.0),
    )


def mlp(width: int):
    """Return a gated MLP of this inner width."""
    return make_ffn_config(
        dim=HIDDEN, hidden_dim=width, w1_param_init=WEIGHT, w2w3_param_init=WEIGHT
    )


def moe():
    """Return the experts of one layer."""
    experts = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), WEIGHT["weight"])
    return make_moe_config(
        num_experts=N_EXPERTS,
        router=make_router_config(
            dim=HIDDEN,
            num_experts=N_EXPERTS,
            gate_param_init=WEIGHT,
            top_k=TOP_K,
            score_func="sigmoid",
            route_norm=True,
            num_expert_groups=N_GROUPS if N_GROUPS > 1 else None,
            num_limited_groups=TOP_GROUPS if N_GROUPS > 1 else None,
        ),
        routed_experts=make_routed_experts_config(
            dim=HIDDEN,
            hidden_dim=EXPERT_FFN,
            num_experts=N_EXPERTS,
            top_k=TOP_K,
            param_init=experts,
            comm_backend="standard",
        ),
        shared_experts=mlp(SHARED_FFN),
    )


def has_experts(layer: int) -> bool:
    """Tell whether a layer has experts."""
    return layer >= DENSE_LAYERS and (layer - DENSE_LAYERS + 1) % MOE_EVERY == 0


def block(layer: int) -> DeepSeekV3TransformerBlock.Config:
    """Return one layer."""
    return DeepSeekV3TransformerBlock.Config(
        attention_norm=norm(HIDDEN),
        ffn_norm=norm(HIDDEN),
        attention=attention(layer),
        feed_forward=None if has_experts(layer) else mlp(FFN),
        moe=moe() if has_experts(layer) else None,
    )


def mtp_block() -> MTPTransformerBlock.Config:
    """Return one layer of multi-token prediction: the last layer behind a projection."""
    last = block(LAYERS - 1)
    return MTPTransformerBlock.Config(
        attention_norm=last.attention_norm,
        ffn_norm=last.ffn_norm,
        attention=last.attention,
        feed_forward=last.feed_forward,
        moe=last.moe,
        enorm=norm(HIDDEN),
        hnorm=norm(HIDDEN),
        eh_proj=Linear.Config(in_features=2 * HIDDEN, out_features=HIDDEN, param_init=WEIGHT),
        mtp_norm=norm(HIDDEN),
    )


def model_spec() -> ModelSpec:
    """Return the model and the code that parallelises it."""
    return ModelSpec(
        name="deepseek_v3",
        flavor="plan",
        model=DeepSeekV3Model.Config(
            dim=HIDDEN,
            vocab_size=VOCAB,
            tok_embeddings=Embedding.Config(
                num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init=WEIGHT
            ),
            norm=norm(HIDDEN),
            lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=WEIGHT),
            layers=[block(layer) for layer in range(LAYERS)],
            mtp_layers=[mtp_block() for _ in range(MTP_LAYERS)],
        ),
        parallelize_fn=parallelize_deepseekv3,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=register_moe_load_balancing_hook,
        state_dict_adapter=DeepSeekV3StateDictAdapter,
    )


def train() -> Trainer.Config:
    """Return the configuration of the run."""
    # 8 local batches are accumulated in a step.
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=HF_ASSETS,
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET, dataset_path=DATASET_PATH),
        loss=MTPLoss.Config(global_vocab_size=VOCAB),
        optimizer=default_adamw(lr=1.5e-4),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
            local_batch_size=1,
            global_batch_size=8192,
            seq_len=SEQ_LEN,
            steps=10,
            mixed_precision_param="bfloat16",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=1024,
            fsdp_reshard_after_forward="always",
            tensor_parallel_degree=1,
            enable_sequence_parallel=False,
            context_parallel_degree=1,
            expert_parallel_degree=64,
            pipeline_parallel_degree=1,
        ),
        activation_checkpoint=None,
    )
