"""What a sublayer is to the planner: one record for each mixer, one for each feed.

A mixer is what lets positions see one another (attention, a state-space layer), a feed what every
position passes alone (MLP, experts). A layer has one of each, or one alone; each has its norm and
its residual addition.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels import memory
from costmodels.comm.exposure import Exposure
from costmodels.layers.compute import ForwardBackward, LinearTimes
from costmodels.layers.experts import ExpertTimes
from costmodels.layers.layer_kind import LayerInputs, LayerMacs
from costmodels.layers.recompute import Modules
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SublayerTerms:
    """One sublayer, per micro-batch and device; arrays `(n,)`."""

    linear: LinearTimes
    elementwise: ForwardBackward
    """Norm, residual addition and other memory-bound operators."""
    blocks: float | Floats
    """Gathers and reductions of a layer's width over tp, one of each a block."""
    launches: float
    """Kernels that the host launches, over those of a dense layer."""
    kept_bytes: Floats
    modules: Modules
    """Its recompute groups."""
    scratch_bytes: Floats
    """Scratch weight gradients, one for each distinct shape."""


@dataclass(frozen=True, slots=True)
class MixerTerms(SublayerTerms):
    """A mixer."""

    core: ForwardBackward
    """Attention, or what stands in its place: the term `attention`."""
    cp_forward: Exposure
    cp_backward: Exposure
    buffer_bytes: Floats
    """What its exchange and core hold while they run backward."""


@dataclass(frozen=True, slots=True)
class FeedTerms(SublayerTerms):
    """A feed."""

    working_bytes: Floats
    """Temporaries of its backward beyond three tensors of a layer's width."""
    routed: ExpertTimes | None = None


@dataclass(frozen=True, slots=True)
class HeadsCut:
    """What tp and cp cut of a mixer that is no attention."""

    heads: int
    """Divisible by tp cp."""
    groups: int
    """Heads that several of them share; divisible by tp, and by tp cp unless they repeat."""
    repeats: bool = False
    """Where cp is a multiple of the groups of a rank, each of them is on several ranks."""
    is_whole: bool = False
    """Sequences are not cut over cp."""


@dataclass(frozen=True, slots=True)
class Mixer:
    """What mixes the positions of a sequence.

    The functions take the model's shape and count one sublayer, its norm included.
    """

    name: str
    """First half of the names of kinds of layers that have it."""
    title: str
    equation: str
    """What it computes of its normed input, as a term of the residual stream."""
    source: str
    params: Callable[[ModelShape, Ints], Floats]
    """Parameters on one tensor-parallel rank."""
    replicated_params: Callable[[ModelShape], int]
    linear_params: Callable[[ModelShape, Ints], Floats]
    """Weights of its linear layers on one tensor-parallel rank."""
    macs: Callable[[ModelShape], LayerMacs]
    """Of a token; those of an MLP are 0."""
    terms: Callable[[LayerInputs], MixerTerms]
    modules: Callable[[ModelShape], tuple[str, ...]]
    blocks: Callable[[ModelShape], int] = lambda shape: 1
    """Gathers and reductions over tp of a layer's width, one of each a block."""
    section: str = ""
    """Section of the model file, and field of `ModelShape`, that has its sizes."""
    context_elements: Callable[[ModelShape], int] = lambda shape: 0
    """Of one sequence, of what it attends to beside the sequence; gathered over tp too."""
    attends: bool = False
    """It is the model's attention, over all keys or some."""
    cp_comms: tuple[str, ...] = ()
    """Ways of exchanging keys and values that it is legal with; none named: all."""
    exchanged: Callable[[ModelShape, Ints, ArrayLike], tuple[Floats, ...]] | None = None
    """Elements of a token in the all-to-alls over cp of a forward, by tp and cp; None: it has
    the exchange of attention, or nothing."""
    cut_over: Callable[[ModelShape], HeadsCut] | None = None
    """Heads and groups that tp and cp cut; None: those of attention, or nothing."""
    frameworks: tuple[str, ...] = ()
    """Names of those whose files can say it."""
    matrices: Callable[[ModelShape], tuple[Matrix, ...]] | None = None
    """Its parameters of two dimensions, for optimizers that treat a matrix as one; None: they are
    not listed, and such optimizers are refused by the kind's name."""
    stands_alone: bool = False
    """It stands before one feed only, and its kind of layer has its name."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What every position passes alone; fields as in `Mixer`."""

    name: str
    title: str
    equation: str
    source: str
    params: Callable[[ModelShape, Ints], Floats]
    replicated_params: Callable[[ModelShape], int]
    linear_params: Callable[[ModelShape, Ints], Floats]
    macs: Callable[[ModelShape], LayerMacs]
    terms: Callable[[LayerInputs], FeedTerms]
    modules: Callable[[ModelShape], tuple[str, ...]]
    blocks: Callable[[ModelShape], int] = lambda shape: 1
    matrices: Callable[[ModelShape], tuple[Matrix, ...]] | None = None
    sees_heads: bool = False
    """Its terms depend on heads of attention too."""


def norm_params(shape: ModelShape) -> int:
    """Return the parameters of one norm of a layer."""
    return shape.hidden * (1 if shape.norm == "rmsnorm" else 2)


def ranks(tp: Ints) -> Floats:
    """Return tp as numbers to divide by."""
    return np.asarray(tp, dtype=np.float64)


@lru_cache(maxsize=256)
def without_feed(shape: ModelShape) -> ModelShape:
    """Return a model whose layers have attention alone: no MLP, no experts."""
    return replace(shape.without_experts(), ffn=0)


def no_linear(tokens: Floats) -> LinearTimes:
    """Return the times of a sublayer without linear layers."""
    return LinearTimes(*(np.zeros_like(tokens) for _ in fields(LinearTimes)))


def elementwise_s(inputs: LayerInputs, forward: Floats, backward: Floats) -> ForwardBackward:
    """Return the time of a sublayer's memory-bound operators, seconds.

    A norm and a residual addition, (4 u + 6) h / t_sp bytes a token forward and (6 u + 4) h / t_sp
    backward, h more in each with dropout, as half of `compute.elementwise_times`; `forward` and
    `backward` bytes of others; three launches.
    """
    problem, shape, stack = inputs.problem, inputs.problem.shape, inputs.problem.stack
    part = problem.pool.accelerator
    cut = np.where(inputs.sp > 0, inputs.split.tp.astype(np.float64), 1.0)
    norm = 1.0 if memory.fuses_norms(shape, stack) else stack.unfused_norm_factor
    mask = 1.0 if shape.dropout else 0.0
    ahead = (4.0 * norm + 6.0 + mask) * shape.hidden / cut + forward
    after = (6.0 * norm + 4.0 + mask) * shape.hidden / cut + backward
    eff = part.efficiency
    per_byte = stack.elementwise_factor / (part.hbm_bytes_per_s * eff.hbm_frac)
    launches = 3 * eff.kernel_latency_s
    n = inputs.tokens
    return ForwardBackward(n * ahead * per_byte + launches, n * after * per_byte + launches)


def ends_bytes(inputs: LayerInputs) -> Floats:
    """Return what the norm before a sublayer keeps, and the mask after it, bytes.

    Per token (4 h + h with dropout) / t_sp in 16 bits: half of what `layer_activation_bytes` has
    for the two of a layer, and half of what eager norms keep besides.
    """
    shape, stack = inputs.problem.shape, inputs.problem.stack
    t, width = inputs.split.tp.astype(np.float64), inputs.element_bytes
    per_token = (2.0 * width + (1.0 if shape.dropout else 0.0)) * shape.hidden
    total = np.full_like(t, per_token)
    if not stack.sp_regather:
        total = total + np.where(inputs.sp > 0, width * shape.hidden * (t - 1.0), 0.0)
    if besides := memory.norm_bytes_besides(shape, stack, width):
        total = total + besides * shape.hidden
    return np.asarray(inputs.tokens * total / np.where(inputs.sp > 0, t, 1.0))
