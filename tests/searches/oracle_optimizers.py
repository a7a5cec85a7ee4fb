"""Optimizers by groups of parameters, counted a second time, one matrix after another."""

from dataclasses import dataclass

from costmodels.problem import Problem

STATES = {  # bytes of states of a matrix's parameter, of the others'
    "adam": (8.0, 8.0),
    "sgd": (4.0, 4.0),
    "lion": (4.0, 4.0),
    "adam-8bit": (2 * (1 + 4 / 256), 2 * (1 + 4 / 256)),
    "muon": (4.0, 8.0),
    "soap": (8.0, 8.0),
}


@dataclass
class One:
    """One matrix on one rank, and the whole of it."""

    rows: float
    columns: float
    whole: list[tuple[float, float]]
    """What is orthogonalized, one after another."""
    cut: str

    @property
    def size(self) -> float:
        return self.rows * self.columns

    @property
    def cost(self) -> float:
        return max(self.rows, self.columns) * min(self.rows, self.columns) ** 2


def one(rows: float, columns: float, cut: str, tp: int, parts: list[float] | None = None) -> One:
    wide = tp if cut == "rows" else 1
    deep = tp if cut == "columns" else 1
    return One(rows / wide, columns / deep, [(x, columns) for x in parts or [rows]], cut)


@dataclass
class Share:
    """Parameters of one rank that it shares out with the same other ranks."""

    params: float
    matrices: list[One]
    shards: int


def attention_matrices(problem: Problem, tp: int) -> list[One]:
    """Return the matrices of plain attention."""
    shape = problem.shape
    h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [one(q + 2 * kv, h, "rows", tp, [q, kv, kv]), one(h, q, "columns", tp)]


def mlp_matrices(problem: Problem, width: int, tp: int) -> list[One]:
    """Return both matrices of an MLP; none without a width."""
    h, up = problem.shape.hidden, (2 if problem.shape.gated else 1) * width
    return [one(up, h, "rows", tp), one(h, width, "columns", tp)] if width else []


def layer_matrices(problem: Problem, routed: bool, tp: int) -> list[One]:
    """Return the matrices of one layer beside its routed experts."""
    shape, attention = problem.shape, attention_matrices(problem, tp)
    if not routed:
        return attention + mlp_matrices(problem, shape.ffn, tp)
    router = [one(shape.n_experts, shape.hidden, "", tp)] if shape.n_experts > 1 else []
    return attention + router + mlp_matrices(problem, shape.shared_ffn, tp)


def expert_matrices(problem: Problem, ep: int, etp: int) -> list[One]:
    """Return the matrices of the experts of one layer on one rank."""
    return mlp_matrices(problem, problem.shape.expert_ffn, etp) * (problem.shape.n_experts // ep)


def handed_out(matrices: list[One], n_ranks: int) -> list[list[One]]:
    """Return what each rank has: the costliest first, to the rank with the least so far."""
    ranks: list[list[One]] = [[] for _ in range(n_ranks)]
    for matrix in sorted(matrices, key=lambda x: -x.cost):
        min(ranks, key=lambda held: sum(x.cost for x in held)).append(matrix)
    return ranks


def homes(held: list[One], tp: int) -> list[list[One]]:
    """Return what each tensor-parallel rank has, by what whole matrices cost."""

    def whole(matrix: One) -> float:
        rows = matrix.rows * (tp if matrix.cut == "rows" else 1)
        columns = matrix.columns * (tp if matrix.cut == "columns" else 1)
        return max(rows, columns) * min(rows, columns) ** 2

    ranks: list[list[One]] = [[] for _ in range(tp)]
    for matrix in sorted(held, key=lambda x: -whole(x)):
        min(ranks, key=lambda mine: sum(whole(x) for x in mine)).append(matrix)
    return ranks


def is_by_matrix(problem: Problem) -> bool:
    return problem.job.optimizer in ("muon", "soap")


def kept(problem: Problem) -> tuple[float, float]:
    """Return master copy and states of a parameter of a matrix, of another."""
    return tuple(4.0 + x for x in STATES[problem.job.optimizer])  # type: ignore[return-value]


def holdings(share: Share) -> list[list[One]]:
    """Return the matrices of each rank that shares."""
    return handed_out(share.matrices, share.shards)


def fullest(share: Share) -> tuple[float, float]:
    """Return the parameters of matrices of a share, and those of the fullest rank."""
    most = max(sum(x.size for x in held) for held in holdings(share))
    return sum(x.size for x in share.matrices), most


def padding(problem: Problem, share: Share) -> float:
    """Return by how many parameters buffers are longer than what is in them."""
    if not is_by_matrix(problem) or share.shards == 1 or not problem.job.muon.param_layout:
        return 0.0
    inside, most = fullest(share)
    return share.shards * most - inside


def state_bytes(problem: Problem, share: Share) -> float:
    """Return weights, gradients and states of a share."""
    recipe, (of_matrix, of_others) = problem.job.recipe, kept(problem)
    inside, most = fullest(share)
    whole = share.params + padding(problem, share)
    states = of_matrix * most
    if problem.job.optimizer == "soap":
        states = max(
            sum(
                of_matrix * x.size + 8 * (x.rows**2 + x.columns**2) + 4 * (x.rows + x.columns)
                for x in held
            )
            for held in holdings(share)
        )
    states += of_others * (share.params - inside) / share.shards
    return whole * (recipe.param_bytes + recipe.grad_bytes) + states


def moved_bytes(problem: Problem, states: float) -> float:
    """Return what the update of a parameter reads and writes: norm, clip, step, cast."""
    grad = problem.job.recipe.grad_bytes
    return grad + 2 * grad + (grad + 2 * (4 + states)) + 6


def update_bytes(problem: Problem, share: Share) -> float:
    """Return what zeroed gradients, norm, clip, step and cast move on the fullest rank."""
    of_matrix, of_others = STATES[problem.job.optimizer]
    inside, most = fullest(share)
    zeroed = problem.job.recipe.grad_bytes * share.params
    rest = moved_bytes(problem, of_others) * (share.params - inside) / share.shards
    return zeroed + moved_bytes(problem, of_matrix) * most + rest


def soap_flops(m: float, n: float) -> float:
    """Return KL factors, moments moved over, gradient in, update out, two bases renewed."""
    factors = 2 * m**3 + 2 * n**3 + 2 * (2 * m * m * n + 2 * m * n * n)
    moves = 4 * (2 * m * m * n + 2 * m * n * n)
    bases = sum(2 * d**3 + 8 / 3 * d**3 + 2 * d**3 for d in (m, n))
    return factors + moves + bases
