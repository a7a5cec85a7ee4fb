"""Inputs of modules on the host: bytes tensor by tensor, one layer at a time, scalars."""

from dataclasses import dataclass

from costmodels.plans import Layout
from costmodels.problem import Problem
from tests.searches.oracle_graphs import mode

MODULES = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
"""Bit i of a set, as the options number it, stands for the i-th."""
MILLION = 1048576


def sent_modules(layout: Layout) -> set[str]:
    return set(mode(layout, "offload_modules", "none").split("+")) - {"none"}


@dataclass(frozen=True)
class Widths:
    """Of one layer and micro-batch."""

    number: float
    """Bytes of an activation."""
    kept: float
    """Bytes of an element of an input that a linear layer keeps."""
    down: float
    """The same of latent attention's first projections."""
    again: float
    """Bytes of an element of attention's output that are kept a second time."""
    kv: float
    """Keys of a token on a rank."""
    rows: float = 0.0
    """Rows of routed experts; 0 in a dense layer."""


@dataclass(frozen=True)
class Away:
    """What one layer has on the host."""

    freed: float = 0.0
    copied: float = 0.0
    of_up: float = 0.0
    """Of the freed bytes queries, keys and values of latent attention."""
    of_norm: float = 0.0
    """Of the freed bytes the output of the norm before latent attention."""


def away(problem: Problem, layout: Layout, w: Widths) -> Away:
    """Return what leaves the device: tensors of a million elements, by what saves them."""
    shape, names, tp = problem.shape, sent_modules(layout), layout.tp
    tokens = layout.mbs * problem.job.seq_len / layout.cp
    whole = tokens * shape.hidden / (tp if layout.sp else 1)
    latent = bool(shape.kv_rank)
    v_head = shape.v_head if latent else shape.head_dim
    q, out = tokens * shape.heads * shape.head_dim / tp, tokens * shape.heads * v_head / tp
    k, v = (q, out) if latent else (tokens * w.kv, tokens * w.kv)
    freed = copied = of_up = of_norm = 0.0

    def leaves(module: str, n: float) -> bool:
        return module in names and n >= MILLION

    if latent and leaves("attn_norm", whole):
        freed, copied = freed + w.number * whole, copied + w.number * whole
    if leaves("qkv_linear", whole):
        each = w.down if latent else w.number + w.kept
        freed, copied = freed + each * whole, copied + each * whole
        of_norm = each * whole if latent else 0.0
    for n in (q, k, v):
        if leaves("core_attn", n):
            freed, copied = freed + w.number * n, copied + w.number * n
            of_up += w.number * n if latent else 0.0
    if shape.flash_attention and leaves("core_attn", tokens * shape.heads / tp):
        sums = 4.0 * tokens * shape.heads / tp
        freed, copied = freed + sums, copied + sums
    if leaves("core_attn", out):
        copied += w.number * out
    if leaves("attn_proj", out):
        y = problem_share(problem) if w.again else 0.0
        copied += (w.again + w.number * (1 - y)) * out
        freed += (w.number * ("core_attn" in names) + w.again) * out
    if w.rows:
        width = (2 if shape.gated else 1) * shape.expert_ffn / layout.etp
        if leaves("mlp_norm", whole):
            freed, copied = freed + w.number * whole, copied + w.number * whole
        if shape.n_experts > 1 and leaves("expert_fc1", w.rows * shape.hidden):
            in_blocks = problem.job.precision in ("fp8-mxfp8", "nvfp4")
            freed += w.kept * w.rows * shape.hidden
            copied += (w.kept if in_blocks else w.number) * w.rows * shape.hidden
        if leaves("moe_act", w.rows * width):
            freed += w.number * w.rows * width
            copied += w.number * w.rows * width
    return Away(freed, copied, of_up, of_norm)


def problem_share(problem: Problem) -> float:
    """Return the share of the layers that are quantised."""
    return 1 - min(1.0, sum(problem.job.bf16_layers) / problem.shape.layers)


def waits(problem: Problem, copied: float, layer: tuple[float, float]) -> tuple[float, float]:
    """Return what forward and backward of a layer wait for its copies."""
    host = problem.pool.host
    if not copied or host is None:
        return 0.0, 0.0
    seconds = copied / min(host.link_bytes_per_s, host.memory_bytes_per_s)
    return max(0.0, seconds - layer[0]), max(0.0, seconds - layer[1])


def on_the_way(freed: float, n_layers: float) -> float:
    """Return what is on the device all the same: two layers, or as many as are held."""
    return freed * min(2.0, n_layers)


def broken_offload_rule(problem: Problem, plan: Layout) -> str:
    """Return the code of the first rule that a plan breaks by its degrees and modes, or ""."""
    shape, names = problem.shape, sent_modules(plan)
    if not names:
        return ""
    has = {"qkv_linear", "core_attn"} | ({"attn_proj"} if "core_attn" in names else set())
    has |= {"attn_norm"} if shape.kv_rank else set()
    has |= {"mlp_norm", "moe_act"} if shape.n_experts else set()
    has |= {"expert_fc1"} if shape.n_experts > 1 else set()
    if names - has:
        return "OFM001"
    if problem.pool.host is None:
        return "OFM002"
    if plan.schedule in ("zb-h1", "zb-v", "dualpipe", "dualpipe-v"):
        return "OFM003"
    parts = set(mode(plan, "cuda_graph", "none").split("+"))
    norms = ("attn_norm" in names and "attn" in parts) or (
        "mlp_norm" in names and bool(parts & {"attn", "moe_router"})
    )
    stash = "full_iteration" in parts and not shape.capacity_factor
    return "OFM004" if norms or (stash and bool(names & {"expert_fc1", "moe_act"})) else ""


def sent_again(plan: Layout) -> bool:
    """Tell whether what a plan offloads runs forward twice, or leaves with its whole layer."""
    names, again = sent_modules(plan), set(plan.recompute_modules)
    if names and (plan.recompute == "full" or plan.activation_offload_layers):
        return True
    inside = "moe" in again and bool(names & {"expert_fc1", "moe_act"})
    return inside or "core_attn" in (names & again)
