"""Adapters beside frozen weights, counted a second time for dense models with plain attention."""

from costmodels.plans import Layout
from costmodels.problem import Problem

WEIGHT_BYTES = {
    "bf16": 2.0,
    "int8": 1.0,
    "nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    "nf4-plain": (4 + 32 / 64) / 8,
}
PARTS = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
ATTENTION = ("q", "k", "v", "qkv", "o")


def is_tuned(problem: Problem) -> bool:
    return problem.job.tuning is not None


def rank_size(problem: Problem, name: str, tp: int) -> tuple[float, float]:
    """Return what a rank has of the inputs and the outputs of a linear layer."""
    shape = problem.shape
    h, f, q = shape.hidden, shape.ffn, shape.heads * shape.head_dim
    kv = max(shape.kv_heads / tp, 1) * shape.head_dim
    sizes = {"q": (h, q / tp), "k": (h, kv), "v": (h, kv), "o": (q / tp, h)}
    sizes |= {"gate": (h, f / tp), "up": (h, f / tp), "down": (f / tp, h)}
    if name in PARTS:
        parts = [sizes[part] for part in PARTS[name]]
        return h, sum(outer for _, outer in parts)
    return sizes[name]


def adapter(problem: Problem, name: str, tp: int) -> tuple[tuple[float, float], ...]:
    """Return (inner, columns) of A and of B on a rank."""
    r, (inner, outer) = problem.job.tuning.rank, rank_size(problem, name, tp)
    if name in ("o", "down"):
        return (inner, r), (r, outer / tp)
    return (inner, r / tp), (r, outer)


def params(problem: Problem, tp: int) -> float:
    """Return the adapters of a layer."""
    both = (adapter(problem, name, tp) for name in problem.job.tuning.targets)
    return sum(a * b for pair in both for a, b in pair)


def named(problem: Problem, *, column: bool, mlp: bool) -> list[str]:
    """Return the targets that tp cuts by columns, or by rows; all of them, or of the MLP."""
    out = []
    for name in problem.job.tuning.targets:
        if (name not in ("o", "down")) == column and not (mlp and name in ATTENTION):
            out.append(name)
    return out


def operator_bytes(problem: Problem, name: str, tp: int) -> tuple[float, float]:
    """Return what scale, sums and dropout move a token, forward and backward."""
    (inner, _), (_, outer) = adapter(problem, name, tp)
    masks = 5 if problem.job.tuning.dropout else 0
    return 4 * outer + 6 * outer + masks * inner, 4 * outer + 6 * inner + masks * inner


def widening_s(problem: Problem, weights: float) -> float:
    base, part = problem.job.tuning.base, problem.pool.accelerator
    if base == "bf16":
        return 0.0
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    return (WEIGHT_BYTES[base] + 2) * weights / rate + part.efficiency.kernel_latency_s


def kernels(problem: Problem) -> float:
    """Return the kernels of a layer over those of one that trains all."""
    tuning = problem.job.tuning
    return 0.97 + 0.09 * len(tuning.targets) + (0.1 if tuning.base != "bf16" else 0.0)


def freed(problem: Problem, tp: int, part: str) -> tuple[float, float]:
    """Return bytes a token that attention or the MLP keeps less: over tp with sp alone, always."""
    tuning, shape = problem.job.tuning, problem.shape
    read, width = set(tuning.targets), problem.job.recipe.activation_bytes
    mine = [x for x in tuning.targets if (x in ATTENTION) == (part == "attention")]
    own = sum(width * tuning.rank for _ in mine)
    if tuning.dropout:
        own += sum((width + 1) * rank_size(problem, x, tp)[0] for x in mine)
        read = set()
    normed = {"q", "k", "v", "qkv"} if part == "attention" else {"gate", "up", "gate_up"}
    shared = 0.0 if read & normed else width * shape.hidden
    if not problem.stack.fused_norms and width == 2.0:
        shared += 2.0 * shape.hidden
    inner = width * shape.ffn / tp if part == "mlp" and "down" not in read else 0.0
    return shared, inner - own


def frozen_bytes(problem: Problem, held: float, linear: float) -> float:
    """Return frozen weights as they are stored, whole on a rank."""
    return 2.0 * (held - linear) + WEIGHT_BYTES[problem.job.tuning.base] * linear


def frozen_share(problem: Problem, layout: Layout, shards: int) -> float:
    """Return the share of them that a device holds."""
    if layout.zero >= 3:
        return 1 / shards
    beside = problem.stack.sharded_units and layout.zero > 0
    return 1 + 1 / shards if beside else 1.0


def gathers_frozen(problem: Problem, layout: Layout) -> bool:
    return layout.zero >= (1 if problem.stack.sharded_units else 3)


def largest_linear(problem: Problem, tp: int) -> float:
    names = ["q", "k", "v", "o", "up", "down", *["gate"] * problem.shape.gated]
    return max(a * b for a, b in (rank_size(problem, name, tp) for name in names))
