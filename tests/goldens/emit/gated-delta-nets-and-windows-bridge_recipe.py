# Megatron-Bridge recipe; fields as of Megatron-Bridge 0.6.2.
# plan 0123456789ab of result ba9876543210
# planner 0.1.0
# layout: {"cp":1,"devices_per_node":8,"dp":8,"ep":1,"etp":1,"gbs":128,"generation":"hopper","layers":9,"mbs":1,"model":"small","n_devices":24,"n_micro":16,"n_nodes":3,"padded_vocab":128256,"pipeline_partition":"type:block","pp":3,"precision":"bf16","rank_order":"tp-cp-ep-dp-pp","recompute":"none","recompute_layers":0,"schedule":"1f1b","shard":0,"sp":false,"split":"even","stage_layers":[3,3,3],"tp":1,"unsaid":{"max_positions":0,"padded_vocab":0,"tokens":null,"vocab_multiple":128},"vpp":1,"zero":1}
"""One plan for Megatron-Bridge: `pretrain_config()` returns its ConfigContainer.

bridge.sh beside this file runs it. Learning rate, rotary base, loss coefficients and
initialisation do not change the cost and are yours.
"""

import os

import torch
import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    GPTDatasetConfig,
    LoggerConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.transformer.enums import AttnBackend

# ---- YOURS: where things are; bridge.sh sets them ----
DATA_PATH = os.environ.get("DATA_PATH") or None
TOKENIZER_MODEL = os.environ.get("TOKENIZER_MODEL") or None
# ------------------------------------------------------


def model() -> GPTModelProvider:
    """Return the model and how it is split."""
    return GPTModelProvider(
        num_layers=9,
        hidden_size=2048,
        ffn_hidden_size=5632,
        num_attention_heads=16,
        num_query_groups=8,
        kv_channels=128,
        seq_length=8192,
        vocab_size=128256,
        make_vocab_size_divisible_by=128,
        should_pad_vocab=True,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_backend=AttnBackend.flash,
        window_size=(511, 0),
        window_attn_skip_freq=[0, 1, 0, 0, 1, 0, 0, 1, 0],
        experimental_attention_variant="gated_delta_net",
        linear_attention_freq=[1, 0, 0, 1, 0, 0, 1, 0, 0],
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        tensor_model_parallel_size=1,
        sequence_parallel=False,
        pipeline_model_parallel_size=3,
        virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        masked_softmax_fusion=True,
        persist_layer_norm=True,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="native",
        apply_rope_fusion=True,
        transformer_layer_spec=get_transformer_block_with_experimental_attention_variant_spec,
    )


def pretrain_config() -> ConfigContainer:
    """Return the whole configuration of the run."""
    if TOKENIZER_MODEL:
        tokenizer = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=TOKENIZER_MODEL
        )
    else:
        tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=128256)
    return ConfigContainer(
        model=model(),
        train=TrainingConfig(
            micro_batch_size=1,
            global_batch_size=128,
            train_iters=10,
            manual_gc=True,
            manual_gc_interval=100,
        ),
        validation=ValidationConfig(eval_iters=0),
        optimizer=OptimizerConfig(
            optimizer="adam",
            lr=0.00015,
            min_lr=1.5e-05,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=0.95,
            clip_grad=1.0,
            use_distributed_optimizer=True,
        ),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_decay_iters=10),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            bucket_size=40000000,
            average_in_collective=False,
            check_for_nan_in_grad=True,
        ),
        mixed_precision=MixedPrecisionConfig(
            bf16=True,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
            grad_reduce_in_fp32=True,
        ),
        comm_overlap=CommOverlapConfig(
            tp_comm_overlap=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            bucket_size=40000000,
        ),
        dist=DistributedInitConfig(
            use_tp_pp_dp_mapping=False,
            use_megatron_fsdp=False,
        ),
        dataset=GPTDatasetConfig(
            seq_length=8192,
            data_path=DATA_PATH,
            split="99,1,0",
            random_seed=1234,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            dataloader_type="single",
        ),
        logger=LoggerConfig(log_interval=1, log_throughput=True),
        tokenizer=tokenizer,
        checkpoint=CheckpointConfig(
            save=os.environ.get("SAVE") or None,
            load=os.environ.get("SAVE") or None,
            ckpt_format="torch_dist",
        ),
        rng=RNGConfig(seed=1234),
    )


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(pretrain_config(), forward_step)
