"""Writes a plan as a Megatron-Bridge recipe and the launcher that starts it.

A recipe is a Python function that returns a ConfigContainer. Its model provider is a
TransformerConfig of megatron-core, so the fields are those behind Megatron-LM's flags; all values
stand as literals, so that the recipe can be read and checked without Megatron-Bridge.
"""

from collections.abc import Iterable, Mapping

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.tuning.records import TuningJob
from planner.frameworks.bridge.adapters import (
    MODULES,
    adapter_class,
    adapter_fields,
    adapter_refusals,
)
from planner.frameworks.bridge.wan import (
    UNUSED_VOCAB,
    WAN_IMPORT,
    WAN_STEP,
    wan_dataset,
    wan_fields,
)
from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import (
    EmittedCode,
    fact_lines,
    guarded,
    head,
    keywords,
    nodes,
    python_literal,
    stated_or_none,
    train_steps,
)
from planner.frameworks.megatron.core_details import comment_lines, core_details
from planner.frameworks.megatron.emitter import (
    CP_COMM_TYPE,
    attention_backend,
    environment,
    stage_layout,
    stage_split,
    zero_replicas,
)
from planner.frameworks.megatron.layer_kinds import pattern_settings
from planner.frameworks.megatron.mode_settings import (
    dispatcher_settings,
    graph_settings,
    offload_settings,
    overlap_settings,
)
from planner.frameworks.releases import lacking_options
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.megatron.layer_kinds import is_hybrid, layer_count
from searches.frameworks.megatron.layouts import vocab_divisor
from searches.frameworks.registry import framework_rules
from searches.frameworks.releases import version_key

PROVIDER = "MLAModelProvider"
"""The provider whose fields are tabled: that of all models, with those of latent attention."""
MAIN_GRADS = {2: EmittedCode("torch.bfloat16")}
"""Number format of Megatron-FSDP's main gradients by their bytes; fp32 otherwise."""


def bridge_files(request: EmitRequest) -> dict[str, str]:
    """Return the recipe and its launcher."""
    return {
        "bridge_recipe.py": bridge_recipe(request),
        "bridge.sh": _launcher(request),
    }


def model_fields(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob,
    details: DetailsSpec = NO_DETAILS,
) -> dict[str, object]:
    """Return the fields of the model provider."""
    of_core = core_details(details, layout, shape, job)
    detail_fields = {_renamed(dest, shape): value for dest, value in of_core.model.items()}
    if detail_fields.pop("quick_geglu", False):
        detail_fields["activation_func"] = EmittedCode("quick_gelu")
    if detail_fields.pop("squared_relu", False):
        detail_fields["activation_func"] = EmittedCode("squared_relu")
    experts = dict(of_core.experts) if shape.n_experts else {}
    return {
        **_size_fields(layout, shape, job, of_core.model),
        **detail_fields,
        **_expert_fields(layout, shape),
        **experts,
        **_layout_fields(layout, shape),
        **_recompute_fields(layout),
        **pattern_settings(layout, shape),
        **_fusion_fields(shape, details),
        **_graph_fields(layout, shape),
        **offload_settings(layout),
        **({"fp8_output_proj": True} if job.fp8_output else {}),
    }


def _graph_fields(layout: Layout, shape: ModelShape) -> dict[str, object]:
    """Return the fields of CUDA graphs; the check for NaN is the data parallelism's."""
    fields = graph_settings(layout, shape)
    fields.pop("check_for_nan_in_loss_and_grad", None)
    return fields | ({"use_te_rng_tracker": True} if fields.pop("te_rng_tracker", None) else {})


def _renamed(dest: str, shape: ModelShape) -> str:
    """Return the field of the provider for a setting of Megatron-LM's parser."""
    name = _FIELDS.get(dest, dest)
    return f"yarn_{name}" if name in _YARN and not shape.latent else name


def _size_fields(
    layout: Layout, shape: ModelShape, job: TrainingJob, settings: Mapping[str, object]
) -> dict[str, object]:
    dropout = 0.1 if shape.dropout else 0.0
    fields: dict[str, object] = {
        "num_layers": layer_count(shape),
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_dim,
        "seq_length": job.seq_len,
        "vocab_size": shape.vocab,
        "make_vocab_size_divisible_by": vocab_divisor(shape, layout.tp),
        "should_pad_vocab": True,
        "share_embeddings_and_output_weights": shape.tied,
        "position_embedding_type": "rope" if shape.positions == "rope" else "learned_absolute",
        "normalization": "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": shape.gated,
        "activation_func": EmittedCode("F.silu" if shape.gated else "F.gelu"),
        "add_bias_linear": shape.bias,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "attention_backend": EmittedCode(f"AttnBackend.{attention_backend(shape, settings)}"),
    }
    if shape.latent:
        del fields["num_query_groups"], fields["kv_channels"]
        fields |= {
            "multi_latent_attention": True,
            "q_lora_rank": shape.q_rank or None,
            "kv_lora_rank": shape.kv_rank,
            "qk_head_dim": shape.qk_nope,
            "qk_pos_emb_head_dim": shape.qk_rope,
            "v_head_dim": shape.v_head,
        }
    return fields | ({"mtp_num_layers": shape.mtp_layers} if shape.mtp_layers else {})


def _expert_fields(layout: Layout, shape: ModelShape) -> dict[str, object]:
    if not shape.n_experts:
        return {}
    fields: dict[str, object] = {
        "num_moe_experts": shape.n_experts,
        "moe_router_topk": shape.top_k,
        "moe_ffn_hidden_size": shape.expert_ffn,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        **dispatcher_settings(layout),
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2,
        "moe_grouped_gemm": True,
    }
    if shape.shared_ffn:
        fields["moe_shared_expert_intermediate_size"] = shape.shared_ffn
    if shape.n_groups > 1:
        fields["moe_router_num_groups"] = shape.n_groups
        fields["moe_router_group_topk"] = shape.top_groups
    if shape.capacity_factor:
        fields["moe_expert_capacity_factor"] = shape.capacity_factor
        fields["moe_pad_expert_input_to_capacity"] = True
    if shape.forced_balance:
        fields["moe_router_force_load_balancing"] = True
    if not all(shape.expert_layers) and not is_hybrid(shape):
        fields["moe_layer_freq"] = [int(experts) for experts in shape.expert_layers]
    if shape.top_k == 1:
        fields["moe_router_pre_softmax"] = True  # refused otherwise
    return fields


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _layout_fields(layout: Layout, shape: ModelShape) -> dict[str, object]:
    fields: dict[str, object] = {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
    }
    if layout.cp > 1:
        fields["cp_comm_type"] = CP_COMM_TYPE[layout.cp_comm]
    if is_hybrid(shape):  # a pattern has the cuts in it
        return fields
    split, _ = stage_split(layout, shape)
    if layout.pp > 1 and split == "ends":
        fields["account_for_embedding_in_pipeline_split"] = True
        fields["account_for_loss_in_pipeline_split"] = True
    elif layout.pp > 1 and split == "layout":
        layout_string = stage_layout(layout.stage_layers, shape.mtp_layers)
        fields["pipeline_model_parallel_layout"] = layout_string
    return fields


def _recompute_fields(layout: Layout) -> dict[str, object]:
    if layout.recompute == "full" and layout.recompute_layers:
        return {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": layout.recompute_layers,
        }
    if layout.recompute == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": list(layout.recompute_modules),
        }
    if layout.activation_offload:
        return {
            "cpu_offloading": True,
            "cpu_offloading_num_layers": layout.activation_offload_layers,
            "cpu_offloading_weights": False,
        }
    return {}


def _fusion_fields(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the fused kernels that Megatron-LM turns on by itself."""
    fusible = details.activation != "squared_relu"
    fields: dict[str, object] = {
        "bias_activation_fusion": (shape.gated or shape.bias) and fusible,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "persist_layer_norm": True,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "native",
    }
    if shape.positions == "rope" and not shape.latent:
        fields["apply_rope_fusion"] = True
    return fields


def precision_fields(job: TrainingJob) -> dict[str, object]:
    """Return the fields of the mixed precision, which Megatron-Bridge copies to all parts."""
    recipe = job.recipe
    dtypes = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32"}
    dtype = EmittedCode(f"torch.{dtypes[recipe.gemm_precision]}")
    name = "fp32" if recipe.gemm_precision == "tf32" else recipe.gemm_precision
    fields: dict[str, object] = {
        name: True,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "grad_reduce_in_fp32": recipe.grad_wire_bytes == 4,
    }
    if recipe.fp8_recipe:
        form = "e4m3" if recipe.fp8_recipe == "mxfp8" else "hybrid"
        fields |= {"fp8": form, "fp8_recipe": recipe.fp8_recipe}
    if recipe.fp4_recipe:
        fields |= {"fp4": "e2m1", "fp4_recipe": recipe.fp4_recipe}
    if job.fp8_param_gather:
        fields["fp4_param_gather" if recipe.fp4_recipe else "fp8_param_gather"] = True
        if recipe.fp8_recipe == "mxfp8":  # which Megatron-Bridge insists on
            fields["reuse_grad_buf_for_mxfp8_param_ag"] = True
    if any(job.bf16_layers) and (recipe.fp8_recipe or recipe.fp4_recipe):
        fields["first_last_layers_bf16"] = True
        fields["num_layers_at_start_in_bf16"] = job.bf16_layers[0]
        fields["num_layers_at_end_in_bf16"] = job.bf16_layers[1]
    if job.fp8_attention:
        fields["fp8_dot_product_attention"] = True
    if job.optimizer_states != "fp32" and not (recipe.fp8_recipe or recipe.fp4_recipe):
        # The optimizer takes the scaling over, and keeps the low half of the master copy apart
        # only with this one, which Megatron-LM has without fp8 too.
        fields["fp8_recipe"] = "delayed"
    return fields


def ddp_fields(layout: Layout, job: TrainingJob) -> dict[str, object]:
    """Return the fields of the data parallelism."""
    ranks = layout.dp * layout.cp
    fields: dict[str, object] = {
        "use_distributed_optimizer": layout.zero > 0
        or layout.optimizer_offload
        or job.optimizer_states != "fp32",
        "overlap_grad_reduce": layout.dp_overlap and ranks > 1,
        "overlap_param_gather": layout.dp_overlap and ranks > 1 and layout.zero > 0,
        # What Megatron-LM takes by itself; Megatron-Bridge would take larger ones.
        "bucket_size": max(40_000_000, 1_000_000 * ranks),
        "average_in_collective": False,
        "check_for_nan_in_grad": layout.value("cuda_graph") != "full_iteration",
    }
    if zero_replicas(layout) > 1:
        fields["num_distributed_optimizer_instances"] = zero_replicas(layout)
    if layout.zero >= 2:
        wide = job.recipe.grad_wire_bytes == 4
        low = EmittedCode(
            "torch.float16" if job.recipe.gemm_precision == "fp16" else "torch.bfloat16"
        )
        fields |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": {2: "optim_grads", 3: "optim_grads_params"}[
                layout.zero
            ],
            "megatron_fsdp_main_grads_dtype": MAIN_GRADS.get(
                int(job.recipe.grad_bytes), EmittedCode("torch.float32")
            ),
            "megatron_fsdp_grad_comm_dtype": EmittedCode("torch.float32") if wide else low,
        }
    return fields


def refuse_lacking_fields(framework: str, fields: Iterable[str]) -> None:
    """Raise `RefusedPlanError` for fields of a model provider that a release does not have.

    Of those that another known release has.
    """
    rules = framework_rules(framework)
    lacking = lacking_options(framework, [f"{PROVIDER}.{name}" for name in fields])
    if lacking:
        raise RefusedPlanError(
            [
                f"fields: {rules.title} {rules.release} does not have {one.words};"
                f" closest: {one.instead}"
                for one in lacking
            ]
        )


def bridge_recipe(request: EmitRequest) -> str:
    """Return the recipe."""
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    release = request.release_of("bridge")
    title = f"Megatron-Bridge recipe; fields as of Megatron-Bridge {release}."
    fsdp, steps = layout.zero >= 2, train_steps(job)
    if shape.diffusion:
        model = wan_fields(shape) | _layout_fields(layout, shape) | _recompute_fields(layout)
    else:
        model = model_fields(layout, shape, job, details)
        refuse_lacking_fields(f"bridge@{release}", model)
    missing = core_details(details, layout, shape, job).yours
    yours = [*comment_lines(missing, "megatron-core has no field for this.")]
    if fsdp:
        model["gradient_accumulation_fusion"] = False
        model["init_model_with_meta_device"] = layout.zero == 3
    ddp = ddp_fields(layout, job)
    overlap = {
        "tp_comm_overlap": layout.tp_overlap,
        **overlap_settings(layout),
        **{k: ddp[k] for k in ("overlap_grad_reduce", "overlap_param_gather", "bucket_size")},
    }
    dist = {"use_tp_pp_dp_mapping": layout.rank_order == "tp-cp-ep-pp-dp"}
    if layout.zero == 1 and layout.pp > 1 and zero_replicas(layout) > 1:
        dist["align_grad_reduce"] = False  # why: planner.frameworks.megatron.emitter
    checkpoint = {
        "save": EmittedCode('os.environ.get("SAVE") or None'),
        "load": EmittedCode('os.environ.get("SAVE") or None'),
        "ckpt_format": "fsdp_dtensor" if fsdp else "torch_dist",
    }
    if job.tuning:
        refuse_adapters(job.tuning, shape)
        checkpoint["pretrained_checkpoint"] = EmittedCode('os.environ.get("PRETRAINED") or None')
    optimizer = {
        **_optimizer_fields(job),
        "lr": 1.5e-4,
        "min_lr": 1.5e-5,
        "weight_decay": 0.1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "clip_grad": 1.0,
        "use_distributed_optimizer": layout.zero > 0 or layout.optimizer_offload,
    }
    if job.optimizer_states != "fp32":
        bf16 = EmittedCode("torch.bfloat16")
        optimizer |= {
            "use_distributed_optimizer": True,
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": bf16,
            "exp_avg_sq_dtype": bf16,
        }
        if job.recipe.grad_bytes == 2:
            optimizer["main_grads_dtype"] = bf16
    if layout.optimizer_offload:
        optimizer |= {
            "use_precision_aware_optimizer": True,
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": 1.0,
            "overlap_cpu_optimizer_d2h_h2d": True,
        }
    train = {
        "micro_batch_size": layout.mbs,
        "global_batch_size": layout.gbs,
        "train_iters": steps,
        "manual_gc": True,
        "manual_gc_interval": 100,
    }
    module, provider = _provider(shape, release)
    if "experimental_attention_variant" in model:
        model["transformer_layer_spec"] = EmittedCode(_VARIANT_SPEC)
    parts = [
        "\n".join(head(title, request.header, fact_lines(request, stated_or_none(details)))[1:]),
        _PREAMBLE.format(
            module=module,
            provider=provider,
            free=_FREE[bool(details.stated())],
            imports=_adapter_import(job, shape)
            + (WAN_IMPORT if shape.diffusion else "")
            + _IMPORTS.get(str(model["activation_func"]), "")
            + _VARIANT_IMPORT * ("transformer_layer_spec" in model),
            yours="".join(f"{line}\n" for line in (*yours, "")) if yours else "",
        ),
        _MODEL.format(provider=provider, fields=keywords(model, 8)),
        _CONFIG.format(
            vocab=shape.vocab or UNUSED_VOCAB,
            steps=steps,
            dataset=wan_dataset(shape, layout)
            if shape.diffusion
            else _TEXT_DATASET.format(seq_len=job.seq_len),
            forward_step=WAN_STEP if shape.diffusion else _TEXT_STEP,
            train=_call("TrainingConfig", train),
            optimizer=_call("OptimizerConfig", optimizer),
            ddp=_call("DistributedDataParallelConfig", ddp),
            precision=_call("MixedPrecisionConfig", precision_fields(job)),
            overlap=_call("CommOverlapConfig", overlap),
            dist=_call("DistributedInitConfig", dist | {"use_megatron_fsdp": fsdp}),
            checkpoint=_call("CheckpointConfig", checkpoint),
            peft=_adapters(job, shape),
            program="finetune" if job.tuning else "pretrain",
        ),
    ]
    return "\n".join(parts)


def refuse_adapters(tuning: TuningJob, shape: ModelShape) -> None:
    """Raise `RefusedPlanError` for adapters that no recipe says."""
    if reasons := adapter_refusals(tuning, shape):
        raise RefusedPlanError(reasons)


def _adapter_import(job: TrainingJob, shape: ModelShape) -> str:
    if job.tuning is None:
        return ""
    kind = adapter_class(job.tuning, shape)
    return f"from megatron.bridge.peft.{MODULES[kind]} import {kind}\n"


def _adapters(job: TrainingJob, shape: ModelShape) -> str:
    """Return the line of the configuration that says the adapters; none where there are none."""
    if job.tuning is None:
        return ""
    call = _call(adapter_class(job.tuning, shape), adapter_fields(job.tuning, shape))
    return f"        peft={call},\n"


def _provider(shape: ModelShape, release: str) -> tuple[str, str]:
    """Return the module and the class of the provider of a model in a release."""
    if shape.diffusion:
        return "diffusion.models.wan.wan_provider", "WanModelProvider"
    if is_hybrid(shape):
        if version_key(release) < version_key("0.6"):
            return "models.mamba.mamba_provider", "MambaModelProvider"
        return "models.hybrid.hybrid_provider", "HybridModelProvider"
    if shape.latent:
        return "models.mla_provider", "MLAModelProvider"
    return "models.gpt_provider", "GPTModelProvider"


def _optimizer_fields(job: TrainingJob) -> dict[str, object]:
    """Return the name of the optimizer, and Muon's options."""
    if job.optimizer != "muon":
        return {"optimizer": job.optimizer}
    names = ("num_ns_steps", "tp_mode", "scalar_optimizer")
    options = {f"muon_{name}": getattr(job.muon, name) for name in names}
    return {"optimizer": "muon", **options}


def _call(name: str, fields: Mapping[str, object]) -> str:
    """Return a call with keyword arguments, on one line where it fits."""
    inner = ", ".join(f"{key}={python_literal(value)}" for key, value in fields.items())
    if len(name) + len(inner) <= 64:
        return f"{name}({inner})"
    return f"{name}(\n{keywords(fields, 12)}        )"


def _base(job: TrainingJob) -> str:
    """Return the setting that names the frozen weights; none where all weights are trained."""
    return _PRETRAINED if job.tuning else ""


_PRETRAINED = """# Checkpoint of the model in Megatron-Bridge's format: its weights stay frozen.
export PRETRAINED="${PRETRAINED:?a checkpoint of the model}"
"""


def _launcher(request: EmitRequest) -> str:
    n_nodes, per_node = nodes(request.layout, request.pool)
    core = core_details(request.details, request.layout, request.shape, request.job)
    release = request.release_of("bridge")
    title = f"Megatron-Bridge launcher; bridge_recipe.py as of Megatron-Bridge {release}."
    lines = [
        *head(title, request.header, fact_lines(request, stated_or_none(request.details))),
        *guarded(_SETTINGS.format(n_nodes=n_nodes, base=_base(request.job)), core.yours),
        *environment(request),
        f'torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\',
        '  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\',
        '  "${HERE}/bridge_recipe.py" "$@"',
    ]
    return "\n".join(lines) + "\n"


_SETTINGS = """#
# Run it once on each of the {n_nodes} node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node).
set -euo pipefail

HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

# ---- YOURS: where things are; bridge_recipe.py reads them ----
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_MODEL=meta-llama/Meta-Llama-3-8B
export DATA_PATH="${{DATA_PATH:-}}" TOKENIZER_MODEL="${{TOKENIZER_MODEL:-}}"
# Folder of the checkpoints; empty: none are written.
export SAVE="${{SAVE:-}}"
{base}# --------------------------------------------------------------

"""

_FREE = {
    False: "Learning rate, rotary base, loss coefficients and\n"
    "initialisation do not change the cost and are yours.",
    True: "The learning rate does not change the cost and is\nyours.",
}
"""What no figure of a plan depends on, by whether the model file states its details."""
_FIELDS = {
    "use_rope_scaling": "rope_scaling",
    "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
}
"""Fields of the provider by setting of Megatron-LM's parser, where they differ."""
_YARN = ("rotary_scaling_factor", "mscale", "mscale_all_dim")
"""Settings that latent attention has as they are, other attention under `yarn_`."""
_IMPORTS = {
    "quick_gelu": "from megatron.core.fusions.fused_bias_geglu import quick_gelu\n",
    "squared_relu": "from megatron.core.activations import squared_relu\n",
}
_VARIANT_SPEC = "get_transformer_block_with_experimental_attention_variant_spec"
"""Builds layers with gated delta nets, which the provider's own default does not."""
_VARIANT_IMPORT = (
    "from megatron.core.models.gpt.experimental_attention_variant_module_specs import (\n"
    f"    {_VARIANT_SPEC},\n)\n"
)

_PREAMBLE = '''"""One plan for Megatron-Bridge: `pretrain_config()` returns its ConfigContainer.

bridge.sh beside this file runs it. {free}
"""

import os

import torch
import torch.nn.functional as F
from megatron.bridge.{module} import {provider}
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
{imports}from megatron.core.transformer.enums import AttnBackend

{yours}# ---- YOURS: where things are; bridge.sh sets them ----
DATA_PATH = os.environ.get("DATA_PATH") or None
TOKENIZER_MODEL = os.environ.get("TOKENIZER_MODEL") or None
# ------------------------------------------------------

'''

_MODEL = '''def model() -> {provider}:
    """Return the model and how it is split."""
    return {provider}(
{fields}    )

'''

_TEXT_DATASET = """GPTDatasetConfig(
            seq_length={seq_len},
            data_path=DATA_PATH,
            split="99,1,0",
            random_seed=1234,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            dataloader_type="single",
        )"""
_TEXT_STEP = "    from megatron.bridge.training.gpt_step import forward_step\n"
_CONFIG = '''def pretrain_config() -> ConfigContainer:
    """Return the whole configuration of the run."""
    if TOKENIZER_MODEL:
        tokenizer = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=TOKENIZER_MODEL
        )
    else:
        tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size={vocab})
    return ConfigContainer(
        model=model(),
        train={train},
        validation=ValidationConfig(eval_iters=0),
        optimizer={optimizer},
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_decay_iters={steps}),
        ddp={ddp},
        mixed_precision={precision},
        comm_overlap={overlap},
        dist={dist},
        dataset={dataset},
        logger=LoggerConfig(log_interval=1, log_throughput=True),
        tokenizer=tokenizer,
        checkpoint={checkpoint},
{peft}        rng=RNGConfig(seed=1234),
    )


if __name__ == "__main__":
{forward_step}    from megatron.bridge.training.{program} import {program}

    {program}(pretrain_config(), forward_step)
'''
