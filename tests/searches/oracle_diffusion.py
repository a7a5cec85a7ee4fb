"""Layers and ends of diffusion transformers in scalars: what `oracle_models` asks of them.

Every tensor of a block is written out for patches and for text; norms of queries and keys by head,
modulation by matrices of each block, no context parallelism.
"""

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import DiffusionShape, ModelShape
from tests.searches import oracle_physics as physics

Pair = tuple[float, float]
VECTORS = {"double-stream": 12, "double-stream-last": 8, "single-stream": 3, "adaln": 12}
"""Vectors that modulate a block with text in its sequence."""


def sizes(shape: ModelShape) -> DiffusionShape:
    x = shape.diffusion
    assert x is not None
    assert x.qk_norm == "head"
    assert x.modulation == "block"
    assert not x.cross
    return x


def patches(shape: ModelShape) -> int:
    x = sizes(shape)
    side, frames = x.vae_factor * x.patch, 1 + (x.frames - 1) // x.vae_frames
    return (x.height // side) * (x.width // side) * frames // x.patch_frames


def streams(problem: Problem, kind: str, tokens: float) -> list[tuple[float, bool]]:
    """Return the rows of each set of weights, and whether it goes on behind the attention."""
    n_text = sizes(problem.shape).text_tokens
    text = tokens * n_text / (n_text + patches(problem.shape))
    if kind.startswith("double"):
        return [(tokens - text, True), (text, not kind.endswith("last"))]
    return [(tokens, True)]


def products(problem: Problem, kind: str, tokens: float, tp: int):
    """Return (rows, inner, columns) of column-parallel and of row-parallel products."""
    shape, h = problem.shape, problem.shape.hidden
    w, f = shape.heads * shape.head_dim / tp, shape.ffn / tp
    up = 2 * f if shape.gated else f
    samples = tokens / problem.job.seq_len
    column, row = [(samples, h, VECTORS[kind] * h / tp)], []
    for rows, goes_on in streams(problem, kind, tokens):
        if kind == "single-stream":
            column.append((rows, h, 3 * w + up))
            row.append((rows, w + f, h))
            continue
        column.append((rows, h, 3 * w))
        if goes_on:
            row += [(rows, w, h), (rows, f, h)]
            column.append((rows, h, up))
    return column, row


def timed(problem: Problem, some) -> physics.Products:
    found = [physics.products(problem, rows, [(inner, columns)]) for rows, inner, columns in some]
    totals = (sum(getattr(x, name) for x in found) for name in ("forward", "dgrad", "wgrad"))
    return physics.Products(*totals)


def weights(problem: Problem, kind: str, tp: int) -> float:
    """Return the weights that tokens meet: products over tokens, those of one row left out."""
    column, row = products(problem, kind, 1e9, tp)
    return sum(inner * columns for _, inner, columns in (*column[1:], *row))


def params(problem: Problem, kind: str, tp: int) -> float:
    """Return the parameters of a layer on one rank."""
    shape, h = problem.shape, problem.shape.hidden
    column, row = products(problem, kind, 1e9, tp)
    held = sum(inner * columns for _, inner, columns in (*column, *row))
    if shape.bias:
        held += sum(columns for *_, columns in column) + h * len(row)
    return held + 2 * shape.head_dim * len(streams(problem, kind, 1.0))


def core(problem: Problem, tokens: float, tp: int) -> Pair:
    """Return attention over all tokens: twice the causal half, at a longer reach."""
    s, eff = problem.job.seq_len, problem.pool.accelerator.efficiency
    launch = eff.kernel_latency_s
    half = physics.attention_s(problem, tokens, tp)
    rates = s / (s + eff.attention_seq_half), 2 * s / (2 * s + eff.attention_seq_half)
    ahead, behind = ((x - launch) * 2 * rates[0] / rates[1] + launch for x in half)
    return ahead, behind


def moved(problem: Problem, kind: str, tokens: float, tp: int, sp: bool) -> tuple[Pair, Pair]:
    """Return bytes and kernels of what is no product, both ways."""
    shape, h = problem.shape, problem.shape.hidden / (tp if sp else 1)
    w, f = shape.heads * shape.head_dim / tp, shape.ffn / tp
    act = (10 * f, 16 * f) if shape.gated else (4 * f, 6 * f)
    ahead, behind, kernels = 0.0, 0.0, [0, 0]
    some = streams(problem, kind, tokens)
    joined = 16 * w if len(some) > 1 else 0.0
    ahead += tokens * (22 * h + 16 * w + joined)
    behind += tokens * (32 * h + 20 * w + joined)
    n = {"single-stream": (14, 26), "adaln": (11, 21)}.get(kind, (24, 44))
    kernels = [n[0], n[1]]
    if kind == "single-stream":
        ahead += tokens * (act[0] + 4 * (w + f))
        behind += tokens * (act[1] + 4 * (w + f))
    else:
        for rows, goes_on in some:
            ahead += goes_on * rows * (22 * h + act[0])
            behind += goes_on * rows * (32 * h + act[1])
            kernels = [kernels[0] + 6 * goes_on, kernels[1] + 12 * goes_on]
    return (ahead, behind), (kernels[0], kernels[1])


def kept(problem: Problem, kind: str, tokens: float, tp: int, sp: bool) -> float:
    """Return what a block keeps, tensor by tensor."""
    shape, cut = problem.shape, tp if sp else 1
    h, w, f = shape.hidden, shape.heads * shape.head_dim / tp, shape.ffn / tp
    whole = 1 if not problem.stack.sp_regather else cut
    act, heads = (8 if shape.gated else 4) * f, shape.heads / tp
    norm, gate = (2 * h + 2 * h + 8) / cut + 2 * h / whole, 2 * h / cut
    # queries, keys, values, output; queries and keys before their norms, a number a head of each
    total = tokens * (8 * w + 4 * heads + 4 * w + 8 * heads)
    for rows, goes_on in streams(problem, kind, tokens):
        total += rows * (norm + gate * goes_on)
        if kind == "single-stream":
            total += rows * (act + 2 * w)
        elif goes_on:
            total += rows * (norm + gate + act)
    return total


def layer(problem: Problem, layout: Layout, kind: str, traffic) -> dict[str, float | Pair]:
    """Return a layer as `oracle_hybrids.layer` does."""
    assert layout.cp == 1, "the instances cut no sequence"
    shape, stack, tp, sp = problem.shape, problem.stack, layout.tp, layout.sp
    tokens = float(layout.mbs * problem.job.seq_len)
    column, row = (timed(problem, x) for x in products(problem, kind, tokens, tp))
    blocks = 1 if kind == "single-stream" else 2
    (f_all, f_open), (b_all, b_open) = traffic(problem, tokens, tp, sp, (column, row), blocks)
    attention = core(problem, tokens, tp)
    rate = physics.hbm_rate(problem) / stack.elementwise_factor
    latency = problem.pool.accelerator.efficiency.kernel_latency_s
    sent, kernels = moved(problem, kind, tokens, tp, sp)
    others = [size / rate + n * latency for size, n in zip(sent, kernels, strict=True)]
    ahead = column.forward + row.forward + attention[0] + others[0] + f_open
    behind = column.dgrad + column.wgrad + row.dgrad + row.wgrad + attention[1]
    behind += others[1] + b_open
    taxed = [
        ahead + stack.overlap_slowdown * (f_all - f_open),
        behind + stack.overlap_slowdown * (b_all - b_open),
    ]
    share = {"double-stream": 2.0, "double-stream-last": 1.6}.get(kind, 1.0)
    launch = physics.launch_s(problem, tp) * share
    late = max(0.0, physics.paced_s(problem, launch, sum(taxed)) - sum(taxed))
    widest = max(rows for rows, _ in streams(problem, kind, tokens))
    inner = widest * (6 if shape.gated else 4) * shape.ffn / tp
    return {
        "times": (taxed[0] + late / 3, taxed[1] + late * 2 / 3),
        "wgrad": column.wgrad + row.wgrad,
        "again": physics.paced_s(problem, launch / 3, ahead),
        "kept": kept(problem, kind, tokens, tp, sp),
        "temporaries": inner + 6.0 * tokens * shape.hidden,
        "pool": 0.0,
    }


# Ends -------------------------------------------------------------------------------------------


def ends(problem: Problem) -> tuple[list, list]:
    """Return the products of both ends: (rows of a sample, inner, columns, reads data)."""
    shape, h, x = problem.shape, problem.shape.hidden, sizes(problem.shape)
    n, c, pixels = patches(shape), x.condition or h, x.patch * x.patch * x.patch_frames
    vector = [(1, x.time_width, c, True), (1, c, c, False)]
    first = [(n, x.channels * pixels, h, True), (x.text_tokens, x.text_width, h, True), *vector]
    first += vector if x.guidance else []
    first += [(1, x.pooled_width, c, True), (1, c, c, False)] if x.pooled_width else []
    last = [(1, c, 2 * h, False), (n, h, (x.out_channels or x.channels) * pixels, False)]
    return first, last


def end_params(problem: Problem) -> tuple[int, int]:
    bias = problem.shape.bias
    found = [sum(columns * (inner + bias) for _, inner, columns, _ in x) for x in ends(problem)]
    return found[0], found[1]


def end_s(problem: Problem, mbs: int, tp: int, sp: bool, which: int) -> tuple[Pair, float]:
    """Return forward and backward of an end, and its weight gradients."""
    shape, x, cut = problem.shape, sizes(problem.shape), tp if sp else 1
    rate = physics.hbm_rate(problem) / problem.stack.elementwise_factor
    latency = problem.pool.accelerator.efficiency.kernel_latency_s
    tokens, h = mbs * problem.job.seq_len, shape.hidden / cut
    ahead, behind, grads = 0.0, 0.0, 0.0
    for rows, inner, columns, reads_data in ends(problem)[which]:
        here = mbs * rows / (cut if rows > 1 else 1)
        one = physics.products(problem, here, [(inner, columns)])
        ahead, grads = ahead + one.forward, grads + one.wgrad
        behind += one.wgrad + (0.0 if reads_data else one.dgrad)
    if which == 0:
        more = 6 * tokens * h / rate + 6 * latency
        return (ahead + more, behind + more), grads
    pixels = x.patch * x.patch * x.patch_frames * (x.out_channels or x.channels)
    loss = 14 * mbs * patches(shape) * pixels / cut
    ahead += (12 * tokens * h + loss) / rate + 6 * latency
    behind += (18 * tokens * h + loss) / rate + 9 * latency
    return (ahead, behind), grads


def end_bytes(problem: Problem, mbs: int, tp: int, sp: bool) -> Pair:
    """Return what both ends keep."""
    shape, x, cut = problem.shape, sizes(problem.shape), tp if sp else 1
    first = mbs * 2 * sum(rows * inner for rows, inner, *_ in ends(problem)[0]) / cut
    pixels = x.patch * x.patch * x.patch_frames * (x.out_channels or x.channels)
    tokens = mbs * problem.job.seq_len
    last = 6 * tokens * shape.hidden / cut + 8 * mbs * patches(shape) * pixels / cut
    return first, last
