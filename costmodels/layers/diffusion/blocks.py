"""Blocks of diffusion transformers: two streams, one stream, and attention under modulation."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from costmodels.layers.diffusion.attention import (
    attention_stream_params,
    core_kept_bytes,
    cross_core,
    cross_elementwise,
    cross_kept_bytes,
    cross_products,
    normed_bytes,
    stream_matrices,
    stream_products,
    stream_weights,
    text_macs,
    text_params,
)
from costmodels.layers.diffusion.feeds import (
    activation_kept_bytes,
    activation_moved_bytes,
    activation_working_bytes,
    mlp_macs,
    mlp_params,
    mlp_weights,
)
from costmodels.layers.diffusion.streams import (
    ALL,
    Modulation,
    Size,
    condition_width,
    diffusion_sizes,
    gathered_factor,
    linear_of,
    modulated_bytes,
    modulated_kept_bytes,
    moved_s,
    samples_of,
    two_streams,
)
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.sublayers.sublayer import Mixer, MixerTerms, ranks
from costmodels.optimizers.matrices import Matrix, mlp_matrices
from costmodels.schedule.launches import ATTENTION_SHARE
from costmodels.shapes import ModelShape


def block_modulation(shape: ModelShape, vectors: int) -> Modulation:
    """Return the modulation of a block whose sublayers take so many vectors."""
    kind = diffusion_sizes(shape).modulation
    if kind == "table":
        return Modulation(learned=vectors)
    return Modulation(made=vectors if kind == "block" else 0)


def _modulation_product(inputs: LayerInputs, modulation: Modulation) -> list[Size]:
    """Return the product that makes the vectors: a row a sample."""
    shape = inputs.problem.shape
    if not modulation.made:
        return []
    columns = modulation.made * shape.hidden / ranks(inputs.split.tp)
    return [(samples_of(inputs), float(condition_width(shape)), columns)]


@dataclass(frozen=True, slots=True)
class DoubleStream:
    """Joint attention of patches and text, each with weights of its own (MMDiT)."""

    is_last: bool = False
    """Text gives queries, keys and values, and nothing is made of it behind (SD3)."""

    def modulation(self, shape: ModelShape) -> Modulation:
        """Return its modulation: six vectors a stream, two for text that ends here."""
        return block_modulation(shape, 8 if self.is_last else 12)

    def params(self, shape: ModelShape, tp: Ints) -> Floats:
        """Return attention of both streams and all modulation on one tensor-parallel rank."""
        text = attention_stream_params(shape, tp, has_output=not self.is_last)
        return np.asarray(
            attention_stream_params(shape, tp) + text + self.modulation(shape).params(shape, tp)
        )

    def replicated(self, shape: ModelShape) -> int:
        """Return what every rank holds whole: biases of outputs, norms of heads."""
        return _whole(shape, streams=2, outputs=2 - self.is_last)

    def weights(self, shape: ModelShape, tp: Ints) -> Floats:
        """Return the weights of its linear layers that tokens meet, on one rank."""
        text = stream_weights(shape, tp, has_output=not self.is_last)
        return stream_weights(shape, tp) + text

    def macs(self, shape: ModelShape) -> LayerMacs:
        """Return the multiply-adds of a token: 4 h w, its share of modulation, 2 w s of the core.

        Text of the last block has no output: 3 h w.
        """
        share = two_streams(shape)[1] * self.is_last
        own = (4.0 - share) * shape.hidden * shape.q_width
        return _macs(shape, own + self.modulation(shape).macs(shape))

    def terms(self, inputs: LayerInputs) -> MixerTerms:
        """Return the terms of joint attention."""
        shape = inputs.problem.shape
        shares = two_streams(shape)
        pairs = [stream_products(inputs, share) for share in shares]
        rows = [out for _, out in pairs[: 2 - self.is_last]]
        column = [into for into, _ in pairs]
        column += _modulation_product(inputs, self.modulation(shape))
        moved = _added(modulated_bytes(inputs), normed_bytes(inputs, streams=2))
        of_patches = modulated_kept_bytes(inputs, is_feed=False)
        of_text = modulated_kept_bytes(inputs, is_feed=False, is_gated=not self.is_last)
        kept = shares[0] * of_patches + shares[1] * of_text
        block = inputs.attention_over(float(inputs.problem.job.seq_len))
        return MixerTerms(
            linear=linear_of(inputs, column, rows),
            elementwise=moved_s(inputs, moved, (24, 44)),
            blocks=1,
            launches=2.0 * ATTENTION_SHARE,
            kept_bytes=inputs.tokens * (kept + core_kept_bytes(inputs)) + block.kept_bytes,
            modules={},
            scratch_bytes=_scratch_bytes(inputs, stream_weights(shape, inputs.split.tp)),
            core=block.compute,
            cp_forward=block.cp_forward,
            cp_backward=block.cp_backward,
            buffer_bytes=block.buffer_bytes,
        )

    def matrices(self, shape: ModelShape) -> tuple[Matrix, ...]:
        """Return the matrices of both streams and those of their modulation."""
        into, out = stream_matrices(shape)
        parts = (6, 2) if self.is_last else (6, 6)
        of_text = (into,) if self.is_last else (into, out)
        modulation = self.modulation(shape).matrices(shape, parts)
        return (into, out, *of_text, *modulation)


def _added(one: tuple[Floats, Floats], two: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return one[0] + two[0], one[1] + two[1]


def _macs(shape: ModelShape, projections: float, more: float = 0.0) -> LayerMacs:
    """Return the multiply-adds of attention over all tokens: a core of 2 w s, and `more`."""
    width = 2.0 * shape.q_width
    return LayerMacs(round(projections), 0, 0, {}, lambda seq_len: width * seq_len + more)


def _whole(shape: ModelShape, *, streams: int, outputs: int) -> int:
    """Return norms of heads and biases of outputs, which tp does not cut."""
    norms = {"head": 2, "head-unfused": 2, "head-layernorm": 4}.get(
        diffusion_sizes(shape).qk_norm, 0
    )
    return streams * norms * shape.head_dim + outputs * shape.hidden * shape.bias


def _scratch_bytes(inputs: LayerInputs, weights: Floats) -> Floats:
    if not inputs.problem.stack.fused_wgrad:
        return np.zeros_like(inputs.tokens)
    return np.asarray(2.0 * weights)


# A single stream --------------------------------------------------------------------------------


def _single_modulation(shape: ModelShape) -> Modulation:
    return block_modulation(shape, 3)


def single_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return a block of one stream on one tensor-parallel rank: attention and MLP side by side.

    N = (4 h w + c h f) / t + biases (one output bias), norms of queries and keys, 3 h (c + bias)

    Source: diffusers models/transformers/transformer_flux.py (FluxSingleTransformerBlock),
    transformer_flux2.py (Flux2ParallelSelfAttention).
    """
    both = attention_stream_params(shape, tp) + mlp_params(shape, tp) - shape.hidden * shape.bias
    return np.asarray(both + _single_modulation(shape).params(shape, tp))


def single_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return queries, keys and values with the way up in one, the output of both, modulation."""
    (into, _), (up, _) = stream_matrices(shape), mlp_matrices(shape, shape.ffn)
    w, rows = shape.q_width, into.rows + up.rows
    parts = (w, w, w, *(up.parts or (up.rows,)))
    return (
        Matrix(rows, shape.hidden, cut="rows", parts=parts),
        Matrix(shape.hidden, w + shape.ffn, cut="columns"),
        *_single_modulation(shape).matrices(shape, (3,)),
    )


def single_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: 4 h w + c h f, its share of modulation, 2 w s."""
    own = 4.0 * shape.hidden * shape.q_width + mlp_macs(shape)
    return _macs(shape, own + _single_modulation(shape).macs(shape))


def single_weights(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its products that tokens meet, on one rank."""
    return stream_weights(shape, tp) + mlp_weights(shape, tp)


def single_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a block of one stream.

    One product out of the normed input, one back from attention and MLP side by side, which are
    copied into one tensor first: it is kept beside the output of attention, and in place of that
    of the activation. With norms of single operators (HunyuanVideo) attention has a copy of its
    input, joined of patches and text.
    """
    shape, t, e = inputs.problem.shape, ranks(inputs.split.tp), inputs.element_bytes
    up = 2.0 if shape.gated else 1.0
    w, f, h = shape.q_width / t, shape.ffn / t, float(shape.hidden)
    column: list[Size] = [(inputs.tokens, h, 3.0 * w + up * f)]
    column += _modulation_product(inputs, _single_modulation(shape))
    joined = 4.0 * (w + f)
    own = _added(normed_bytes(inputs, streams=1), activation_moved_bytes(inputs))
    moved = _added(_added(modulated_bytes(inputs), own), (joined, joined))
    kept = modulated_kept_bytes(inputs, is_feed=False) + core_kept_bytes(inputs)
    kept = kept + activation_kept_bytes(inputs) + e * w
    if diffusion_sizes(shape).qk_norm == "head-unfused":
        kept = kept + e * h / gathered_factor(inputs)
    block = inputs.attention_over(float(inputs.problem.job.seq_len))
    working = inputs.tokens * activation_working_bytes(inputs)
    return MixerTerms(
        linear=linear_of(inputs, column, [(inputs.tokens, w + f, h)]),
        elementwise=moved_s(inputs, moved, (14, 26)),
        blocks=1,
        launches=1.0,
        kept_bytes=inputs.tokens * kept + block.kept_bytes,
        modules={},
        scratch_bytes=_scratch_bytes(inputs, single_weights(shape, inputs.split.tp)),
        core=block.compute,
        cp_forward=block.cp_forward,
        cp_backward=block.cp_backward,
        buffer_bytes=np.maximum(block.buffer_bytes, working),
    )


# One set of weights, attention and MLP one after the other --------------------------------------


def adaln_modulation(shape: ModelShape) -> Modulation:
    """Return the modulation of a block: six vectors, six more for text in the sequence."""
    x = diffusion_sizes(shape)
    has_text = x.text_tokens > 0 and not x.cross
    return block_modulation(shape, 12 if has_text else 6)


def adaln_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return attention, cross attention if any, and all modulation on one rank.

    With 4 h of weights and biases of both norms where they have them (`affine`).
    Source: diffusers models/transformers/{transformer_wan,cogvideox_transformer_3d}.py.
    """
    attends = attention_stream_params(shape, tp) + text_params(shape, tp)
    affine = 4.0 * shape.hidden * diffusion_sizes(shape).affine
    return np.asarray(attends + affine + adaln_modulation(shape).params(shape, tp))


def _adaln_replicated(shape: ModelShape) -> int:
    x = diffusion_sizes(shape)
    n = 1 + x.cross
    whole = _whole(shape, streams=n, outputs=n)
    norms = 4 * x.affine + 2 * (x.cross and x.cross_norm) + adaln_modulation(shape).learned
    return whole + norms * shape.hidden


def _adaln_weights(shape: ModelShape, tp: Ints) -> Floats:
    cross = 2.0 * shape.hidden * shape.q_width / ranks(tp) if diffusion_sizes(shape).cross else 0.0
    return stream_weights(shape, tp) + cross


def adaln_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: 4 h w and 2 w s, cross attention, modulation."""
    products, core = text_macs(shape)
    own = 4.0 * shape.hidden * shape.q_width + products
    return _macs(shape, own + adaln_modulation(shape).macs(shape), core)


def adaln_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of attention, of cross attention (keys and values in one), modulation.

    CogVideoX makes twelve vectors in two matrices, one for each sublayer.
    """
    h, w = shape.hidden, shape.q_width
    cross: tuple[Matrix, ...] = ()
    if diffusion_sizes(shape).cross:
        pair = Matrix(2 * w, h, cut="rows", parts=(w, w))
        cross = (Matrix(w, h, cut="rows"), pair, Matrix(h, w, cut="columns"))
    modulation = adaln_modulation(shape)
    parts = (6,) * (modulation.made // 6)
    return (*stream_matrices(shape), *cross, *modulation.matrices(shape, parts))


def adaln_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention under modulation, and of cross attention behind it."""
    shape = inputs.problem.shape
    into, out = stream_products(inputs, ALL[0])
    more_in, more_out = cross_products(inputs)
    column = [into, *more_in, *_modulation_product(inputs, adaln_modulation(shape))]
    moved = _added(modulated_bytes(inputs), normed_bytes(inputs, streams=1))
    kept = modulated_kept_bytes(inputs, is_feed=False) + core_kept_bytes(inputs)
    kept = kept + cross_kept_bytes(inputs)
    block, has_cross = inputs.attention_over(float(inputs.problem.job.seq_len)), bool(more_in)
    return MixerTerms(
        linear=linear_of(inputs, column, [out, *more_out]),
        elementwise=moved_s(inputs, moved, (11, 21)) + cross_elementwise(inputs),
        blocks=1 + has_cross,
        launches=ATTENTION_SHARE * (1 + has_cross),
        kept_bytes=inputs.tokens * kept + block.kept_bytes,
        modules={},
        scratch_bytes=_scratch_bytes(inputs, stream_weights(shape, inputs.split.tp)),
        core=block.compute + cross_core(inputs),
        cp_forward=block.cp_forward,
        cp_backward=block.cp_backward,
        buffer_bytes=block.buffer_bytes,
    )


def _double(name: str, title: str, block: DoubleStream) -> Mixer:
    return Mixer(
        name=name,
        title=title,
        equation="x + gate W_o attention(scale norm(x) + shift) for patches and for text, each"
        " over both",
        source="Esser et al. 2024 (arXiv 2403.03206), section 4; diffusers"
        " models/transformers/transformer_flux.py (FluxTransformerBlock)",
        params=block.params,
        replicated_params=block.replicated,
        linear_params=block.weights,
        macs=block.macs,
        terms=block.terms,
        modules=lambda shape: (),
        section="diffusion",
        attends=True,
        cp_comms=("a2a",),
        matrices=block.matrices,
        stands_alone=True,
    )


DOUBLE = _double("double-stream", "joint attention of patches and text", DoubleStream())
LAST_DOUBLE = _double(
    "double-stream-last", "the last joint attention of patches and text", DoubleStream(True)
)
SINGLE = Mixer(
    name="single-stream",
    title="attention beside an MLP under modulation",
    equation="x + gate W [attention(y), act(mlp up(y))], y = scale norm(x) + shift",
    source="diffusers models/transformers/transformer_flux.py (FluxSingleTransformerBlock)",
    params=single_params,
    replicated_params=partial(_whole, streams=1, outputs=1),
    linear_params=single_weights,
    macs=single_macs,
    terms=single_terms,
    modules=lambda shape: (),
    section="diffusion",
    attends=True,
    cp_comms=("a2a",),
    matrices=single_matrices,
    stands_alone=True,
)
ADALN = replace(
    SINGLE,
    name="adaln",
    title="attention under modulation",
    equation="x + gate attention(scale norm(x) + shift), then x + cross attention to text if any",
    source="Peebles and Xie 2022 (arXiv 2212.09748), section 3.2; diffusers"
    " models/transformers/transformer_wan.py (WanTransformerBlock)",
    params=adaln_params,
    replicated_params=_adaln_replicated,
    linear_params=_adaln_weights,
    macs=adaln_macs,
    terms=adaln_terms,
    blocks=lambda shape: 1 + diffusion_sizes(shape).cross,
    frameworks=("bridge",),
    matrices=adaln_matrices,
)
