"""How layers run, as far as Megatron-LM has it: overlap of the experts' exchange, CUDA graphs.

What every framework refuses is in `searches.mode_rules`. Codes go on from those of `layouts`:
MLM3xx experts, MLM4xx data parallelism, MLM5xx recompute and precision.
"""

from costmodels.axes import AXES, CUDA_GRAPHS, OFFLOAD_SETS
from searches.frameworks.case import Bools, Case
from searches.frameworks.megatron.layouts import SCHEDULES_PY, TRANSFORMER_CONFIG
from searches.frameworks.megatron.training_flags import FSDP_ADAPTER
from searches.frameworks.rule import FrameworkRule

WHOLE_GRAPHS = ("layer", "full_iteration")
"""Graphs that hold every module of a dense layer."""


def _has(c: Case, axis: str, *words: str) -> Bools:
    """Tell where an axis has one of some values."""
    value, result = c.switch(axis), False
    for word in words:
        result = result | (value == AXES[axis].choices.index(word))
    return result


def _captures(c: Case, module: str) -> Bools:
    """Tell where a module lies in a graph, by its name or in the whole."""
    return _has(
        c, "cuda_graph", *WHOLE_GRAPHS, *(x for x in CUDA_GRAPHS if module in x.split("+"))
    )


def _graphs_of_parts(c: Case) -> Bools:
    return _has(c, "cuda_graph", *(x for x in CUDA_GRAPHS if x not in ("none", "full_iteration")))


def _graph(c: Case) -> str:
    """Return what one plan captures, as a word."""
    return CUDA_GRAPHS[int(c.switch("cuda_graph"))]


def _sent(c: Case) -> str:
    """Return which modules of one plan wait on the host, as a word."""
    return OFFLOAD_SETS[int(c.switch("offload_modules"))]


def _drawn_again(c: Case) -> Bools:
    """Tell where a captured module with dropout runs forward twice."""
    attention = c.recomputes("core_attn") & _captures(c, "attn")
    return attention | (c.recomputes("mlp", "moe") & _captures(c, "mlp"))


MODE_LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        "MLM309",
        "megatron",
        "DualPipe",
        "planner",
        SCHEDULES_PY,
        lambda c: _has(c, "ep_overlap", "dualpipe"),
        "ep_overlap dualpipe: Megatron-LM has no DualPipe, it overlaps two micro-batches of 1F1B",
        "ep_overlap 1f1b, or framework any",
    ),
    FrameworkRule(
        "MLM310",
        "megatron",
        "delayed weight gradients of captured attention with biases",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: _has(c, "ep_overlap", "1f1b") & _captures(c, "attn") & (c.model.bias == 1),
        lambda c: (
            f"ep_overlap 1f1b with cuda_graph {_graph(c)}: weight gradients that wait are not"
            " captured with biases of the attention"
        ),
        "cuda_graph without attn",
    ),
    FrameworkRule(
        "MLM311",
        "megatron",
        "overlapped exchange in fp32",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: _has(c, "ep_overlap", "1f1b") & (c.job.precision == "fp32"),
        "ep_overlap 1f1b with precision fp32: Megatron-LM overlaps the exchange in bf16 or fp16",
        "precision bf16",
    ),
    FrameworkRule(
        "MLM408",
        "megatron",
        "graphs of modules with Megatron-FSDP",
        "planner",
        f"{FSDP_ADAPTER}; megatron/training/training.py",
        lambda c: _graphs_of_parts(c) & (c.zero >= 2),
        lambda c: (
            f"cuda_graph {_graph(c)} with ZeRO-{c.zero}: a graph replays fixed addresses, and"
            " Megatron-FSDP gathers weights anew; beside ep_overlap it refuses such graphs"
        ),
        "zero 1, cuda_graph full_iteration, or none",
    ),
    FrameworkRule(
        "MLM409",
        "megatron",
        "dropout in captured modules that are recomputed",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: c.model.dropout & _drawn_again(c),
        lambda c: (
            f"cuda_graph {_graph(c)}: of a model with dropout no captured module is recomputed"
        ),
        "recompute none, other modules, or cuda_graph none",
    ),
    FrameworkRule(
        "MLM525",
        "megatron",
        "modules on the host in a graph of the whole iteration",
        "planner",
        f"{TRANSFORMER_CONFIG}; megatron/training/arguments.py",
        lambda c: _has(c, "cuda_graph", "full_iteration") & (c.switch("offload_modules") > 0),
        lambda c: (
            f"cuda_graph full_iteration with offload_modules {_sent(c)}: such a graph needs"
            " --fine-grained-offloading-max-inflight-offloads, which came with megatron-core 0.18"
        ),
        "offload_modules none, or cuda_graph none",
        versions="<0.18",
    ),
)
"""Rules over how layers run, which Megatron-Bridge has as well."""
