"""What MindSpeed-LLM refuses: what its Megatron-LM refuses, what it checks itself, the unwritten.

Rule MSLnnn is MLMnnn at megatron-core 0.12.1, which every known release of MindSpeed-LLM runs, as
far as it is one on layouts. Those from 601 on are of MindSpeed itself: features of MindSpeed
(`mindspeed/`) and MindSpeed-LLM (`mindspeed_llm/`) that check arguments, read at release 26.1.0;
those over options are in `options`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.axes import AXES, RECOMPUTE_MODULES
from costmodels.shapes import ModelShape
from searches.frameworks.case import Bools, Case
from searches.frameworks.common import (
    activations_on_device,
    known_optimizer,
    narrow_moments,
    optimizer_on_device,
)
from searches.frameworks.megatron.layouts import LAYOUT_RULES
from searches.frameworks.rule import FrameworkRule, applies

CORE = "0.12.1"
"""The megatron-core that all known releases run (docs/en/release_notes_llm.md)."""
CORE_FEATURES = "mindspeed/features_manager"
FEATURES = "mindspeed_llm/features_manager"
CONTEXT = f"{CORE_FEATURES}/context_parallel/context_parallel_feature.py, validate_args"
ULYSSES = f"{CORE_FEATURES}/context_parallel/ulysses_context_parallel.py, validate_args"
BLOCK = f"{FEATURES}/transformer/transformer_block.py, validate_args"
LAYER_LIST = f"{FEATURES}/pipeline_parallel/num_layer_list.py, validate_args"
ROUTER = f"{FEATURES}/moe/moe_router.py, _validate_moe_args"
ATTENTION = "mindspeed/core/transformer/attention.py, checkpoint_core_attention"

EXCHANGES: Mapping[str, str] = {
    "p2p": "megatron_cp_algo",
    "a2a": "ulysses_cp_algo",
    "all-gather": "kvallgather_cp_algo",
}
"""Value of `--context-parallel-algo` by exchange of a plan."""
RECOMPUTED = ("core_attn", "layernorm", "mlp", "moe")
"""Modules that its layers compute again by themselves; others have switches of MindSpeed."""
REPLACED = {
    "MLM107": "key and value heads are repeated",
    "MLM111": "there are no replicated shards",
    "MLM401": "shards of gradients and weights are not written",
    "MLM402": "states on the host are not written",
    "MLM403": "states on the host are not written",
    "MLM404": "states on the host are not written",
    "MLM405": "activations on the host are not written",
    "MLM406": "activations on the host are not written",
    "MLM426": "Adam alone is written",
    "MLM427": "Muon is not written",
    "MLM428": "Muon is not written",
    "MLM429": "Muon is not written",
    "MLM430": "Adam alone is written",
    "MLM431": "Muon is not written",
    "MLM502": "fp8 is not written",
    "MLM504": "fp8 is not written",
    "MLM505": "fp8 is not written",
    "MLM506": "fp8 is not written",
    "MLM507": "narrow moments are not written",
    "MLM508": "fp8 is not written",
    "MLM509": "fp8 is not written",
}
"""Those of Megatron-LM's rules that are not taken over, and what stands in their place."""


def _is_plan(c: Case) -> bool:
    """Tell a plan from a run, whose options have rules of their own."""
    return not c.settings


def _dispatcher(c: Case, *names: str) -> Bools:
    value, result = c.switch("dispatcher"), False
    for name in names:
        result = result | (value == AXES["dispatcher"].choices.index(name))
    return result


def dense_before(shape: ModelShape) -> int | None:
    """Return how many dense layers stand before those with experts.

    None where the order is another, which MindSpeed-LLM has no words for.
    """
    n_dense = shape.expert_layers.index(True) if any(shape.expert_layers) else shape.layers
    return n_dense if all(shape.expert_layers[n_dense:]) else None


def _dense_share(c: Case) -> Bools:
    """Return where a stage would hold the dense layers before the experts alone."""
    n_dense = dense_before(c.model) or 0
    return (n_dense > 0) & (c.pp > 1) & (n_dense >= _all_layers(c) // c.pp)


def _all_layers(c: Case) -> Any:
    """Return the layers, of a run with those that do nothing."""
    return c.setting("num_layers") or c.model.layers


def _is_uneven(c: Case) -> Bools:
    return c.of_stages(lambda counts, pp, vpp: len(set(counts)) > 1)


def _strange_modules(c: Case) -> Bools:
    others = tuple(x for x in RECOMPUTE_MODULES if x not in RECOMPUTED)
    return c.is_recompute("selective") & (c.recomputes(*others) | ~_has_attention(c))


def _has_attention(c: Case) -> Bools:
    return (c.recompute_modules & 1) > 0


OWN_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "MSL601",
        "mindspeed",
        "heads do not divide by tp x cp for all-to-alls",
        "parse",
        ULYSSES,
        lambda c: c.is_exchange("a2a") & (c.cp > 1) & (c.model.heads % (c.tp * c.cp) > 0),
        lambda c: f"ulysses_cp_algo: {c.model.heads} heads do not divide by tp {c.tp} x cp {c.cp}",
        "cp_comm p2p, or a smaller cp",
    ),
    FrameworkRule(
        "MSL602",
        "mindspeed",
        "repeated key and value heads",
        "planner",
        "mindspeed/core/context_parallel/ulysses_context_parallel, UlyssesContextAttention",
        lambda c: (
            _is_plan(c)
            & c.is_exchange("a2a")
            & (c.cp > 1)
            & (c.model.kv_heads % (c.tp * c.cp) > 0)
        ),
        lambda c: (
            f"ulysses_cp_algo: {c.model.kv_heads} KV heads on tp {c.tp} x cp {c.cp} ranks are"
            " repeated for every head, which has no price"
        ),
        "cp_comm p2p, or a smaller cp",
    ),
    FrameworkRule(
        "MSL603",
        "mindspeed",
        "keys and values gathered by an older release",
        "parse",
        CONTEXT,
        lambda c: c.is_exchange("all-gather") & (c.cp > 1),
        "cp_comm all-gather: --context-parallel-algo has kvallgather_cp_algo from 26.0.0 on",
        "cp_comm p2p",
        versions="<26",
    ),
    FrameworkRule(
        "MSL604",
        "mindspeed",
        "context parallelism without flash attention",
        "planner",
        CONTEXT,
        lambda c: (c.cp > 1) & (not c.model.flash_attention),
        lambda c: f"cp {c.cp} without flash attention: MindSpeed switches it on",
        "flash_attention true, or cp 1",
    ),
    FrameworkRule(
        "MSL605",
        "mindspeed",
        "uneven virtual stages",
        "planner",
        LAYER_LIST,
        lambda c: _is_plan(c) & (c.vpp > 1) & _is_uneven(c),
        lambda c: f"vpp {c.vpp} with uneven stages: --num-layer-list excludes virtual stages",
        "vpp 1, or stages of one size",
    ),
    FrameworkRule(
        "MSL617",
        "mindspeed",
        "stages without layers",
        "planner",
        LAYER_LIST,
        lambda c: _is_plan(c) & (c.of_stages(lambda counts, pp, vpp: min(counts)) == 0),
        lambda c: f"stages of 0 to {c.longest_stage} layers: written with a layer in each",
        "split even, or a smaller pp",
    ),
    FrameworkRule(
        "MSL618",
        "mindspeed",
        "grouped products of experts in another type than bf16",
        "parse",
        "megatron/training/arguments.py, validate_args",
        lambda c: _is_plan(c) and c.model.n_experts > 0 and c.job.recipe.gemm_precision != "bf16",
        lambda c: f"experts with precision {c.job.precision}: --moe-grouped-gemm has bf16 alone",
        "precision bf16",
        is_of_job=True,
    ),
    FrameworkRule(
        "MSL606",
        "mindspeed",
        "layers with experts among dense ones",
        "planner",
        "mindspeed_llm/core/transformer/transformer_block.py, _transformer_block_build_layers",
        lambda c: _is_plan(c) and c.model.n_experts > 0 and dense_before(c.model) is None,
        "layers: --first-k-dense-replace says dense layers before those with experts, no other"
        " order",
        "dense layers first, or framework any",
        is_of_job=True,
    ),
    FrameworkRule(
        "MSL607",
        "mindspeed",
        "a stage of dense layers alone in a model with experts",
        "parse",
        BLOCK,
        lambda c: _dense_share(c) if c.model.n_experts else False,
        lambda c: (
            f"pp {c.pp}: a stage of {_all_layers(c) // c.pp} layers would hold the"
            f" {dense_before(c.model)} dense layers alone"
        ),
        "a smaller pp",
    ),
    FrameworkRule(
        "MSL608",
        "mindspeed",
        "tokens sent by kernels for NVLink",
        "planner",
        f"{CORE_FEATURES}/moe, features by dispatcher",
        lambda c: _dispatcher(c, "deepep", "hybridep"),
        "dispatcher deepep, hybridep: kernels for GPUs, MindSpeed has alltoall and allgather",
        "dispatcher alltoall",
    ),
    FrameworkRule(
        "MSL609",
        "mindspeed",
        "a capacity of experts with gathered tokens",
        "parse",
        ROUTER,
        lambda c: _dispatcher(c, "allgather") & (c.model.capacity_factor > 0),
        lambda c: f"dispatcher allgather with capacity_factor {c.model.capacity_factor:g}",
        "dispatcher alltoall, or no capacity_factor",
    ),
    FrameworkRule(
        "MSL610",
        "mindspeed",
        "sharded gradients or weights",
        "planner",
        f"{CORE_FEATURES}/distributed/torch_fully_sharded_data_parallel.py",
        lambda c: c.zero >= 2,
        lambda c: (
            f"ZeRO-{c.zero}: its FSDP2 takes a file of its own and excludes most features; plans"
            " are written with the distributed optimizer"
        ),
        "zero 1",
    ),
    FrameworkRule(
        "MSL611",
        "mindspeed",
        "replicated shards of the optimizer",
        "planner",
        "mindspeed/core/distributed/param_and_grad_buffer.py",
        lambda c: (c.zero > 0) & (c.dp_shard < c.dp * c.cp),
        lambda c: (
            f"ZeRO groups of {c.dp_shard}: its reductions and gathers stand in place of"
            " Megatron-LM's, for one group"
        ),
        "dp_shard of all data-parallel ranks",
    ),
    known_optimizer("MSL426", "mindspeed", "megatron/training/arguments.py, --optimizer"),
    optimizer_on_device(
        "MSL612",
        "mindspeed",
        f"{CORE_FEATURES}/optimizer/swap_optimizer_feature.py",
        "--swap-optimizer",
    ),
    activations_on_device(
        "MSL613", "mindspeed", f"{CORE_FEATURES}/memory/swap_attention.py, --swap-attention"
    ),
    narrow_moments(
        "MSL614", "mindspeed", f"{FEATURES}/low_precision/low_precision_optimizer_feature.py"
    ),
    FrameworkRule(
        "MSL615",
        "mindspeed",
        "products in fp8 or fp4",
        "planner",
        f"{FEATURES}/megatron_basic/transformer_engine_basic.py, validate_args",
        lambda c: c.job.recipe.linear_precision != "",
        lambda c: (
            f"precision {c.job.precision}: written for 910B and 910C, whose units have neither"
        ),
        "precision bf16",
        is_of_job=True,
    ),
    FrameworkRule(
        "MSL616",
        "mindspeed",
        "selective recompute of other modules",
        "planner",
        ATTENTION,
        lambda c: _is_plan(c) & _strange_modules(c),
        "recompute selective: attention is computed again with it whatever it names, and of other"
        f" modules {', '.join(RECOMPUTED[1:])}",
        "recompute_modules core_attn, with or without those",
    ),
)
"""Rules over layouts that Megatron-LM has not."""


OF_MEGATRON = tuple(
    replace(rule, code=rule.code.replace("MLM", "MSL"), framework="mindspeed", versions="")
    for rule in LAYOUT_RULES
    if rule.code not in REPLACED and applies(rule, CORE)
)
"""Those of its Megatron-LM."""
RULES: tuple[FrameworkRule, ...] = (*OF_MEGATRON, *OWN_RULES)
"""All rules over layouts."""
