"""Layers of a hybrid model in scalars: attention, windows, Mamba-2, delta nets, and MLPs.

What `oracle_models` asks of layers that are a mixer and an MLP, or one of both, in decoders and
encoders; no experts, no context parallelism.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import LayerRun, ModelShape, WindowShape
from tests.searches import oracle_diffusion as diffusion
from tests.searches import oracle_graphs as graphs
from tests.searches import oracle_physics as physics
from tests.searches import oracle_streams as streams

Pair = tuple[float, float]
Traffic = Callable[..., tuple[Pair, Pair]]


ATTENTION = ("attention", "window", "bidirectional", "bidirectional-window")


class Kind(str):
    """The name of a kind of layer, which has no experts."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    @property
    def mixer(self) -> str:
        plain = self.partition("@")[0]
        return "attention" if plain == "dense" else plain.partition("+")[0]

    @property
    def crosses(self) -> bool:
        return self.mixer.endswith("cross")

    @property
    def reads(self) -> bool:
        """It is one of the encoder in front of the decoder."""
        return self.mixer == "encoder"

    @property
    def feeds(self) -> bool:
        plain = self.partition("@")[0]
        return plain == "dense" or plain.endswith(("+dense", "+injected"))

    @property
    def injects(self) -> bool:
        return "+injected" in self


def own(problem: Problem, kind: Kind) -> Problem:
    """Return the problem with the sizes that layers of a kind have of their own."""
    name, shape = kind.partition("@")[2], problem.shape
    for variant in shape.variants:
        if variant.name == name:
            sizes = dict(variant.sizes)
            if "window" in sizes:
                sizes["window"] = WindowShape(sizes["window"])
            shape = replace(shape, **sizes)
    return replace(problem, shape=shape)


def kinds_of(shape: ModelShape) -> list[Kind]:
    """Return the kind of every layer."""
    return [Kind(run.kind) for run in shape.layer_runs for _ in range(run.count)]


@dataclass(frozen=True)
class Mixer:
    """A mixer on one rank; times are of one micro-batch, bytes and widths of a token."""

    column: list[Pair]
    row: list[Pair]
    core: Pair
    moved: Pair
    kept: float
    temporaries: float
    kernels: float
    weights: float
    """Whole, of its linear layers; over tp for those of a rank."""
    others: float
    """Sharded parameters that are no weights of linear layers."""
    whole: float
    """Parameters that every rank holds."""
    of_context: tuple[Pair, ...] = ()
    """Column-parallel products of the context's tokens."""
    sublayers: int = 1


PLAIN = Kind("bidirectional+dense")
"""What a layer of an encoder is, in a model of its own."""


def encoder_of(problem: Problem) -> Problem:
    """Return the encoder in front of a decoder as a model of its own."""
    x, shape = problem.shape.encoder, problem.shape
    assert x is not None
    n = sum(kind.reads for kind in kinds_of(shape))
    alone = replace(
        shape,
        layers=n,
        hidden=x.hidden or shape.hidden,
        heads=x.heads or shape.heads,
        kv_heads=x.kv_heads or x.heads or shape.kv_heads,
        head_dim=x.head_dim or shape.head_dim,
        ffn=x.ffn or shape.ffn,
        layer_runs=(LayerRun(PLAIN, n),),
        encoder=None,
        cross=None,
    )
    return replace(problem, shape=alone, job=replace(problem.job, seq_len=x.seq_len))


def norm(shape: ModelShape) -> int:
    return shape.hidden * (1 if shape.norm == "rmsnorm" else 2)


def chunked(problem: Problem, tokens: float, work: Pair, moved: Pair, kernels: Pair) -> Pair:
    """Return a scan: small products at half the rate, or the bytes, whichever takes longer."""
    part, eff = problem.pool.accelerator, problem.pool.accelerator.efficiency
    peaks = part.peak_flops_per_s
    wanted = "fp16" if problem.job.recipe.gemm_precision == "fp16" else "bf16"
    rate = peaks.get(wanted, peaks["fp16"]) * eff.gemm_frac * 0.5
    found = [
        tokens * max(flops / rate, size / physics.hbm_rate(problem)) + n * eff.kernel_latency_s
        for flops, size, n in zip(work, moved, kernels, strict=True)
    ]
    return found[0], found[1]


def mixer_of(problem: Problem, kind: Kind, tokens: float, tp: int) -> Mixer | None:
    problem = own(problem, kind)
    shape, h = problem.shape, problem.shape.hidden
    if kind.mixer in (*ATTENTION, "differential", "factored"):
        q, kv = shape.heads * shape.head_dim / tp, physics.kv_width_per_rank(problem, tp)
        kv *= not shape.kv_shared
        core = physics.attention_s(problem, tokens, tp)
        if kind.mixer not in ("attention", "differential", "factored"):
            core = over_keys(problem, core, run_keys(problem, kind.mixer))
        moved = 4.0 * (q + kv) if shape.positions == "rope" else 0.0
        plain = Mixer(
            column=[(h, q + 2 * kv)],
            row=[(q, h)],
            core=core,
            moved=(moved, moved),
            kept=4.0 * q + 4.0 * kv + 4.0 * shape.heads / tp,
            temporaries=0.0,
            kernels=0.6,
            weights=h * (2 * q + 2 * kv) * tp,
            others=(q + 2 * kv) * tp * shape.bias,
            whole=norm(shape) + h * shape.bias,
        )
        if kind.mixer == "factored":
            return factored(shape, plain, (q, kv), tp)
        return differential(shape, plain, (q, kv), tp) if kind.mixer == "differential" else plain
    if kind.mixer in streams.MIXERS:
        return compressed(problem, kind.mixer, tokens, tp)
    if kind.mixer == "cross":
        return crossed(problem, tokens, tp)
    if kind.crosses:
        first = mixer_of(problem, Kind("attention+none"), tokens, tp)
        assert first
        return behind(first, crossed(problem, tokens, tp))
    if kind.mixer == "mamba2":
        return mamba(problem, tokens, tp)
    if kind.mixer == "rglru":
        return griffin(problem, tokens, tp)
    return delta(problem, tokens, tp) if kind.mixer == "gdn" else None


def compressed(problem: Problem, mixer: str, tokens: float, tp: int) -> Mixer:
    """Return attention over a window and compressed entries."""
    shape = problem.shape
    w = shape.heads * shape.head_dim / tp
    column, row = streams.columns(shape, mixer, tp), streams.rows(shape, tp)
    attended = physics.attention_s(problem, tokens, tp)
    core = over_keys(problem, attended, streams.run_keys(problem, mixer))
    if mixer == "csa":
        work, moved = streams.scores(problem)
        index = chunked(problem, tokens, work, moved, (3, 3))
        core = core[0] + index[0], core[1] + index[1]
    return Mixer(
        column=column,
        row=row,
        core=core,
        moved=streams.moved(shape, mixer, tp),
        kept=streams.kept(problem, mixer, tp),
        temporaries=4 * w,
        kernels=streams.kernels(mixer),
        weights=sum(k * n for k, n in column + row) * tp,
        others=shape.heads,
        whole=streams.whole(shape, mixer),
    )


def griffin(problem: Problem, tokens: float, tp: int) -> Mixer:
    """Return a gated linear recurrence: two products in, two of blocks, one back."""
    shape, h, x = problem.shape, problem.shape.hidden, problem.shape.rglru
    assert x is not None
    w, block = x.width / tp, x.width / x.heads
    # Eight times the cost of a product on the tensor cores, at half their rate, 4 FLOPs a channel.
    core = chunked(problem, tokens, (32 * w, 64 * w), (10 * w, 24 * w), (1, 2))
    return Mixer(
        column=[(h, 2 * w), (block, w), (block, w)],
        row=[(w, h)],
        core=core,
        moved=(34 * w, 62 * w),
        kept=16 * w,
        temporaries=12 * w,
        kernels=14 / 13,
        weights=(3 * h * w + 2 * block * w) * tp,
        others=(x.conv + 6) * x.width,
        whole=norm(shape) + h,
    )


def differential(shape: ModelShape, one: Mixer, widths: Pair, tp: int) -> Mixer:
    """Return attention with two softmaxes: bytes by operator, and the tensors kept."""
    q, kv = widths
    ahead = 6 * kv + (8 + 4 + 6 + 4 + 4) * q
    after = (6 + 6) * kv + (4 + 6 + 4 + 4 + 8 + 8 + 6) * q
    # q, two cores, both together, difference, projection's input; k, values repeated.
    kept = (2 + 4 + 4 + 2 + 2) * q + (2 + 4) * kv + (8 + 2) * shape.heads / tp
    return replace(
        one,
        core=(2 * one.core[0], 2 * one.core[1]),
        moved=(one.moved[0] + ahead, one.moved[1] + after),
        kept=kept,
        kernels=one.kernels + 18 / 13,
        whole=one.whole + 4 * shape.head_dim,
    )


def factored(shape: ModelShape, one: Mixer, widths: Pair, tp: int) -> Mixer:
    """Return attention whose queries are two products: all ranks hold the first and its norm."""
    (q, kv), h = widths, shape.hidden
    assert shape.factored is not None
    r = shape.factored.q_rank
    return replace(
        one,
        column=[(h, r + 2 * kv), (r, q)],
        moved=(one.moved[0] + 5 * r, one.moved[1] + 5 * r),
        kept=one.kept + 4 * r,
        kernels=one.kernels + 2 / 13,
        weights=one.weights + (r * q + r * h - q * h) * tp,
        whole=one.whole + r,
    )


def run_keys(problem: Problem, mixer: str) -> float:
    """Return the keys that a kernel multiplies for a query: those it sees and a tile of 128."""
    s, window = problem.job.seq_len, problem.shape.window
    if mixer == "bidirectional":
        return float(s)
    assert window is not None
    w = window.size
    if mixer == "window":
        pairs = sum(min(i + 1, w) for i in range(s)) if w < s else s * s / 2
        return min(s / 2, pairs / s + 128)
    r = (w - 1) // 2
    pairs = sum(min(i + r, s - 1) - max(i - r, 0) + 1 for i in range(s))
    return min(s, pairs / s + 128)


def over_keys(problem: Problem, core: Pair, keys: float) -> Pair:
    """Return a core whose queries run over some keys, of that over half of a sequence."""
    s, eff = problem.job.seq_len, problem.pool.accelerator.efficiency
    half, latency = eff.attention_seq_half, eff.kernel_latency_s
    reach = 2 * keys
    share = 2 * keys / s * (s / (s + half)) / (reach / (reach + half))
    return (core[0] - latency) * share + latency, (core[1] - latency) * share + latency


def crossed(problem: Problem, tokens: float, tp: int) -> Mixer:
    """Return cross attention: as many keys as the context has, at the rate of twice as many."""
    shape, h, s = problem.shape, problem.shape.hidden, problem.job.seq_len
    eff, x = problem.pool.accelerator.efficiency, problem.shape.cross
    assert x is not None
    q, kv = shape.heads * shape.head_dim / tp, physics.kv_width_per_rank(problem, tp)
    half, latency = eff.attention_seq_half, eff.kernel_latency_s
    share = 2 * x.tokens / s * (s / (s + half)) / (2 * x.tokens / (2 * x.tokens + half))
    ahead, after = (
        (one - latency) * share + latency for one in physics.attention_s(problem, tokens, tp)
    )
    return Mixer(
        column=[(h, q)],
        row=[(q, h)],
        core=(ahead, after),
        moved=(0.0, 6.0 * x.width * x.tokens / s),
        kept=4.0 * q + 4.0 * shape.heads / tp + 4.0 * kv * x.tokens / s,
        temporaries=0.0,
        kernels=0.6,
        weights=(2 * h * q + 2 * x.width * kv) * tp,
        others=0.0,
        whole=norm(shape),
        of_context=((x.width, 2 * kv),),
    )


def behind(first: Mixer, other: Mixer) -> Mixer:
    """Return two mixers of one layer, one after the other."""
    return Mixer(
        column=first.column + other.column,
        row=first.row + other.row,
        core=(first.core[0] + other.core[0], first.core[1] + other.core[1]),
        moved=(first.moved[0] + other.moved[0], first.moved[1] + other.moved[1]),
        kept=first.kept + other.kept,
        temporaries=max(first.temporaries, other.temporaries),
        kernels=first.kernels + other.kernels,
        weights=first.weights + other.weights,
        others=first.others + other.others,
        whole=first.whole + other.whole,
        of_context=first.of_context + other.of_context,
        sublayers=2,
    )


def mamba(problem: Problem, tokens: float, tp: int) -> Mixer:
    shape, h = problem.shape, problem.shape.hidden
    x = shape.mamba2
    assert x is not None
    d, g, a, n, q = (
        x.heads * x.head_dim / tp,
        x.groups * x.state / tp,
        x.heads / tp,
        x.state,
        x.chunk,
    )
    width, states, scores = 2 * d + 2 * g + a, d * n / q, q * x.groups / tp
    return Mixer(
        column=[(h, width)],
        row=[(d, h)],
        core=chunked(
            problem,
            tokens,
            (2 * q * g + q * d + 4 * n * d, 6 * q * g + 3 * q * d + 10 * n * d),
            (
                10 * d + 8 * g + 10 * states + 8 * scores,
                32 * d + 16 * g + 30 * states + 28 * scores,
            ),
            (5, 13),
        ),
        moved=(4 * (d + 2 * g) + 4 * d, 10 * (d + 2 * g) + 10 * d),
        kept=2 * width + 6 * d + 4 * x.groups / tp,
        temporaries=2 * width + 4 * (d + 2 * g) + 4 * d + 12 * states + 8 * scores,
        kernels=14 / 13,
        weights=h * (width + d) * tp,
        others=((x.conv + 1) * (d + 2 * g) + 3 * a + d) * tp,
        whole=norm(shape),
    )


def delta(problem: Problem, tokens: float, tp: int) -> Mixer:
    shape, h = problem.shape, problem.shape.hidden
    x = shape.delta_net
    assert x is not None
    k, v, a, q = x.k_heads * x.k_dim / tp, x.v_heads * x.v_dim / tp, x.v_heads / tp, x.chunk
    e, conv = a * x.k_dim, 2 * k + v
    square, scores = e * x.v_dim, a * q
    states = square / q
    return Mixer(
        column=[(h, 2 * k + 2 * v + 2 * a)],
        row=[(v, h)],
        core=chunked(
            problem,
            tokens,
            (
                6 * square + 6 * q * e + 4 * q * v,
                16 * square + 12 * q * e + 10 * q * v + 4 * q * scores,
            ),
            (12 * e + 12 * v + 2 * scores + 4 * states, 36 * e + 30 * v + 4 * scores + 8 * states),
            (6, 10),
        ),
        moved=(
            8 * conv + 8 * k + 4 * e + 18 * v + 12 * a,
            10 * conv + 12 * k + 6 * e + 24 * v + 20 * a,
        ),
        kept=8 * k + 4 * e + 14 * v + 16 * a + 2 * scores + 8 * x.k_heads / tp,
        temporaries=8 * e + 6 * v + 4 * states,
        kernels=22 / 13,
        weights=h * (2 * k + 3 * v + 2 * a) * tp,
        others=(x.conv * conv + 2 * a) * tp,
        whole=norm(shape) + x.v_dim,
    )


def norm_out(problem: Problem, tokens: float, tp: int) -> tuple[float, float, float]:
    """Return what norm and gate of a delta net's output take again, and no longer keep."""
    x, eff = problem.shape.delta_net, problem.pool.accelerator.efficiency
    assert x is not None
    v, a = x.v_heads * x.v_dim / tp, x.v_heads / tp
    moved = 10.0 * v * tokens * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    return moved + 2 * eff.kernel_latency_s, tokens * (4.0 * v + 4.0 * a), 0.0


def sizes_of_mlp(shape: ModelShape) -> tuple[int, int]:
    return shape.hidden, shape.ffn


def per_mlp(shape: ModelShape) -> float:
    return (3 if shape.gated else 2) * shape.hidden * shape.ffn


def params(problem: Problem, kind: Kind, tp: int) -> float:
    """Return the parameters of a layer on one rank."""
    if problem.shape.diffusion:
        return diffusion.params(problem, kind, tp)
    if kind.reads:
        return params(encoder_of(problem), PLAIN, tp)
    held, mixer = 0.0, mixer_of(problem, kind, 1.0, tp)
    if mixer:
        held += (mixer.weights + mixer.others) / tp + mixer.whole
    shape = own(problem, kind).shape
    held += injected_weights(shape) + injected_vectors(shape) if kind.injects else 0.0
    if kind.feeds:
        held += per_mlp(shape) / tp + norm(shape)
        held += ((2 if shape.gated else 1) * shape.ffn / tp + shape.hidden) * shape.bias
    n_sublayers = (mixer.sublayers if mixer else 0) + kind.feeds
    return held + n_sublayers * streams.connection_params(shape)


def injected_weights(shape: ModelShape) -> float:
    assert shape.per_layer is not None
    x = shape.per_layer
    return shape.hidden * (3.0 * x.width + 2 * x.laurel_rank + x.streams)


def injected_vectors(shape: ModelShape) -> float:
    """Return norms, the scale of AltUp, and the matrices that mix.

    Norms behind attention, MLP and injection, of LAuReL and AltUp; of queries, and of own keys.
    """
    assert shape.per_layer is not None
    a = shape.per_layer.streams
    heads = shape.head_dim * (2 - shape.kv_shared)
    return 4 * norm(shape) + heads + 2 * shape.hidden + a**3 + a**2


def streams_s(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    """Return the time that makes, or joins, the further streams."""
    shape, h = problem.shape, problem.shape.hidden
    if not shape.per_layer:
        return 0.0, 0.0
    n, rows = shape.per_layer.streams - 1, tokens / (tp if sp else 1)
    one = physics.products(problem, rows, [(h, h)])
    scaled = 10 * h * rows * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    return n * (one.forward + scaled), n * (one.dgrad + one.wgrad + scaled)


def least_weights(problem: Problem, tp: int) -> float:
    """Return the weights of the lightest layer of the model."""
    if problem.shape.diffusion:
        kinds = {*kinds_of(problem.shape)}
        return min(diffusion.weights(problem, kind, tp) for kind in kinds)
    found = []
    for kind in {*kinds_of(problem.shape)}:
        if kind.reads:
            found.append(least_weights(encoder_of(problem), tp))
            continue
        mixer = mixer_of(problem, kind, 1.0, tp)
        mlp = per_mlp(own(problem, kind).shape) / tp if kind.feeds else 0.0
        mlp += injected_weights(problem.shape) if kind.injects else 0.0
        found.append((mixer.weights / tp if mixer else 0.0) + mlp)
    return min(found)


def scratch(problem: Problem, tp: int) -> float:
    """Return a gradient for each distinct shape of weights of the model."""
    found = {}
    if problem.shape.diffusion:  # a stream's attention and MLP are cut alike in all blocks but one
        either = [kind == "single-stream" for kind in kinds_of(problem.shape)]
        shape, width = problem.shape, problem.shape.heads * problem.shape.head_dim
        return 2.0 * len({*either}) * (4 * shape.hidden * width + per_mlp(shape)) / tp
    for kind in kinds_of(problem.shape):
        if kind.reads:
            inner = encoder_of(problem)
            found["encoder"] = scratch(inner, tp) / 2
            if sizes_of_mlp(inner.shape) == sizes_of_mlp(problem.shape):
                found["encoder"] -= per_mlp(inner.shape) / tp  # the decoder's are the same
            continue
        mixer = mixer_of(problem, kind, 1.0, tp)
        if mixer:
            like = (*ATTENTION, "differential")
            name = "attention" if kind.mixer in like else kind.mixer
            shape = own(problem, kind).shape
            heads = shape.heads, shape.kv_heads, shape.head_dim, shape.kv_shared
            found[name, *heads] = mixer.weights / tp
        if kind.feeds:
            mlp = per_mlp(own(problem, kind).shape) / tp
            found["mlp", mlp] = mlp + (injected_weights(shape) if kind.injects else 0.0)
    return 2.0 * sum(found.values())


@dataclass(frozen=True)
class Parts:
    """One layer and micro-batch."""

    times: Pair
    wgrad: float
    again: float
    kept: float
    temporaries: float
    pool: float


def layer(problem: Problem, layout: Layout, kind: Kind, traffic: Traffic) -> Parts:
    """Return a layer; `traffic` is `oracle_models.tp_traffic`."""
    if problem.shape.diffusion:
        return Parts(**diffusion.layer(problem, layout, kind, traffic))
    assert layout.cp == 1, "the instances cut no sequence"
    assert graphs.graph(layout) == "none"
    if kind.reads:
        problem, kind = encoder_of(problem), PLAIN
    tokens = float(layout.mbs * problem.job.seq_len)
    return parts(problem, (layout.tp, layout.sp), kind, tokens, traffic)


def parts(
    problem: Problem, degrees: tuple[int, bool], kind: Kind, tokens: float, traffic: Traffic
) -> Parts:
    """Return a layer over some tokens, of which tp and sp are the degrees."""
    problem = own(problem, kind)
    shape, stack, (tp, sp), h = problem.shape, problem.stack, degrees, problem.shape.hidden
    mixer, ffn = mixer_of(problem, kind, tokens, tp), shape.ffn if kind.feeds else 0
    wide = (2 if shape.gated else 1) * shape.ffn / tp
    up, down = ([(h, wide)], [(shape.ffn / tp, h)]) if ffn else ([], [])
    column = physics.products(problem, tokens, (mixer.column if mixer else []) + up)
    row = physics.products(problem, tokens, (mixer.row if mixer else []) + down)
    rows, p = tokens / (tp if sp else 1), float(shape.per_layer.width) if kind.injects else 0.0
    x = shape.per_layer
    r, a = (x.laurel_rank, x.streams) if x and p else (0, 1)
    if p:
        column = added(column, physics.products(problem, rows, [(h, p), (h, p), (h, r)]))
        row = added(row, physics.products(problem, rows, [(p, h), (r, h)]))
    n_blocks = (mixer.sublayers if mixer else 0) + bool(ffn)
    sent = float(n_blocks)
    if mixer and mixer.of_context and shape.cross:
        seen = shape.cross
        rows = tokens * seen.tokens / problem.job.seq_len
        column = added(column, physics.products(problem, rows, list(mixer.of_context)))
        sent += seen.tokens * seen.width / (2 * problem.job.seq_len * h)
    (f_all, f_open), (b_all, b_open) = traffic(problem, tokens, tp, sp, (column, row), sent)
    core = mixer.core if mixer else (0.0, 0.0)
    connected = streams.connection_s(problem, tokens, tp, sp)
    alone = half_elementwise(problem, tokens, tp, sp)
    halves = alone[0] + connected[0], alone[1] + connected[1]
    moved = list(mixer.moved) if mixer else [0.0, 0.0]
    if ffn:
        moved[0] += (6 if shape.gated else 4) * ffn / tp
        moved[1] += (10 if shape.gated else 6) * ffn / tp
    rate = physics.hbm_rate(problem) / stack.elementwise_factor
    n_norms = n_blocks + bool(p)
    mixed = (34 * a + 6) * h if p else 0.0
    heads = head_norms(problem, tp) if p else 0.0
    passes = 1.0 if stack.fused_norms else stack.unfused_norm_factor
    moved[0] += (20 * p + (16 + 8 * passes) * h * bool(p) + mixed) / (tp if sp else 1)
    moved[1] += (26 * p + (20 + 12 * passes) * h * bool(p) + 2 * mixed) / (tp if sp else 1)
    moved[0] += 4 * passes * heads
    moved[1] += 6 * passes * heads
    ahead = column.forward + row.forward + core[0] + f_open
    ahead += n_norms * halves[0] + tokens * moved[0] / rate
    behind = column.dgrad + column.wgrad + row.dgrad + row.wgrad + core[1] + b_open
    behind += n_norms * halves[1] + tokens * moved[1] / rate
    taxed = [
        one + stack.overlap_slowdown * (total - shown)
        for one, total, shown in ((ahead, f_all, f_open), (behind, b_all, b_open))
    ]
    plain = replace(problem, shape=replace(shape, kv_rank=0))
    share = (mixer.kernels if mixer else 0.0) + (0.4 if ffn else 0.0) + (1.4 if p else 0.0)
    share += n_blocks * streams.connection_kernels(problem) / 13
    launch = physics.launch_s(plain, tp) * share
    late = max(0.0, physics.paced_s(problem, launch, sum(taxed)) - sum(taxed))
    # Of each sublayer the norm's input and output, and what is gathered again.
    each = 4.0 * h / (tp if sp else 1) + streams.connection_kept(problem, tp, sp)
    each += physics.norm_besides(problem) * h / (tp if sp else 1)
    if sp and not stack.sp_regather:
        each += 2.0 * h * (tp - 1) / tp
    kept = 2.0 * ((5 + 3 * a + 1) * h + r + 5.0 * p) / (tp if sp else 1) if p else 0.0
    kept += 2.0 * heads
    kept += n_blocks * each + (mixer.kept if mixer else 0.0)
    kept += physics.columns_kept(problem) * ffn / tp
    inner = (6.0 if shape.gated else 4.0) * ffn / tp
    inner += 6.0 * (a - 1) * h / (tp if sp else 1)
    passing = max(inner, mixer.temporaries if mixer else 0.0) + 6.0 * h
    passing += streams.gradients(problem, tp, sp)
    return Parts(
        times=(taxed[0] + late / 3, taxed[1] + late * 2 / 3),
        wgrad=column.wgrad + row.wgrad,
        again=physics.paced_s(problem, launch / 3, ahead),
        kept=tokens * kept,
        temporaries=tokens * passing,
        pool=0.0,
    )


def head_norms(problem: Problem, tp: int) -> float:
    """Return the widths of queries, keys and values, each of which has a norm."""
    shape = problem.shape
    own_keys = physics.kv_width_per_rank(problem, tp) * (not shape.kv_shared)
    return shape.heads * shape.head_dim / tp + 2 * own_keys


def added(a: physics.Products, b: physics.Products) -> physics.Products:
    return physics.Products(a.forward + b.forward, a.dgrad + b.dgrad, a.wgrad + b.wgrad)


def half_elementwise(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    """Return a norm and a residual addition with three launches, both ways."""
    bare = replace(problem, shape=replace(problem.shape, positions="none", ffn=0))
    whole = physics.elementwise_s(bare, tokens, tp, sp)
    return whole[0] / 2, whole[1] / 2
