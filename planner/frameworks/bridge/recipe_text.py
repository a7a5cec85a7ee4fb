"""A row of the table of recipes as the Python that it stands for."""

from collections.abc import Mapping
from typing import Any

from planner.frameworks.bridge.recipe_table import BridgeRecipe

_PRECISIONS = {
    "bf16": {},
    "fp8-current": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8-delayed": {"fp8": "hybrid", "fp8_recipe": "delayed"},
    "fp8-blockwise": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "fp8-mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
_SIZES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "ffn_hidden_size": "ffn",
    "kv_channels": "head_dim",
    "vocab_size": "vocab",
    "make_vocab_size_divisible_by": "vocab_multiple",
    "gated_linear_unit": "gated",
    "activation_func": "activation",
    "share_embeddings_and_output_weights": "tied",
    "add_bias_linear": "bias",
    "mtp_num_layers": "mtp_layers",
}
"""Keys of the models file by field of the provider."""
_EXPERTS = {
    "num_moe_experts": "experts",
    "moe_router_topk": "topk",
    "moe_ffn_hidden_size": "moe_ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
    "moe_router_num_groups": "routing_groups",
    "moe_router_group_topk": "top_groups",
}
_LATENT = {
    "q_lora_rank": "q_rank",
    "kv_lora_rank": "kv_rank",
    "qk_head_dim": "qk_nope",
    "qk_pos_emb_head_dim": "qk_rope",
    "v_head_dim": "v_head",
}
_SWITCHES = {
    "model.sequence_parallel": "sp",
    "model.account_for_embedding_in_pipeline_split": "embed_in_split",
    "model.account_for_loss_in_pipeline_split": "loss_in_split",
    "model.moe_shared_expert_overlap": "shared_expert_overlap",
    "model.fine_grained_activation_offloading": "fine_grained_offload",
    "model.cpu_offloading": "offload_activations",
    "model.moe_paged_stash": "moe_paged_stash",
    "model.moe_router_force_load_balancing": "moe_force_balance",
    "ddp.use_distributed_optimizer": "distributed_optimizer",
    "ddp.use_megatron_fsdp": "fsdp",
    "ddp.overlap_grad_reduce": "overlap_grad_reduce",
    "ddp.overlap_param_gather": "overlap_param_gather",
    "ddp.nccl_ub": "nccl_ub",
    "ddp.grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "comm_overlap.tp_comm_overlap": "tp_comm_overlap",
    "comm_overlap.overlap_moe_expert_parallel_comm": "ep_overlap",
    "comm_overlap.delay_wgrad_compute": "delay_wgrad",
    "optimizer.optimizer_cpu_offload": "optimizer_cpu_offload",
    "optimizer.use_precision_aware_optimizer": "precision_aware_optimizer",
    "mixed_precision.grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "mixed_precision.fp8_param_gather": "fp8_param_gather",
    "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": "reuse_grad_buf_for_mxfp8_ag",
}
"""Columns that are switches, by field."""
_NUMBERS = {
    "model.tensor_model_parallel_size": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "model.expert_tensor_parallel_size": "etp",
    "model.seq_length": "seq_len",
    "model.recompute_num_layers": "recompute_num_layers",
    "model.cpu_offloading_num_layers": "offload_layers",
    "model.num_layers_in_first_pipeline_stage": "first_stage_layers",
    "model.num_layers_in_last_pipeline_stage": "last_stage_layers",
    "train.global_batch_size": "gbs",
    "train.micro_batch_size": "mbs",
    "ddp.num_distributed_optimizer_instances": "optimizer_instances",
}
_TEXTS = {
    "model.cp_comm_type": "cp_comm_type",
    "model.recompute_granularity": "recompute_granularity",
    "model.recompute_method": "recompute_method",
    "model.pipeline_model_parallel_layout": "pp_layout",
    "model.cuda_graph_impl": "cuda_graph_impl",
    "ddp.data_parallel_sharding_strategy": "fsdp_strategy",
}
_LISTS = {
    "model.recompute_modules": "recompute_modules",
    "model.offload_modules": "offload_modules",
    "model.cuda_graph_scope": "cuda_graph_modules",
}


def model_fields_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model provider of an entry of the models file."""
    fields = {name: entry[key] for name, key in _SIZES.items() if entry.get(key) is not None}
    if not entry.get("mtp_layers"):
        fields.pop("mtp_num_layers", None)
    fields |= {"normalization": "RMSNorm" if entry.get("norm") == "rmsnorm" else "LayerNorm"}
    fields |= {"position_embedding_type": "rope", "cross_entropy_loss_fusion": True}
    experts, latent = entry.get("moe") or {}, entry.get("mla") or {}
    for names, values in ((_EXPERTS, experts), (_LATENT, latent)):
        fields |= {name: values[key] for name, key in names.items() if values.get(key)}
    if latent:
        fields["multi_latent_attention"] = True
    elif entry.get("kv_heads"):
        fields["num_query_groups"] = entry["kv_heads"]
    if experts.get("layer_freq"):
        fields["moe_layer_freq"] = [int(x) for x in str(experts["layer_freq"])]
    return fields


def recipe_text(recipe: BridgeRecipe) -> str:
    """Return a recipe function with everything that a price depends on as literals."""
    row = recipe.row
    fields: dict[str, Any] = {f"model.{k}": v for k, v in model_fields_of(recipe.model).items()}
    fields |= {path: int(row[c]) for path, c in _NUMBERS.items() if row.get(c)}
    fields |= {path: row[c] for path, c in _TEXTS.items() if row.get(c)}
    fields |= {path: row[c].split("+") for path, c in _LISTS.items() if row.get(c)}
    fields |= {path: row[c] == "1" for path, c in _SWITCHES.items() if row.get(c) in ("0", "1")}
    if int(row.get("vpp") or 1) > 1:
        fields["model.virtual_pipeline_model_parallel_size"] = int(row["vpp"])
    if row["cp"] == "1":
        fields.pop("model.cp_comm_type", None)
    if row.get("precision_aware_optimizer") == "1":
        names = ("main_grads", "main_params", "exp_avg", "exp_avg_sq")
        widths = {name: row[name].replace("bfp16", "bf16") for name in names if row.get(name)}
        fields |= {f"optimizer.{name}_dtype": width for name, width in widths.items()}
    dispatcher = row.get("dispatcher")
    if dispatcher in ("deepep", "hybridep"):
        fields["model.moe_token_dispatcher_type"] = "flex"
        fields["model.moe_flex_dispatcher_backend"] = dispatcher
    elif dispatcher:
        fields["model.moe_token_dispatcher_type"] = dispatcher
    precision = {"bf16": True, **_PRECISIONS.get(row["precision"], {})}
    fields |= {f"mixed_precision.{name}": value for name, value in precision.items()}
    lines = [f"    cfg.{path} = {value!r}" for path, value in fields.items()]
    return _TEXT.format(name=recipe.name, lines="\n".join(lines))


_TEXT = '''"""One of the published performance recipes, as planner/data/recipes holds it."""

from megatron.bridge.training.config import ConfigContainer


def {name}() -> ConfigContainer:
    cfg = ConfigContainer()
{lines}
    return cfg
'''
