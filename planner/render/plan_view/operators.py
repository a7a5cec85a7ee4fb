"""Every operator group of a plan's slowest rank: FLOPs, memory traffic and time of one call.

Times are the cost model's own (their sums are the terms of the step); FLOPs and bytes are those
that it prices them by. Each comes with its formula and this plan's numbers put in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodels.axes import CP_COMMS, SwitchTable
from costmodels.comm import context_parallel
from costmodels.comm.context_parallel import ContextSplit
from costmodels.comm.dispatch import Degrees
from costmodels.layers import experts as routed_experts
from costmodels.layers.compute import (
    ATTENTION_TILE,
    BACKWARD_OVER_FORWARD,
    DROPOUT_BYTES,
    EAGER_SCORE_BYTES,
    LATENT,
    SCORE_BYTES,
    UNFUSED_RATE_FRAC,
    ForwardBackward,
    Product,
    accumulated_s,
    bf16_job,
    fused_kernel,
    linear_products,
    product_times,
)
from costmodels.layers.gemm import (
    TILE_HALVING_LOSS,
    TILES,
    element_bytes,
    gemm_s,
    linear_rate_frac,
)
from costmodels.layers.layer_kind import ExpertLayerTerms
from costmodels.layers.params import kv_heads_per_rank, padded_vocab
from costmodels.memory import fuses_norms
from costmodels.modes import ModeRows
from costmodels.optimizers.groups import needs_groups
from costmodels.precision import FP8_RATE_FRAC
from costmodels.problem import Problem
from costmodels.shapes import DENSE, MOE, ModelShape
from costmodels.stacks import fuses_softmax
from costmodels.towers.latents import (
    input_params,
    input_products,
    output_params,
    output_products,
)
from costmodels.towers.vision import vision_flops, vision_params
from costmodels.tuning.adapters import adapter_sizes, moved_bytes
from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import EXPERTS, adapted, attention_linears, mlp_linears
from hardware.parts import Accelerator
from planner.render.plan_view.opened.time import (
    Formula,
    KindPart,
    OpenedParts,
    hbm_rate,
    optimizer_bytes,
)

FORWARD, DGRAD, WGRAD, BACKWARD = "forward", "data gradient", "weight gradient", "backward"
NAMES = {
    "qkv": "QKV projection",
    "q_up": "queries from latents",
    "kv_up": "keys, values from latents",
    "qkv_down": "projection to latents",
    "attention_out": "attention output",
    "mlp_up": "MLP up",
    "mlp_down": "MLP down",
}
SHARED = {"mlp_up": "shared experts up", "mlp_down": "shared experts down"}
PRODUCT_TIME = (
    "max(W S 2 T_r T_c (inner + k0) / (P eta tile), bytes / (B_hbm share)) + launch: W waves of S"
    " multiprocessors over the best tile"
)
GROUPED_TIME = "max(2 G rows columns (inner + k0) / (P eta u), bytes / (B_hbm share)) + launch"
UNCOUNTED = ("not counted", "0")
NOT_QUANTIZED = "of layers not quantised"
"""Said of products of the layers that a quantised recipe leaves in bf16."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator group in one direction, one call on one device."""

    name: str
    term: str
    """Term of the step that it is a part of."""
    direction: str
    flops: float
    """0 for operators that move memory and are not counted in FLOPs."""
    moved_bytes: float
    """To and from HBM."""
    time_s: float
    n_calls: float
    """In a step, on the slowest rank, without recomputation."""
    peak_flops_per_s: float
    flops_text: Formula
    bytes_text: Formula
    time_text: Formula

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def rate(self) -> float:
        """FLOP/s reached."""
        return self.flops / self.time_s


def operators(p: OpenedParts) -> tuple[Operator, ...]:
    """Return the operator groups of a plan, in the order of the model.

    A layer of an added kind, whose operators its record does not list, is one of them.
    """
    dense, routed = _part(p, DENSE), _part(p, MOE)
    shape, several = p.problem.shape, len(p.kinds) > 1
    before = _latent_end(p, first=True) if shape.diffusion else (*_tower(p), *_embedding(p))
    result = [*before] if p.first else []
    if dense:
        suffix = "of a dense layer" * several
        result += _linear(p, p.problem, NAMES, p.m * dense.count, suffix)
    if routed:
        beside = replace(p.problem, shape=shape.without_experts())
        suffix = "of an expert layer" * several
        result += _linear(p, beside, NAMES | SHARED, p.m * routed.count, suffix)
    usual = [x for x in (dense, routed) if x]
    if usual:
        n_calls = p.m * sum(x.count for x in usual)
        result += _attention(p, usual[0].terms.attention, n_calls)
    if dense:
        result += _elementwise(p, "elementwise", shape, p.m * dense.count)
    if routed:
        name = "elementwise of expert layers" if several else "elementwise"
        result += _elementwise(p, name, shape.without_experts(), p.m * routed.count)
        result += _experts(p, p.m * routed.count)
    for part in p.kinds:
        if part not in usual:
            result += _whole_layer(p, part)
    if p.last:
        result += _latent_end(p, first=False) if shape.diffusion else _head(p)
    return (*result, *_optimizer(p))


def _part(p: OpenedParts, name: str) -> KindPart | None:
    """Return the layers of one kind on the rank, None without any.

    Those between several residual streams are not what their records say alone.
    """
    if p.problem.shape.residual_streams:
        return None
    return next((x for x in p.kinds if x.kind.name == name), None)


def _whole_layer(p: OpenedParts, part: KindPart) -> Iterator[Operator]:
    """Yield a layer of an added kind in both directions, by its record."""
    problem, x, kind, terms = p.problem, p.layout, part.kind, part.terms
    shape, recipe, tp = problem.shape, problem.job.recipe, np.array([x.tp], dtype=np.int32)
    macs, width = kind.macs(shape), element_bytes(recipe.linear)
    weights, kept_bytes = kind.matrix_params(shape, tp).item(), terms.kept_bytes.item()
    each = macs.projections + macs.mlp
    core = macs.core_macs(problem.job.seq_len)
    flops = 2.0 * (each + core) * _tokens(p) / x.tp
    of_core = f"{_n(macs.core)} × {_n(problem.job.seq_len)}"
    each_text = f"{_n(each)} + {_n(core) if macs.core_at else of_core}"
    text = f"2 × ({each_text}) × {_n(_tokens(p))} / {x.tp}"
    times = [terms.linear, terms.attention, terms.elementwise]
    names = ["linear", "attention", "elementwise"]
    if isinstance(terms, ExpertLayerTerms):
        times, names = [*times, terms.routed], [*names, "experts"]
    for direction, passes, way in ((FORWARD, 1, "forward_s"), (BACKWARD, 2, "backward_s")):
        seconds = [getattr(one, way).item() for one in times]
        yield Operator(
            kind.title,
            "linear",
            direction,
            passes * flops,
            passes * (width * weights + kept_bytes),
            sum(seconds),
            p.m * part.count,
            problem.pool.accelerator.peak_flops_per_s[recipe.linear],
            (
                f"{passes} × 2 (projections + MLP + core s) a token over tp: {kind.source}",
                f"{passes} × {text}",
            ),
            (
                "its weights and what it keeps, at least: its record says no more",
                f"{passes} × ({width:g} B × {_n(weights)} + {_n(kept_bytes)} B)",
            ),
            (
                f"{' + '.join(names)} of one {kind.title}: {kind.equation}",
                " + ".join(f"{_n(one * 1e3)} ms" for one in seconds),
            ),
        )


def _tower(p: OpenedParts) -> Iterator[Operator]:
    """Yield a vision tower with its projector in both directions, by its record."""
    shape, x, recipe, tower = p.problem.shape, p.layout, p.problem.job.recipe, p.layers.tower
    if shape.vision is None or tower is None:
        return
    frozen = replace(shape, vision=replace(shape.vision, trained="none", recompute=False))
    ahead, total = vision_flops(frozen), vision_flops(shape)
    weights = vision_params(shape, np.array([x.tp], dtype=np.int32)).item()
    width, kept_bytes = element_bytes(recipe.linear), tower.kept_bytes.item()
    ways = (
        (FORWARD, ahead, 1, tower.total.forward_s),
        (BACKWARD, total - ahead, 2, tower.total.backward_s),
    )
    for direction, flops, passes, seconds in ways:
        if not flops:
            continue
        yield Operator(
            "vision tower and projector",
            "tower",
            direction,
            x.mbs * flops / x.tp,
            passes * (width * weights + kept_bytes),
            seconds.item(),
            float(p.m),
            p.problem.pool.accelerator.peak_flops_per_s[recipe.linear],
            (
                "sequences × FLOPs of one over tp: costmodels.towers.vision.vision_flops",
                f"{_n(x.mbs)} × {_n(flops)} / {x.tp}",
            ),
            (
                "its weights and what it keeps, at least: its record says no more",
                f"{passes} × ({width:g} B × {_n(weights)} + {_n(kept_bytes)} B)",
            ),
            (
                "layers, product of patches and projector: costmodels.towers.vision.tower_terms",
                f"{_n(seconds.item() * 1e3)} ms",
            ),
        )


def _latent_end(p: OpenedParts, *, first: bool) -> Iterator[Operator]:
    """Yield what makes tokens of latents and text, or latents of tokens, by its record."""
    shape, x, recipe, layers = p.problem.shape, p.layout, p.problem.job.recipe, p.layers
    products = input_products(shape) if first else output_products(shape)
    total, ahead = sum(one.flops for one in products), sum(one.ahead_flops for one in products)
    seconds = layers.embedding if first else layers.head
    kept_bytes = (layers.embedding_bytes if first else layers.logits_bytes).item()
    weights = float(input_params(shape) if first else output_params(shape))
    cut, width = x.cp * (x.tp if x.sp else 1), element_bytes(recipe.gemm_precision)
    ways = (
        (FORWARD, ahead, 1, seconds.forward_s.item()),
        (BACKWARD, total - ahead, 2, seconds.backward_s.item()),
    )
    for direction, flops, passes, time_s in ways:
        yield Operator(
            "tokens of latents and text" if first else "latents of tokens",
            "embedding" if first else "head",
            direction,
            x.mbs * flops / cut,
            passes * (width * weights + kept_bytes),
            time_s,
            float(p.m),
            p.problem.pool.accelerator.peak_flops_per_s[recipe.gemm_precision],
            (
                "samples × FLOPs of one over cp, and tp with SP: costmodels.towers.latents",
                f"{_n(x.mbs)} × {_n(flops)} / {cut}",
            ),
            (
                "its weights and what it keeps, at least: its record says no more",
                f"{passes} × ({width:g} B × {_n(weights)} + {_n(kept_bytes)} B)",
            ),
            (
                "products and what moves beside them: costmodels.towers.latents.end_terms",
                f"{_n(time_s * 1e3)} ms",
            ),
        )


def _tokens(p: OpenedParts) -> float:
    x = p.layout
    return x.mbs * p.problem.job.seq_len / x.cp


def _n(value: float) -> str:
    """Return a number of a formula: whole ones in full."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.9g}".replace("e-", "e−").replace("e+", "e")


def _hbm(part: Accelerator) -> str:
    """Return the sustained bandwidth of the memory."""
    return f"({_n(part.hbm_bytes_per_s / 1e9)} GB/s × {part.efficiency.hbm_frac:g})"


def _launch(part: Accelerator, n: float = 1) -> str:
    one = f"{_n(part.efficiency.kernel_latency_s * 1e6)} us"
    return one if n == 1 else f"{_n(n)} × {one}"


def _sizes(m: float, k: float, c: float) -> str:
    """Return the elements of both inputs and the output of a product."""
    return f"({_n(m)} × {_n(k)} + {_n(k)} × {_n(c)} + {_n(m)} × {_n(c)})"


def _product_text(
    m: float, k: float, c: float, part: Accelerator, precision: str, rate: float
) -> str:
    """Return the time of `costmodels.layers.gemm.gemm_s` with its numbers put in."""
    eff, waves = part.efficiency, {}
    gain = eff.fp8_gain if precision == "fp8" else 1.0
    for rows, columns in TILES:
        tiles = np.ceil(m / rows) * np.ceil(c / columns)
        loss = (1.0 - TILE_HALVING_LOSS) ** np.log2(256 * 128 / (rows * columns))
        n = float(np.ceil(tiles / part.n_sms))
        work = n * rows * columns / loss
        waves[rows, columns] = work, n, float(loss)
    (rows, columns), (_, n, loss) = min(waves.items(), key=lambda tile: tile[1][0])
    peak = _n(part.peak_flops_per_s[precision] / 1e12)
    factors = "".join(f" × {_n(x)}" for x in (rate, gain, loss) if x != 1.0)
    return (
        f"max({_n(n)} × {part.n_sms} × 2 × {rows} × {columns} × ({_n(k)} + {_n(eff.gemm_k_half)})"
        f" / ({peak} TFLOP/s × {eff.gemm_frac:g}{factors}),"
        f" {element_bytes(precision):g} B × {_sizes(m, k, c)} / {_hbm(part)}) + {_launch(part)}"
    )


_Row = tuple[str, float, str, tuple[float, float, float], str]
"""Direction, further bytes and their text, sizes of the product, what the bytes are."""


def _of_product(
    problem: Problem, name: str, product: Product, times: tuple[float, ...], n: float
) -> Iterator[Operator]:
    """Yield forward, data and weight gradient of a linear layer of the body."""
    recipe, part, fused = problem.job.recipe, problem.pool.accelerator, problem.stack.fused_wgrad
    width, grad, eff = element_bytes(recipe.linear), min(recipe.grad_bytes, 4.0), part.efficiency
    m, k, c, cast = product.rows, product.inner, product.columns, recipe.cast_bytes
    passes, rate = 2.0 * grad if fused else 2.0 + 2.0 * grad, linear_rate_frac(recipe, part)
    args = (part, recipe.linear)
    added = f"{passes:g} B × {_n(k)} × {_n(c)}"
    wgrad = _product_text(k, m, c, *args, rate * eff.wgrad_frac)
    rows: tuple[_Row, ...] = (
        (FORWARD, cast * m * k, f"{cast:g} B × {_n(m)} × {_n(k)}", (m, k, c), " + casts"),
        (DGRAD, cast * m * c, f"{cast:g} B × {_n(m)} × {_n(c)}", (m, c, k), " + casts"),
        (WGRAD, passes * k * c, added, (k, m, c), " + sum of gradients"),
    )
    if tuning := problem.job.tuning:  # frozen: no weight gradient, and widened at each use
        rows = tuple(_widened(row, tuning, k * c) for row in rows[:2])
    launch = f" + {_launch(part)}" if tuning and tuning.storage.is_quantized else ""
    for (direction, extra, text, sizes, what), time_s in zip(rows, times, strict=False):
        time_text = _product_text(*sizes, *args, rate)
        time_text += f" + ({text}) / {_hbm(part)}{launch}" if extra else ""
        symbols = PRODUCT_TIME + (what if extra else "")
        if direction == WGRAD:
            symbols, time_text = _accumulated(problem, wgrad, k * c)
        yield Operator(
            name,
            "linear",
            direction,
            2.0 * m * k * c,
            width * (m * k + k * c + m * c) + extra,
            time_s,
            n,
            part.peak_flops_per_s[recipe.linear],
            ("2 rows × inner × columns", f"2 × {_n(m)} × {_n(k)} × {_n(c)}"),
            (
                "both inputs and the output once" + (what if extra else ""),
                f"{width:g} B × {_sizes(m, k, c)}" + (f" + {text}" if extra else ""),
            ),
            (symbols, time_text),
        )


def _widened(row: _Row, tuning: TuningJob, weights: float) -> _Row:
    """Return a row of `_of_product` with the traffic of widening quantized weights."""
    direction, extra, text, sizes, what = row
    if not tuning.storage.is_quantized:
        return row
    each = tuning.storage.weight_bytes + 2.0
    more = f"{each:g} B × {_n(weights)}"
    joined = f"{text} + {more}" if extra else more
    named = f"{what} + widened weights" if extra else " + widened weights"
    return direction, extra + each * weights, joined, sizes, named


def _adapters(p: OpenedParts, shape: ModelShape, n: float, suffix: str) -> Iterator[Operator]:
    """Yield the products of the adapters of a layer, and their operators."""
    tuning, tokens, tp = p.problem.job.tuning, _tokens(p), np.array(p.layout.tp)
    if tuning is None:
        return
    linears = (*attention_linears(shape), *mlp_linears(shape))
    for linear in adapted(linears, tuning.targets):
        a_inner, a_columns, b_inner, b_columns = (
            float(x) for x in adapter_sizes(linear, tuning.rank, shape, tp)
        )
        for part, inner, columns in (("A", a_inner, a_columns), ("B", b_inner, b_columns)):
            name = f"adapter of {linear.name}, {part} {suffix}".strip()
            yield from _plain_product(p, name, "linear", (tokens, inner, columns), n)
        both = moved_bytes(np.array(a_inner), np.array(b_columns), tuning)
        moved = [
            _Moved(way, tokens * n_bytes, "tokens × bytes", f"{_n(tokens)} × {_n(n_bytes)} B")
            for way, n_bytes in zip((FORWARD, BACKWARD), map(float, both), strict=True)
        ]
        name = f"scale and sum of the adapter of {linear.name} {suffix}".strip()
        yield from _memory_bound(p, name, "linear", _Stream((moved[0], moved[1]), 0), n)


def _linear(
    p: OpenedParts, problem: Problem, names: dict[str, str], n: float, suffix: str
) -> Iterator[Operator]:
    part = problem.pool.accelerator
    for product in linear_products(problem.shape, _tokens(p), p.layout.tp):
        for one, share, note in _by_precision(p, problem):
            times = product_times(product, one.job, part, one.stack)
            name = " ".join(word for word in (names[product.name], suffix, note) if word)
            yield from _of_product(one, name, product, times, share * n)
    yield from _adapters(p, problem.shape, n, suffix)


def _by_precision(p: OpenedParts, problem: Problem) -> tuple[tuple[Problem, float, str], ...]:
    """Return the quantised layers, and those that stay in bf16: problem, share, what they are."""
    job = problem.job
    share = job.bf16_frac(p.problem.shape.layers)
    if not share:
        return ((problem, 1.0, ""),)
    low, wide = replace(job, bf16_layers=(0, 0)), bf16_job(job)
    return (
        (replace(problem, job=low), 1.0 - share, ""),
        (replace(problem, job=wide), share, NOT_QUANTIZED),
    )


def _attention(p: OpenedParts, core: ForwardBackward, n_calls: float) -> Iterator[Operator]:
    shape, job, part, x = p.problem.shape, p.problem.job, p.problem.pool.accelerator, p.layout
    n, whole, t, eff = _tokens(p), float(job.seq_len), x.tp, part.efficiency
    s = float(job.core_tokens)
    kv = kv_heads_per_rank(shape, np.array(t, dtype=np.int32)).item() * shape.head_dim
    ahead, backward_ratio = 2.0 * s * shape.q_width / t * n, BACKWARD_OVER_FORWARD
    text = f"2 × {_n(s)} × {_n(shape.q_width)} / {t} × {_n(n)}"
    message = "2 s h_q / t a token: the causal half"
    queries, keys = (shape.q_width + shape.v_width) / t, 2.0 * kv
    if shape.latent:
        qk, v = shape.qk_nope + shape.qk_rope, shape.v_head
        ahead, backward_ratio = s * shape.heads * (qk + v) / t * n, (3.0 * qk + 2.0 * v) / (qk + v)
        text = f"{_n(s)} × {shape.heads} × {qk + v} / {t} × {_n(n)}"
        message = "s a (d_k + d_v) / t a token"
        keys = shape.heads * (qk + v) / t
    flash = shape.flash_attention
    if not flash:
        ahead, backward_ratio = 2.0 * ahead, 2.0
        text, message = f"2 × {text}", "the full square: 4 s h_q / t a token"
    precision = "fp16" if job.recipe.gemm_precision == "fp16" else "bf16"
    peaks = part.peak_flops_per_s
    peak = peaks[precision if precision in peaks else job.recipe.gemm_precision]
    quantized = job.recipe.attention_precision
    roof = peaks[quantized] if quantized else peak
    share = f" × {FP8_RATE_FRAC:g}" if quantized else ""
    is_fused = fuses_softmax(p.problem.stack, round(shape.heads / t * n / whole))
    score = SCORE_BYTES if is_fused else EAGER_SCORE_BYTES
    score += DROPOUT_BYTES if shape.dropout else 0.0
    split = ContextSplit(
        *(np.array([v], dtype=np.int32) for v in (t, x.cp, CP_COMMS.index(x.cp_comm)))
    )
    kernels = context_parallel.attention_kernels(split, job.run_keys)
    n_kernels, blocks = (
        float(np.asarray(v).item()) for v in (kernels.n_kernels, kernels.key_blocks)
    )
    merges = context_parallel.merge_times(p.problem, split, np.array([n]), job.run_keys)
    rows = (
        (FORWARD, 1.0, core.forward_s.item(), 1.0, 0, merges.forward_s.item()),
        (BACKWARD, backward_ratio, core.backward_s.item(), 2.0, 1, merges.backward_s.item()),
    )
    for direction, times, time_s, passes, way, merge_s in rows:
        flops = text if times == 1.0 else f"{_n(times)} × {text}"
        moved = passes * 2.0 * n * (queries + keys)
        traffic = (
            "operands and results once (the kernel's own traffic is not modelled)",
            f"{passes:g} × 2 B × {_n(n)} × ({_n(queries)} + {_n(keys)})",
        )
        if flash:
            frac = eff.attention_frac[fused_kernel(p.problem.stack, part)][way]
            frac *= LATENT[way] if shape.latent else 1.0
            tiles = (
                f"min(1, {shape.heads} / {t} × {_n(n)} / {_n(whole)} ×"
                f" {-(-int(whole) // ATTENTION_TILE)}"
                f" / {part.n_sms})"
            )
            keys_s, half = _n(s / blocks), _n(eff.attention_seq_half)
            symbols = "FLOPs / (P share keys / (keys + s_half) filled) + launches"
            taken = (
                f"{flops} / ({_n(roof / 1e12)} TFLOP/s{share} × {_n(frac)} × {keys_s} /"
                f" ({keys_s} + {half}) × {tiles}) + {_launch(part, n_kernels)}"
            )
        else:
            moved = score * shape.heads / t * s * n
            scores = f"{score:g} B × {shape.heads} / {t} × {_n(s)} × {_n(n)}"
            traffic = ("scores, by operator", scores)
            symbols = f"FLOPs / (P eta × {UNFUSED_RATE_FRAC:g}) + scores / HBM + launches"
            taken = (
                f"{flops} / ({_n(roof / 1e12)} TFLOP/s{share} × {eff.gemm_frac:g} ×"
                f" {UNFUSED_RATE_FRAC:g}) + {scores} / {_hbm(part)} + {_launch(part, 4)}"
            )
        if merge_s:
            symbols, taken = f"{symbols} + merging of parts", f"{taken} + {_n(merge_s * 1e3)} ms"
        yield Operator(
            "attention core",
            "attention",
            direction,
            times * ahead,
            moved,
            time_s,
            n_calls,
            roof,
            (message, flops),
            traffic,
            (symbols, taken),
        )


@dataclass(frozen=True, slots=True)
class _Moved:
    """What a memory-bound operator moves in one direction."""

    direction: str
    n_bytes: float
    symbols: str
    text: str


@dataclass(frozen=True, slots=True)
class _Stream:
    """The memory traffic of operators, both ways."""

    both: tuple[_Moved, _Moved]
    launches: int
    frac: float = 1.0
    """Share of the sustained bandwidth that they reach."""


def _memory_bound(
    p: OpenedParts, name: str, term: str, stream: _Stream, n: float
) -> Iterator[Operator]:
    """Yield operators whose time is their traffic, at a share of HBM, and their launches."""
    part = p.problem.pool.accelerator
    eff, launches, frac = part.efficiency, stream.launches, stream.frac
    for moved in stream.both:
        time_s = moved.n_bytes / (part.hbm_bytes_per_s * eff.hbm_frac) / frac
        time_s += launches * eff.kernel_latency_s
        slower = f" / {frac:g}" if frac != 1.0 else ""
        text = f"{moved.text} / {_hbm(part)}{slower}"
        text += f" + {_launch(part, launches)}" if launches else ""
        yield Operator(
            name,
            term,
            moved.direction,
            0.0,
            moved.n_bytes,
            time_s,
            n,
            _peak(p),
            UNCOUNTED,
            (moved.symbols, moved.text),
            (
                "bytes / (B_hbm share)"
                + (" / share of that" if slower else "")
                + (" + launches" if launches else ""),
                text,
            ),
        )


def _peak(p: OpenedParts) -> float:
    return p.problem.pool.accelerator.peak_flops_per_s[p.problem.job.recipe.linear]


def _elementwise(p: OpenedParts, name: str, shape: ModelShape, n: float) -> Iterator[Operator]:
    """Yield norms, residuals, rotary and activation of a layer (`compute.elementwise_times`)."""
    stack, x, tokens = p.problem.stack, p.layout, _tokens(p)
    t, total = x.tp, x.tp if x.sp else 1
    masks, norm = 2.0 if shape.dropout else 0.0, 1.0
    norm = norm if fuses_norms(shape, stack) else stack.unfused_norm_factor
    kv = kv_heads_per_rank(shape, np.array(t, dtype=np.int32)).item()
    rotary, texts = 0.0, []
    if shape.positions == "rope":
        rotary = 4.0 * (shape.q_width / t + kv * shape.head_dim)
        texts.append(f"4 × ({_n(shape.q_width)} / {t} + {_n(kv)} × {shape.head_dim})")
    if shape.latent:
        rotary += 5.0 * (shape.q_rank + shape.kv_rank) / t
        texts.append(f"5 × ({shape.q_rank} + {shape.kv_rank}) / {t}")
    if shape.attention_gate:
        rotary += 8.0 * shape.gate_width / t
        texts.append(f"8 × {_n(shape.gate_width)} / {t}")
    both = []
    for direction, norms, others, inner in (
        (FORWARD, 8.0, 12.0, 6.0 if shape.gated else 4.0),
        (BACKWARD, 12.0, 8.0, 10.0 if shape.gated else 6.0),
    ):
        per_token = (norms * norm + others + masks) * shape.hidden / total + rotary
        per_token += inner * shape.ffn / t
        sums = [
            f"({norms:g} × {norm:g} + {others:g}{f' + {masks:g}' if masks else ''}) ×"
            f" {_n(shape.hidden)} / {total}",
            *texts,
            *([f"{inner:g} × {_n(shape.ffn)} / {t}"] if shape.ffn else []),
        ]
        both.append(
            _Moved(
                direction,
                tokens * per_token * stack.elementwise_factor,
                "tokens × (norms and residuals + rotary + activation) × traffic of the stack",
                f"{_n(tokens)} × ({' + '.join(sums)}) × {stack.elementwise_factor:g} B",
            )
        )
    yield from _memory_bound(p, name, "elementwise", _Stream((both[0], both[1]), 6), n)


def _embedding(p: OpenedParts) -> Iterator[Operator]:
    shape, x, n = p.problem.shape, p.layout, _tokens(p)
    mask = 3.0 / (x.tp if x.sp else 1) if shape.dropout else 0.0
    more = f" + {_n(mask)}" if mask else ""
    both = tuple(
        _Moved(
            direction,
            n * (width + mask) * shape.hidden,
            "tokens × (read and write of a row + mask) × h",
            f"{_n(n)} × ({width:g}{more}) × {_n(shape.hidden)} B",
        )
        for direction, width in ((FORWARD, 4.0), (BACKWARD, 8.0))
    )
    if p.problem.job.tuning:  # a frozen table has no gradient
        yield next(
            _memory_bound(p, "embedding", "embedding", _Stream((both[0], both[1]), 1), float(p.m))
        )
        return
    yield from _memory_bound(
        p, "embedding", "embedding", _Stream((both[0], both[1]), 1), float(p.m)
    )


def _plain_product(
    p: OpenedParts, name: str, term: str, sizes: tuple[float, float, float], n: float
) -> Iterator[Operator]:
    """Yield the three products of a layer in 16 bits, those of the head in its own precision."""
    part, recipe = p.problem.pool.accelerator, p.problem.job.recipe
    quantized = recipe.head_precision if term == "head" else ""
    precision = quantized or recipe.gemm_precision
    frac, cast = (linear_rate_frac(recipe, part), recipe.cast_bytes) if quantized else (1.0, 0.0)
    m, k, c = sizes
    width, wide = element_bytes(precision), part.efficiency.wgrad_frac * frac
    hbm = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    rows = (
        (FORWARD, (m, k, c), frac, cast * m * k, f"{cast:g} B × {_n(m)} × {_n(k)}"),
        (DGRAD, (m, c, k), frac, cast * m * c, f"{cast:g} B × {_n(m)} × {_n(c)}"),
        (WGRAD, (k, m, c), wide, 0.0, ""),
    )
    frozen = p.problem.job.tuning is not None and term != "linear"  # head and router
    for direction, three, rate, extra, text in rows[:2] if frozen else rows:
        casts, more = (" + casts", f" + {text}") if extra else ("", "")
        taken = _product_text(*three, part, precision, rate)
        yield Operator(
            name,
            term,
            direction,
            2.0 * m * k * c,
            width * (m * k + k * c + m * c) + extra,
            float(gemm_s(*three, part, precision, rate)) + extra / hbm,
            n,
            part.peak_flops_per_s[precision],
            ("2 rows × inner × columns", f"2 × {_n(m)} × {_n(k)} × {_n(c)}"),
            (
                f"both inputs and the output once{casts}",
                f"{width:g} B × {_sizes(m, k, c)}{more}",
            ),
            (PRODUCT_TIME + casts, f"{taken}{more} / {_hbm(part)}" if extra else taken),
        )


def _head(p: OpenedParts) -> Iterator[Operator]:
    shape, stack, x = p.problem.shape, p.problem.stack, p.layout
    tp = np.array([x.tp], dtype=np.int32)
    n, columns = _tokens(p), padded_vocab(shape, tp).item() / x.tp
    calls = float(p.m * (1 + shape.mtp_layers))
    yield from _plain_product(p, "output head", "head", (n, float(shape.hidden), columns), calls)
    each, factor = 5.0 if stack.fused_loss else 14.0, stack.elementwise_factor
    logits = columns if stack.logits_sharded else columns * x.tp
    both = tuple(
        _Moved(
            direction,
            n * (logits * each * factor + 10.0 * shape.hidden) / 2,
            "tokens × (logits × bytes of one × traffic of the stack + 10 h) / 2",
            f"{_n(n)} × ({_n(logits)} × {each:g} × {factor:g} + 10 × {_n(shape.hidden)}) × 0.5 B",
        )
        for direction in (FORWARD, BACKWARD)
    )
    yield from _memory_bound(
        p, "loss and final norm", "head", _Stream((both[0], both[1]), 4), calls
    )


def _experts(p: OpenedParts, calls: float) -> Iterator[Operator]:
    """Yield router, permutation, grouped products and activation of the routed experts."""
    problem, x = p.problem, p.layout
    shape, part = problem.shape, problem.pool.accelerator
    tp, sp = np.array([x.tp], dtype=np.int32), np.array([int(x.sp)], dtype=np.int32)
    ep, etp = np.array([x.ep], dtype=np.int32), np.array([x.etp], dtype=np.int32)
    modes = ModeRows(sp, np.zeros_like(sp), SwitchTable.of_rows([x.switches]))
    tokens = routed_experts.local_tokens(problem.stack, np.array([_tokens(p)]), tp, sp, ep)
    rows = routed_experts.expert_rows(problem, tokens, sp, ep, etp).item()
    n, local, h = tokens.item(), shape.n_experts / x.ep, float(shape.hidden)
    ways = (FORWARD, BACKWARD)
    if shape.n_experts > 1:
        yield from _plain_product(p, "router", "experts", (n, h, float(shape.n_experts)), calls)
        each, kernels = routed_experts.ROUTER_BYTES, routed_experts.ROUTER_KERNELS
        scores = [
            _Moved(
                way,
                each * n * shape.n_experts,
                "21 B a token and expert",
                f"{each:g} B × {_n(n)} × {shape.n_experts}",
            )
            for way in ways
        ]
        yield from _memory_bound(
            p, "routing", "experts", _Stream((scores[0], scores[1]), kernels), calls
        )
        degrees = Degrees(tp, sp, ep, etp)
        copied = routed_experts.permuted_bytes(problem, tokens, degrees, modes).item() / (2 * h)
        moved = [
            _Moved(
                way,
                2 * h * copied,
                "2 h × (rows read and written, in the order of experts and back)",
                f"2 B × {_n(h)} × {_n(copied)}",
            )
            for way in ways
        ]
        share = routed_experts.PERMUTE_FRAC
        yield from _memory_bound(
            p, "permutation", "experts", _Stream((moved[0], moved[1]), 4, share), calls
        )
    width = shape.expert_ffn / x.etp
    fracs = routed_experts.rows_fracs(np.array(rows / local), part, problem.job.recipe.grad_bytes)
    ups = (2 if shape.gated else 1) * width
    for name, inner, columns in (("experts up", h, ups), ("experts down", width, h)):
        sizes = (local, rows / local, inner, columns)
        for one, share, note in _by_precision(p, problem):
            title = f"{name} {note}".strip()
            yield from _grouped(one, title, sizes, [float(u) for u in fracs], share * calls)
        yield from _expert_adapters(p, name, sizes, [float(u) for u in fracs], calls)
    both = [
        _Moved(
            way,
            rows * each.item(),
            "rows × bytes of a row that the activation moves",
            f"{_n(rows)} × {_n(each.item())} B",
        )
        for way, each in zip(
            ways, routed_experts.activation_bytes(problem, etp, modes), strict=True
        )
    ]
    yield from _memory_bound(
        p, "experts' activation", "experts", _Stream((both[0], both[1]), 0), calls
    )


def _grouped(
    problem: Problem,
    name: str,
    sizes: tuple[float, float, float, float],
    fracs: list[float],
    calls: float,
) -> Iterator[Operator]:
    """Yield the grouped products of the experts of a device."""
    recipe, part = problem.job.recipe, problem.pool.accelerator
    g, m, k, c = sizes
    cast, rate = recipe.cast_bytes, linear_rate_frac(recipe, part)
    wide = rate * part.efficiency.wgrad_frac
    rows = (
        _GroupedPass(FORWARD, (m, k, c), rate, cast * g * m * k, _cast_text(cast, g, m, k)),
        _GroupedPass(DGRAD, (m, c, k), rate, cast * g * m * c, _cast_text(cast, g, m, c)),
        _GroupedPass(WGRAD, (k, m, c), wide),
    )
    listed = rows[:2] if problem.job.tuning else rows  # frozen experts have no weight gradient
    for one, u in zip(listed, fracs, strict=False):
        yield _grouped_operator(problem, name, sizes, replace(one, frac=u), calls)


def _expert_adapters(
    p: OpenedParts,
    name: str,
    sizes: tuple[float, float, float, float],
    fracs: list[float],
    calls: float,
) -> Iterator[Operator]:
    """Yield the products of the adapters beside one grouped product of the experts."""
    tuning, (g, m, k, c) = p.problem.job.tuning, sizes
    if tuning is None or EXPERTS not in tuning.targets:
        return
    job = replace(p.problem.job, precision=p.problem.job.recipe.gemm_precision)
    plain, rank = replace(p.problem, job=job), float(tuning.rank)
    for part, inner, columns in (("A", k, rank), ("B", rank, c)):
        rows = (
            _GroupedPass(FORWARD, (m, inner, columns), 1.0),
            _GroupedPass(DGRAD, (m, columns, inner), 1.0),
            _GroupedPass(WGRAD, (inner, m, columns), 1.0),
        )
        title, own = f"adapters of {name}, {part}", (g, m, inner, columns)
        for one, u in zip(rows, fracs, strict=True):
            yield _grouped_operator(plain, title, own, replace(one, frac=u), calls)


@dataclass(frozen=True, slots=True)
class _GroupedPass:
    """One direction of a grouped product: its own sizes (rows, inner, columns), rate and casts."""

    direction: str
    sizes: tuple[float, float, float]
    rate: float
    cast_bytes: float = 0.0
    cast_text: str = ""
    frac: float = 1.0
    """Share of the rate that few rows an expert leave."""


def _cast_text(cast: float, *sizes: float) -> str:
    return " × ".join([f"{cast:g} B", *map(_n, sizes)])


def _grouped_operator(
    problem: Problem,
    name: str,
    sizes: tuple[float, float, float, float],
    one: _GroupedPass,
    calls: float,
) -> Operator:
    """Return one direction of a product of `sizes`: experts, rows of each, inner, columns."""
    part, precision = problem.pool.accelerator, problem.job.recipe.linear
    g, m, k, c = sizes
    a, b, d = one.sizes
    width, hbm = element_bytes(precision), part.hbm_bytes_per_s * part.efficiency.hbm_frac
    product = routed_experts.GroupedProduct(g, a, b, d)
    args, u = (part, precision, one.rate), one.frac
    time_s = float(routed_experts.grouped_gemm_s(product, *args, u)) + one.cast_bytes / hbm
    symbols, taken = GROUPED_TIME, _grouped_text(g, one.sizes, *args, u)
    if g <= 1:
        symbols, taken = PRODUCT_TIME, _product_text(a, b, d, *args)
    if one.direction == WGRAD and g <= 1 and problem.job.tuning is None:
        alone = np.asarray(time_s)
        time_s = float(accumulated_s(alone, k * c, problem.job, part, problem.stack))
        symbols, taken = _accumulated(problem, taken, k * c)
    more = f" + {one.cast_text}" if one.cast_bytes else ""
    casts = " + casts" if one.cast_bytes else ""
    if one.cast_bytes:
        symbols, taken = f"{symbols} + casts", f"{taken}{more} / {_hbm(part)}"
    return Operator(
        name,
        "experts",
        one.direction,
        2.0 * g * m * k * c,
        g * width * (m * k + k * c + m * c) + one.cast_bytes,
        time_s,
        calls,
        part.peak_flops_per_s[precision],
        (
            "2 experts × rows of each × inner × columns",
            f"2 × {_n(g)} × {_n(m)} × {_n(k)} × {_n(c)}",
        ),
        (
            f"inputs and outputs once{casts}",
            f"{_n(g)} × {width:g} B × {_sizes(m, k, c)}{more}",
        ),
        (symbols, taken),
    )


def _accumulated(problem: Problem, product: str, weights: float) -> Formula:
    """Return a weight gradient with its sum into those of the step (`compute.accumulated_s`)."""
    grad, fused = min(problem.job.recipe.grad_bytes, 4.0), problem.stack.fused_wgrad
    passes = 2.0 * grad if fused else 2.0 + 2.0 * grad
    added = f"{passes:g} B × {_n(weights)} / {_hbm(problem.pool.accelerator)}"
    if fused:
        text = "sqrt(product^2 + (sum of gradients / HBM)^2), product = "
        return text + PRODUCT_TIME, f"hypot({product}, {added})"
    return f"{PRODUCT_TIME} + sum of gradients / HBM", f"{product} + {added}"


def _grouped_text(
    g: float,
    sizes: tuple[float, float, float],
    part: Accelerator,
    precision: str,
    rate: float,
    u: float,
) -> str:
    """Return the time of `costmodels.layers.experts.grouped_gemm_s` with its numbers put in."""
    eff, (m, k, c) = part.efficiency, sizes
    share = f" × {_n(rate)}" if rate != 1.0 else ""
    return (
        f"max(2 × {_n(g)} × {_n(m)} × {_n(c)} × ({_n(k)} + {_n(eff.gemm_k_half)}) /"
        f" ({_n(part.peak_flops_per_s[precision] / 1e12)} TFLOP/s × {eff.gemm_frac:g}{share} ×"
        f" {_n(u)}), {_n(g)} × {element_bytes(precision):g} B × {_sizes(m, k, c)} /"
        f" {_hbm(part)}) + {_launch(part)}"
    )


def _optimizer(p: OpenedParts) -> Iterator[Operator]:
    moved, sums = optimizer_bytes(p)
    text = " + ".join(sums)
    own_s = p.breakdown.time_s["optimizer"] - sum(moved) / hbm_rate(p)
    more = f" + {_n(own_s)} s" if needs_groups(p.problem.job.recipe.optimizer) else ""
    yield Operator(
        "optimizer",
        "optimizer",
        "update",
        0.0,
        sum(moved),
        p.breakdown.time_s["optimizer"],
        1.0,
        _peak(p),
        UNCOUNTED,
        ("N (G / D_g + (4 G + 30 − moved on the host) / D) bytes", text),
        ("bytes / (B_hbm share)", f"({text}) / {_hbm(p.problem.pool.accelerator)}" + more),
    )
