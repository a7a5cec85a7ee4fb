"""Attention over a window and compressed keys before it (DeepSeek-V4): three mixers.

Queries come through a matrix of low rank, one head of keys serves as values too, heads are
projected back in groups. `shared-window` sees a window alone; `csa` also the best of entries of
four tokens, as an indexer scores them; `hca` all entries of 128 tokens.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodels import memory
from costmodels.comm.exposure import Exposure
from costmodels.layers.compressed.entries import (
    Compressor,
    index_compressor,
    index_matrices,
    index_params,
    index_weights,
    key_compressor,
    seen_entries,
    sizes_of,
)
from costmodels.layers.compute import ForwardBackward, LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recompute import Modules, RecomputedModule
from costmodels.layers.recurrences.recurrent import DENSE_KERNELS, scan_s
from costmodels.layers.sublayers.attention import run_keys, window_keys
from costmodels.layers.sublayers.sublayer import (
    HeadsCut,
    Mixer,
    MixerTerms,
    elementwise_s,
    ends_bytes,
    norm_params,
    ranks,
)
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape

INDEX_BYTES = 4.0
"""Of the position of one chosen entry."""
WINDOW_KERNELS, COMPRESSOR_KERNELS, INDEXER_KERNELS = 14, 5, 9
"""Launches of a forward. Window: six products, five norms and rotations, core, rotation of the
output, addition; a compressor: two products, pooling, norm, rotation; the indexer: one of its own,
queries and their rotation, weights of heads, scores with the choice."""
UP_PROJECTION = "mla_up_proj"


@dataclass(frozen=True, slots=True)
class Reach:
    """What a query of one of the mixers sees beside its window."""

    is_compressed: bool = False
    is_sparse: bool = False
    """An indexer chooses of the entries."""

    def compressor(self, shape: ModelShape) -> Compressor | None:
        """Return what makes the entries; None without any."""
        if not self.is_compressed:
            return None
        return key_compressor(shape, is_sparse=self.is_sparse)

    def keys(self, shape: ModelShape, seq_len: int) -> float:
        """Return the mean keys of a query: those of its window, and entries."""
        x, one = sizes_of(shape), self.compressor(shape)
        keys = window_keys(x.window, seq_len)
        if one is None:
            return keys
        return keys + seen_entries(one.ratio, seq_len, x.top_k if self.is_sparse else 0)


WINDOW_ALONE = Reach()
HEAVY = Reach(is_compressed=True)
SPARSE = Reach(is_compressed=True, is_sparse=True)


def _whole(reach: Reach, shape: ModelShape) -> int:
    """Return the parameters that every tensor-parallel rank holds whole."""
    x, h, one = sizes_of(shape), shape.hidden, reach.compressor(shape)
    total = norm_params(shape) + (h + 1) * x.q_rank + (h + 1) * shape.head_dim
    if one:
        total += one.params(h)
    return total + (index_params(shape) if reach.is_sparse else 0)


def _cut_weights(shape: ModelShape) -> int:
    """Return the weights that tensor parallelism cuts: r_q w + w r_o + g r_o h."""
    x, w = sizes_of(shape), shape.q_width
    return x.q_rank * w + w * x.out_rank + x.groups * x.out_rank * shape.hidden


def compressed_params(reach: Reach, shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of such attention and its norm on one tensor-parallel rank.

    N = (r_q w + w r_o + g r_o h + a) / t + (h + 1) (r_q + d) + h + compressor + indexer

    w = a d of all heads, g groups of outputs of rank r_o; a number a head is its sink. Queries
    and outputs are cut by heads and groups, all else stands whole on every rank.
    Source: transformers models/deepseek_v4 (DeepseekV4Attention); DeepSeek's own inference code
    cuts heads and groups so.
    """
    cut = _cut_weights(shape) + shape.heads
    return np.asarray(cut / ranks(tp) + _whole(reach, shape))


def compressed_weights(reach: Reach, shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers on one tensor-parallel rank."""
    return np.asarray(_cut_weights(shape) / ranks(tp) + _whole_weights(reach, shape))


def _whole_weights(reach: Reach, shape: ModelShape) -> int:
    x, one = sizes_of(shape), reach.compressor(shape)
    columns = x.q_rank + shape.head_dim + (one.columns if one else 0)
    return shape.hidden * columns + (index_weights(shape) if reach.is_sparse else 0)


def compressed_matrices(reach: Reach, shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its matrices one by one; the grouped projection is one of g r_o rows.

    Source: transformers models/deepseek_v4 (DeepseekV4Attention, DeepseekV4GroupedLinear).
    """
    x, h, one = sizes_of(shape), shape.hidden, reach.compressor(shape)
    inner = x.groups * x.out_rank
    own = (
        Matrix(x.q_rank, h),
        Matrix(shape.q_width, x.q_rank, cut="rows"),
        Matrix(shape.head_dim, h),
        Matrix(inner, shape.q_width // x.groups, cut="rows"),
        Matrix(h, inner, cut="columns"),
    )
    more = one.matrices(h) if one else ()
    return own + more + (index_matrices(shape) if reach.is_sparse else ())


def compressed_macs(reach: Reach, shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token.

    Weights of the linear layers; 2 w k of the core over k mean keys of window and entries; with an
    indexer H d_I e of the scores over e mean entries behind a query.
    Source: transformers models/deepseek_v4; Megatron-Bridge training/utils/flop_utils.py
    (`dsv4_hybrid`), which takes the whole window for every query and all entries for the scores.
    Left out: pooling of windows, which multiplies elements.
    """
    x, one = sizes_of(shape), np.ones(1, dtype=np.int32)

    def core_at(seq_len: int) -> float:
        core = 2.0 * shape.q_width * reach.keys(shape, seq_len)
        return core + (_index_macs(shape, seq_len) if reach.is_sparse else 0.0)

    modules = {UP_PROJECTION: float(x.q_rank * shape.q_width)}
    weights = round(compressed_weights(reach, shape, one).item())
    return LayerMacs(weights, 0, 0, modules, core_at)


def _index_macs(shape: ModelShape, seq_len: int) -> float:
    x = sizes_of(shape)
    return x.index_heads * x.index_dim * seen_entries(x.sparse_ratio, seq_len)


def _linear_times(reach: Reach, inputs: LayerInputs) -> LinearTimes:
    """Return the products: all tokens meet what is whole on every tensor-parallel rank."""
    problem, tokens, shape = inputs.problem, inputs.tokens, inputs.problem.shape
    x, t, h, one = (
        sizes_of(shape),
        ranks(inputs.split.tp),
        float(shape.hidden),
        reach.compressor(shape),
    )
    three = products_of(shape.layers, problem.job, problem.pool.accelerator, problem.stack)
    sizes = [(h, x.q_rank), (x.q_rank, shape.q_width / t), (h, shape.head_dim)]
    if one:
        sizes.append((h, one.columns))
    if reach.is_sparse:
        sizes += [(h, index_compressor(shape).columns), (h, x.index_heads)]
        sizes.append((x.q_rank, x.index_heads * x.index_dim))
    column = [three(tokens, float(k), np.asarray(n, dtype=np.float64)) for k, n in sizes]
    groups = x.groups / t
    grouped = three(tokens, float(shape.q_width // x.groups), float(x.out_rank))
    out = three(tokens, groups * x.out_rank, h)
    forward, dgrad, wgrad = (np.asarray(sum(each)) for each in zip(*column, strict=True))
    row = [groups * first + second for first, second in zip(grouped, out, strict=True)]
    return LinearTimes(forward, dgrad, wgrad, *row)


def _moved_bytes(reach: Reach, shape: ModelShape, tp: Ints) -> tuple[Floats, Floats]:
    """Return what its memory-bound operators move for a token in 16 bits, forward and backward.

    A norm reads and writes, 4 bytes an element and 6 backward: of r_q, w / t and d. A rotation is
    in place on d_r of each head, 4 and 4: of queries, keys and outputs. Pooling reads keys and
    gates of all series, 2 c d elements, and writes d / m, which are normed: 2 and 6 bytes of the
    former, 8 and 14 of the latter; so on the indexer's. Source: operands counted by hand.
    """
    x, t, one = sizes_of(shape), ranks(tp), reach.compressor(shape)
    normed = x.q_rank + shape.q_width / t + shape.head_dim
    rotated = x.rope_dim * (2.0 * shape.heads / t + 1.0)
    ahead, after = 4.0 * (normed + rotated), 6.0 * normed + 4.0 * rotated
    pools = [one] if one else []
    if reach.is_sparse:
        pools.append(index_compressor(shape))
        of_index = 4.0 * x.index_heads * x.rope_dim
        ahead, after = ahead + of_index, after + of_index
    for pool in pools:
        entry = pool.width / pool.ratio
        ahead, after = (
            ahead + 2.0 * pool.columns + 8.0 * entry,
            after + 6.0 * pool.columns + 14.0 * entry,
        )
    return np.asarray(ahead), np.asarray(after)


def _up_projected_bytes(inputs: LayerInputs) -> Floats:
    """Return what queries keep between their latent and the core: before and after their norm."""
    shape = inputs.problem.shape
    w = shape.q_width / ranks(inputs.split.tp)
    in_fp32 = 4.0 if _is_eager(inputs) else 0.0
    return np.asarray((2.0 * inputs.element_bytes + in_fp32) * w)


def kept_bytes(reach: Reach, inputs: LayerInputs) -> Floats:
    """Return what such attention keeps for its backward beside its norm, bytes a token.

    In 16 bits: 4 r_q, the latent before and after its norm; 4 w / t, queries before and after
    theirs; 4 d, keys; 4 w / t, the core's output before and after its rotation, and 4 a / t of its
    sums; 2 g r_o / t, the input of the last product. A compressor of c series: 4 c d of keys and
    gates, 4 d / m of entries before and after their norm; so on the indexer's, and 2 H d_I of its
    queries, 2 H of weights, 4 bytes for each chosen position.

    Eager norms (`StackProfile.fused_norms`) keep their input and the scaled input in fp32: 6 more
    an element of r_q, d and entries, 4 of queries, 2 h in front, and numbers in fp32. Pools keep
    gates in fp32, keys and gates in 16 bits: 8 c d in place of 4 c d. The output is kept once,
    rotated. An indexer that no loss teaches keeps nothing there. Without a flash kernel the core
    keeps its scores, 2 a (s + s / m + 1) / t, with their places and keys again.
    Source: scripts/check_layers, tensors of transformers models/deepseek_v4.
    """
    return _eager_bytes(reach, inputs) if _is_eager(inputs) else _fused_bytes(reach, inputs)


def _is_eager(inputs: LayerInputs) -> bool:
    return not inputs.problem.stack.fused_norms


def _fused_bytes(reach: Reach, inputs: LayerInputs) -> Floats:
    shape, wide = inputs.problem.shape, inputs.element_bytes
    x, t, d, one = sizes_of(shape), ranks(inputs.split.tp), shape.head_dim, reach.compressor(shape)
    cut = 2.0 * shape.q_width + x.groups * x.out_rank
    total = wide * (2.0 * (x.q_rank + d) + cut / t) + _up_projected_bytes(inputs)
    pools = [one] if one else []
    if reach.is_sparse:
        pools.append(index_compressor(shape))
        entries = min(x.top_k, inputs.problem.job.seq_len // x.sparse_ratio)
        heads = x.index_heads * (x.index_dim + 1)
        total = total + wide * heads + INDEX_BYTES * entries
    for pool in pools:
        total = total + wide * (pool.columns + 2.0 * pool.width / pool.ratio)
    return np.asarray(total + _score_bytes(reach, inputs))


def _eager_bytes(reach: Reach, inputs: LayerInputs) -> Floats:
    shape, wide = inputs.problem.shape, inputs.element_bytes
    x, t, d, one = sizes_of(shape), ranks(inputs.split.tp), shape.head_dim, reach.compressor(shape)
    rotated = 2.0 * wide * x.rope_dim
    whole = (8.0 + wide) * (x.q_rank + d) + 8.0 + 3.0 * rotated
    if inputs.problem.stack.norm_keeps == "input":  # the norm in front scales in fp32 too
        whole += (4.0 - wide) * shape.hidden
    total = whole + _up_projected_bytes(inputs) + (4.0 + wide) * shape.heads / t
    total = total + wide * (shape.q_width + x.groups * x.out_rank) / t
    if one:
        entry = (8.0 + wide) * one.width + 4.0 + rotated
        total = total + (4.0 + 2.0 * wide) * one.series * one.width + entry / one.ratio
    return np.asarray(total + _score_bytes(reach, inputs))


def _score_bytes(reach: Reach, inputs: LayerInputs) -> Floats:
    """Return the scores of a core that stores them; with a flash kernel their sums, 4 a / t."""
    shape = inputs.problem.shape
    a = shape.heads / ranks(inputs.split.tp)
    if shape.flash_attention:
        return np.asarray(4.0 * a)
    seq_len, one = inputs.problem.job.seq_len, reach.compressor(shape)
    keys = seq_len + (seq_len // one.ratio if one else 0) + 1
    return np.asarray(inputs.element_bytes * a * keys + 8.0 * a)


def _index_times(inputs: LayerInputs) -> ForwardBackward:
    """Return the scores and the choice of the indexer, as of `sparse` layers.

    2 H d_I e FLOPs a token over e mean entries, twice that backward, at half the rate of a large
    product; scores of s / m entries are read and written once, 8 s / m bytes.
    """
    problem, shape = inputs.problem, inputs.problem.shape
    seq_len, launch = problem.job.seq_len, problem.pool.accelerator.efficiency.kernel_latency_s
    flops = np.full_like(inputs.tokens, 2.0 * _index_macs(shape, seq_len))
    moved = np.full_like(inputs.tokens, 8.0 * seq_len / sizes_of(shape).sparse_ratio)
    ahead, after = (scan_s(inputs, n * flops, moved) + 3 * launch for n in (1.0, 2.0))
    return ForwardBackward(ahead, after)


def _modules(inputs: LayerInputs, linear_s: Floats) -> Modules:
    """Return its recompute group `mla_up_proj`: queries from their latent on, norm and rotation.

    Source: Megatron-LM after 0.19, deepseek_v4_hybrid_attention.py (recompute_up_proj), which runs
    keys again too; they are left out here.
    """
    problem, shape, tokens = inputs.problem, inputs.problem.shape, inputs.tokens
    part, w = problem.pool.accelerator, shape.q_width / ranks(inputs.split.tp)
    per_byte = problem.stack.elementwise_factor / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    moved_s = 2.0 * inputs.element_bytes * (w + _rotated(shape, inputs.split.tp)) * per_byte
    zeros = np.zeros_like(tokens)
    again_s = linear_s + tokens * moved_s + 2.0 * part.efficiency.kernel_latency_s
    dropped = tokens * _up_projected_bytes(inputs)
    one = RecomputedModule(again_s, dropped, zeros, Exposure(zeros, zeros), zeros)
    return {UP_PROJECTION: one}


def _rotated(shape: ModelShape, tp: Ints) -> Floats:
    return np.asarray(sizes_of(shape).rope_dim * shape.heads / ranks(tp))


def compressed_terms(reach: Reach, inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention over a window and compressed keys.

    The core runs as one kernel over the mean keys of `Reach.keys`, tiles being whole, at the rate
    of attention of the model's heads. The indexer's scores are beside it. tp gathers the norm's
    output once and sums the last product's; cp is not cut.
    Left out: a rate of gathered entries below that of keys in a row, a loss that teaches the
    indexer where it needs the weights of all keys.
    """
    problem, tokens, shape = inputs.problem, inputs.tokens, inputs.problem.shape
    x, t, seq_len = sizes_of(shape), ranks(inputs.split.tp), problem.job.seq_len
    block = inputs.attention_over(run_keys(reach.keys(shape, seq_len), seq_len, 1.0))
    wide = inputs.element_bytes / 2.0
    ahead, after = _moved_bytes(reach, shape, inputs.split.tp)
    three = products_of(shape.layers, problem.job, problem.pool.accelerator, problem.stack)
    up_s = three(tokens, float(x.q_rank), shape.q_width / t)[0]
    kernels = WINDOW_KERNELS + COMPRESSOR_KERNELS * reach.is_compressed
    scratch = np.zeros_like(tokens)
    if problem.stack.fused_wgrad:
        scratch = scratch + 2.0 * compressed_weights(reach, shape, inputs.split.tp)
    saved = memory.quantized_inputs(problem).saved_bytes
    quantized = saved * (x.q_rank + x.groups * x.out_rank / t)
    return MixerTerms(
        linear=_linear_times(reach, inputs),
        elementwise=elementwise_s(inputs, wide * ahead, wide * after),
        blocks=1,
        launches=(kernels + INDEXER_KERNELS * reach.is_sparse) / DENSE_KERNELS,
        kept_bytes=ends_bytes(inputs) + tokens * (kept_bytes(reach, inputs) - quantized),
        modules=_modules(inputs, np.asarray(up_s)),
        scratch_bytes=scratch,
        core=block.compute + _index_times(inputs) if reach.is_sparse else block.compute,
        cp_forward=block.cp_forward,
        cp_backward=block.cp_backward,
        buffer_bytes=tokens * inputs.element_bytes * 2.0 * shape.q_width / t,
    )


def _heads(shape: ModelShape) -> HeadsCut:
    return HeadsCut(shape.heads, sizes_of(shape).groups, is_whole=True)


def _mixer(name: str, title: str, equation: str, reach: Reach) -> Mixer:
    """Return the record of one of the three."""
    return Mixer(
        name=name,
        title=title,
        equation=equation,
        source="DeepSeek-V4; transformers models/deepseek_v4 (DeepseekV4Attention)",
        params=partial(compressed_params, reach),
        replicated_params=partial(_whole, reach),
        linear_params=partial(compressed_weights, reach),
        macs=partial(compressed_macs, reach),
        terms=partial(compressed_terms, reach),
        modules=lambda shape: (UP_PROJECTION,),
        section="compressed",
        cut_over=_heads,
        frameworks=("deepspeed", "fsdp2"),
        matrices=partial(compressed_matrices, reach),
    )


SHARED_WINDOW = _mixer(
    "shared-window",
    "window attention with shared keys",
    "x + W_b W_a attention(norm(W_q norm(W_r norm(x))), k) over a window, k = norm(W_k norm(x))",
    WINDOW_ALONE,
)
CSA = _mixer(
    "csa",
    "compressed sparse attention",
    "as shared-window, and over the top_k entries of 4 tokens by sum over H of w relu(q k)",
    SPARSE,
)
HCA = _mixer(
    "hca",
    "heavily compressed attention",
    "as shared-window, and over all entries of 128 tokens, sum softmax(gate + bias) k each",
    HEAVY,
)
COMPRESSED = (SHARED_WINDOW, CSA, HCA)
