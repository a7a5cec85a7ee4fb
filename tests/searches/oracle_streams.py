"""Compressed attention and several residual streams in scalars, beside `oracle_hybrids`.

Entries are counted query by query; everything else is summed tensor by tensor.
"""

from costmodels.problem import Problem
from costmodels.shapes import ModelShape
from tests.searches import oracle_physics as physics

Pair = tuple[float, float]
MIXERS = ("shared-window", "csa", "hca")


def entries(ratio: int, seq_len: int, most: int) -> float:
    """Return the mean entries that lie behind a query, at most some."""
    return sum(min((i + 1) // ratio, most) for i in range(seq_len)) / seq_len


def pools(shape: ModelShape, mixer: str) -> list[tuple[int, int, int]]:
    """Return (tokens of an entry, series, width) of what compresses keys, and the indexer's."""
    x = shape.compressed
    assert x is not None
    if mixer == "csa":
        return [(x.sparse_ratio, 2, shape.head_dim), (x.sparse_ratio, 2, x.index_dim)]
    return [(x.heavy_ratio, 1, shape.head_dim)] if mixer == "hca" else []


def run_keys(problem: Problem, mixer: str) -> float:
    """Return the keys that a kernel multiplies for a query: window, entries, a tile of 128."""
    x, s = problem.shape.compressed, problem.job.seq_len
    assert x is not None
    seen = sum(min(i + 1, x.window) for i in range(s)) / s if x.window < s else s / 2
    if mixer == "csa":
        seen += entries(x.sparse_ratio, s, x.top_k)
    if mixer == "hca":
        seen += entries(x.heavy_ratio, s, s)
    return min(s / 2, seen + 128)


def columns(shape: ModelShape, mixer: str, tp: int) -> list[Pair]:
    """Return the column-parallel products of a rank; what is whole meets all tokens."""
    x, h, w = shape.compressed, shape.hidden, shape.heads * shape.head_dim
    assert x is not None
    found = [(h, x.q_rank), (x.q_rank, w / tp), (h, shape.head_dim)]
    found += [(h, 2 * series * width) for _, series, width in pools(shape, mixer)]
    if mixer == "csa":
        found += [(x.q_rank, x.index_heads * x.index_dim), (h, x.index_heads)]
    return found


def rows(shape: ModelShape, tp: int) -> list[Pair]:
    """Return the grouped products of a rank one by one, and the last one."""
    x, w = shape.compressed, shape.heads * shape.head_dim
    assert x is not None
    groups = x.groups // tp
    return [(w / x.groups, x.out_rank)] * groups + [(groups * x.out_rank, shape.hidden)]


def whole(shape: ModelShape, mixer: str) -> float:
    """Return the parameters that are no weights of products and stand on every rank."""
    x = shape.compressed
    assert x is not None
    found = shape.hidden * (1 if shape.norm == "rmsnorm" else 2) + x.q_rank + shape.head_dim
    return found + sum(m * series * width + width for m, series, width in pools(shape, mixer))


def scores(problem: Problem) -> tuple[Pair, Pair]:
    """Return FLOPs and bytes of a token in the scores of the indexer, both ways."""
    x, s = problem.shape.compressed, problem.job.seq_len
    assert x is not None
    one = 2 * x.index_heads * x.index_dim * entries(x.sparse_ratio, s, s)
    moved = 8.0 * s / x.sparse_ratio
    return (one, 2 * one), (moved, moved)


def moved(shape: ModelShape, mixer: str, tp: int) -> Pair:
    """Return the bytes of norms, rotations and pools of a token."""
    x, w = shape.compressed, shape.heads * shape.head_dim / tp
    assert x is not None
    norms = x.q_rank + w + shape.head_dim
    turned = 2 * shape.heads / tp * x.rope_dim + x.rope_dim  # queries and outputs, keys
    ahead, after = 4 * norms + 4 * turned, 6 * norms + 4 * turned
    if mixer == "csa":
        ahead, after = (n + 4 * x.index_heads * x.rope_dim for n in (ahead, after))
    for m, series, width in pools(shape, mixer):
        # Keys and gates read; the entry written, then its norm and rotation.
        ahead += 2 * (2 * series * width) + (4 + 4) * width / m
        after += 6 * (2 * series * width) + (6 + 8) * width / m
    return ahead, after


def kept(problem: Problem, mixer: str, tp: int) -> float:
    """Return what a token keeps beside the norm in front."""
    shape, stack = problem.shape, problem.stack
    x, w, a = shape.compressed, shape.heads * shape.head_dim / tp, shape.heads / tp
    assert x is not None
    assert shape.flash_attention
    after = 2 * x.groups * x.out_rank / tp + 4 * a
    if stack.fused_norms:
        found = 4 * x.q_rank + 4 * w + 4 * shape.head_dim + 4 * w + after
        for m, series, width in pools(shape, mixer):
            found += 2 * (2 * series * width) + 4 * width / m
        if mixer == "csa":
            chosen = min(x.top_k, problem.job.seq_len // x.sparse_ratio)
            found += 2 * x.index_heads * x.index_dim + 2 * x.index_heads + 4 * chosen
        return found
    angles = 2 * 2 * x.rope_dim  # sine and cosine of every rotation
    latent = (4 + 4 + 2) * x.q_rank + 4
    queries = (4 + 2 + 2) * w + (4 + 2) * a
    keys = (4 + 4 + 2) * shape.head_dim + 4
    found = latent + queries + keys + 3 * angles + 2 * w + after
    found += 2 * shape.hidden if stack.norm_keeps == "input" else 0
    for m, series, width in pools(shape, mixer)[:1]:  # no gradient reaches the indexer
        found += (4 + 2 + 2) * series * width + ((4 + 4 + 2) * width + 4 + angles) / m
    return found


def kernels(mixer: str) -> float:
    return {"shared-window": 14, "hca": 19, "csa": 28}[mixer] / 13


def up_module(problem: Problem, tokens: float, tp: int) -> tuple[float, float, float]:
    """Return the way from the latent to queries: seconds again, bytes dropped of attention."""
    shape, eff = problem.shape, problem.pool.accelerator.efficiency
    x, w = shape.compressed, shape.heads * shape.head_dim / tp
    assert x is not None
    seconds = physics.products(problem, tokens, [(x.q_rank, w)]).forward
    bytes_moved = 4 * (w + shape.heads / tp * x.rope_dim) * tokens
    seconds += bytes_moved * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    kept_of_query = 4 * w if problem.stack.fused_norms else 8 * w
    return seconds + 2 * eff.kernel_latency_s, tokens * kept_of_query, 0.0


# Streams ----------------------------------------------------------------------------------------


def count(shape: ModelShape) -> int:
    return shape.residual_streams.count if shape.residual_streams else 1


def connection_params(shape: ModelShape) -> int:
    """Return a, b and M of one connection: matrix, bias and three factors."""
    n = count(shape)
    if n == 1:
        return 0
    return (n + n + n * n) * n * shape.hidden + (n + n + n * n) + 3


def collapse_params(shape: ModelShape) -> int:
    n = count(shape)
    return n * n * shape.hidden + n + 1 if n > 1 else 0


def connection_kernels(problem: Problem) -> float:
    x = problem.shape.residual_streams
    if x is None:
        return 0.0
    return 4.0 if problem.stack.fused_norms else 27.0 + 4.0 * x.sinkhorn_steps


def connection_s(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    """Return what a connection takes more than the addition of one stream."""
    n, eff = count(problem.shape), problem.pool.accelerator.efficiency
    if n == 1:
        return 0.0, 0.0
    width = 2.0 * tokens * problem.shape.hidden / (tp if sp else 1)
    unit = width * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    ahead, after = (4 * n + 2, 12 * n + 3)
    if not problem.stack.fused_norms:
        ahead, after = 26 * n + 6, 2 * (26 * n + 6)
    launch = connection_kernels(problem) * eff.kernel_latency_s
    return unit * (ahead - 3) + launch, unit * (after - 2) + 2 * launch


def connection_kept(problem: Problem, tp: int, sp: bool) -> float:
    """Return what a token keeps of one connection, bytes."""
    n, h, x = count(problem.shape), problem.shape.hidden, problem.shape.residual_streams
    if x is None:
        return 0.0
    found = 2 * n * h + 2 * h
    if problem.stack.fused_norms:
        found += 2 * 4 * (n * n + 2 * n)
    else:
        turns = 2 * x.sinkhorn_steps - 1
        found += 2 * 4 * n * h + 4 + 4 * (n * n + 2 * n) + 14 * n + 2 * n * n
        found += 4 * n * n * (1 + turns) + 4 * n * turns
    return found / (tp if sp else 1)


def gradients(problem: Problem, tp: int, sp: bool) -> float:
    """Return the temporaries of a token: two gradients of the streams but one."""
    return 2 * 2.0 * (count(problem.shape) - 1) * problem.shape.hidden / (tp if sp else 1)


def collapse_s(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    """Return the time in which the streams are made of the lookup, and one of them at the end."""
    n, eff = count(problem.shape), problem.pool.accelerator.efficiency
    if n == 1:
        return 0.0, 0.0
    width = 2.0 * tokens * problem.shape.hidden / (tp if sp else 1)
    unit = width * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    launch = 3 * eff.kernel_latency_s
    return unit * (n + n + n + 1) + launch, unit * (2 * n + 1 + 2 * n + n + n) + launch
