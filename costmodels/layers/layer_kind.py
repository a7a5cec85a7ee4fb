"""What a kind of layer is to the planner: one record each, and what its terms are made of.

`costmodels.layers.kinds` lists the records; docs/extending.md says how to add one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.comm import context_parallel
from costmodels.comm.context_parallel import ContextSplit
from costmodels.comm.dispatch import Degrees
from costmodels.comm.exposure import Exposure
from costmodels.layers.compute import ForwardBackward, attention_times
from costmodels.layers.recompute import Core, ModuleTerms
from costmodels.modes import ModeRows
from costmodels.offload.modules import ModuleCopies, module_copies, module_waits
from costmodels.optimizers.matrices import Matrix
from costmodels.plans import ShapeTable
from costmodels.problem import Problem
from costmodels.schedule import launches
from costmodels.shapes import ModelShape
from costmodels.stacks import StackProfile
from costmodels.tuning.adapters import launches_frac

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

HOST_FORWARD_SHARE = 1 / 3
"""Share of a layer's launch time that falls on the forward: it has half the kernels."""


@dataclass(frozen=True, slots=True)
class SplitDegrees:
    """Over how many ranks one layer is split; arrays of one length."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    cp_comm: Ints
    """Index into `CP_COMMS`."""

    @property
    def context(self) -> ContextSplit:
        """The part of it that context parallelism depends on."""
        return ContextSplit(self.tp, self.cp, self.cp_comm)

    @staticmethod
    def of_shapes(shapes: ShapeTable) -> "SplitDegrees":
        """Return the split of every shape."""
        return SplitDegrees(shapes.tp, shapes.cp, shapes.ep, shapes.etp, shapes.cp_comm)

    @staticmethod
    def of_tp(tp: Ints) -> "SplitDegrees":
        """Return splits by tensor parallelism alone."""
        one = np.ones_like(tp)
        return SplitDegrees(tp, one, one, one, 0 * one)


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """What the model's own attention costs in any layer that has it; arrays of one length."""

    compute: ForwardBackward
    cp_forward: Exposure
    cp_backward: Exposure
    kept_bytes: Floats
    """What the exchange keeps for the backward."""
    buffer_bytes: Floats
    core: Core


@dataclass(frozen=True)
class LayerInputs:
    """What the terms of a layer depend on; arrays of one length."""

    problem: Problem
    split: SplitDegrees
    tokens: Floats
    """Of one micro-batch on one device."""
    modes: ModeRows

    @property
    def sp(self) -> Ints:
        """Sequence parallelism: 0 off, 1 on, 2 with `tp_overlap`."""
        return self.modes.sp

    @cached_property
    def attention(self) -> AttentionBlock:
        """The model's own attention, computed once for all kinds of layers that have it."""
        return self.attention_over(self.problem.job.run_keys)

    def attention_over(self, run_keys: float = 0.0) -> AttentionBlock:
        """Return the model's own attention over a part of the keys (`AttentionKernels`)."""
        problem, context, tokens = self.problem, self.split.context, self.tokens
        shape, job, stack, tp = problem.shape, problem.job, problem.stack, self.split.tp
        kernels = context_parallel.attention_kernels(context, run_keys)
        accelerator = problem.pool.accelerator
        compute = attention_times(shape, job, accelerator, stack, tokens, kernels)
        forward, backward = context_parallel.exchange_times(problem, context, tokens, compute)
        compute = compute + context_parallel.merge_times(problem, context, tokens, run_keys)
        activations = (shape, stack, self.micro_batch, tp, self.sp)
        with_scores = memory.layer_activation_bytes(*activations, np.ones_like(tokens))
        without = memory.layer_activation_bytes(*activations, np.zeros_like(tokens))
        return AttentionBlock(
            compute,
            forward,
            backward,
            context_parallel.kept_bytes(problem, context, tokens),
            context_parallel.buffer_bytes(problem, context, tokens),
            Core(compute.forward_s + forward.exposed_s, with_scores - without),
        )

    @property
    def element_bytes(self) -> float:
        """Width of an activation, bytes."""
        return self.problem.job.recipe.activation_bytes

    @property
    def micro_batch(self) -> memory.MicroBatch:
        """One micro-batch of the job on one device."""
        return memory.MicroBatch(
            self.tokens,
            self.problem.job.seq_len,
            self.element_bytes,
            memory.quantized_inputs(self.problem),
            tuning=self.problem.job.tuning,
        )

    def of_kind(self, kind: str) -> "LayerInputs":
        """Return the inputs of layers of a kind: the sizes of its variant in place of the model's.

        Computed once for all kinds of the same variant.
        """
        name = kind.partition("@")[2]
        if not name:
            return self
        key = f"variant {name}"
        if key not in self.parts:
            shape = self.problem.shape.of_kind(kind)
            self.parts[key] = replace(self, problem=replace(self.problem, shape=shape))
        varied: LayerInputs = self.parts[key]
        return varied

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Terms of sublayers by name, each computed once for all kinds of layers that have it."""
        return {}

    @cached_property
    def launch_s(self) -> Floats:
        """The host's time for one layer without CUDA graphs, both directions, seconds."""
        return host_s(self.problem, self.split.tp)

    @property
    def degrees(self) -> Degrees:
        """Over how many ranks attention and experts are split."""
        return Degrees(self.split.tp, self.sp, self.split.ep, self.split.etp)

    def away(
        self, layer: ForwardBackward, *, routed: bool, attends: bool = True
    ) -> tuple[ModuleCopies, ForwardBackward]:
        """Return what a layer has on the host, and what it waits for it; `layer` is its time.

        `attends`: the model's attention is in it, `routed`: routed experts are.
        """
        parts = (attends, routed)
        copies = module_copies(self.problem, self.tokens, self.degrees, self.modes, parts)
        return copies, module_waits(self.problem, copies, layer)


@dataclass(frozen=True, slots=True)
class KindTerms:
    """One layer of a kind, per micro-batch and device; arrays `(n_distinct,)`."""

    linear: ForwardBackward
    attention: ForwardBackward
    elementwise: ForwardBackward
    tp_forward: Exposure
    tp_backward: Exposure
    cp_forward: Exposure
    cp_backward: Exposure
    tax: ForwardBackward
    """Slowdown of compute beside hidden tensor- and context-parallel traffic."""
    host: ForwardBackward
    """What the host adds when it launches more slowly than the device computes."""
    copies: ForwardBackward
    """What it waits for modules whose inputs are on the host (`offload_modules`)."""
    layer: ForwardBackward
    """All of one layer: the sum of the terms above it, and of routed experts."""
    weight_grad_s: Floats
    """The part of its backward that can wait: the weight gradients of its linear layers."""
    recompute_full_s: Floats
    """Its forward again, with its collectives, at least the host's time for it."""
    modules: ModuleTerms
    """What recomputing each module alone takes and leaves out."""
    kept_bytes: Floats
    """Its activations on the device, scores included where they are stored."""
    away: ModuleCopies
    """What its offloaded modules keep on the host."""
    working_bytes: Floats
    """Temporaries of its backward."""
    scratch_bytes: Floats
    """Scratch weight gradients, held for good: all of a model's first kind, of another kind those
    beyond that one's."""


@dataclass(frozen=True, slots=True)
class ExpertLayerTerms(KindTerms):
    """A layer with routed experts; `linear` and `elementwise` are attention and shared experts."""

    routed: ForwardBackward
    """Router, permutation, products and activation of the routed experts."""
    exchange: ForwardBackward
    """What it waits for the exchange of tokens over ep and etp."""
    exchange_hidden_s: Floats
    """The rest of that exchange, which hides beside another micro-batch; both directions."""
    fill_s: Floats
    """What the layer takes more in the first and last micro-batch of a pipeline, which have no
    other beside them; both directions."""


@dataclass(frozen=True, slots=True)
class LayerMacs:
    """Multiply-adds of one token in the forward of one layer, as model FLOPs count them."""

    projections: int
    """Linear layers of attention, or of what stands in its place."""
    core: int
    """Attention core, per position of the sequence: the causal half."""
    mlp: int
    """MLP or experts."""
    modules: Mapping[str, float]
    """Those that each recompute group runs again, besides `core_attn`."""
    core_at: Callable[[int], float] | None = None
    """Those of a core that does not grow with the sequence, by its length; `core` is 0 then."""
    of_sequence: int = 0
    """Those of a whole sequence besides, however long it is: keys and values of a context."""

    def core_macs(self, seq_len: float) -> float:
        """Return the multiply-adds of a token in the core, in sequences of so many tokens."""
        return self.core_at(round(seq_len)) if self.core_at else self.core * seq_len


@dataclass(frozen=True, slots=True)
class LayerKind:
    """One kind of layer. A model is a sequence of runs of kinds (`ModelShape.layer_runs`).

    Every function takes the model's shape, whose sizes it reads, and prices one layer.
    """

    name: str
    """As the model file says it: `layer_kinds: [{kind: NAME, count: N}]`."""
    title: str
    """A few words for tables and pages: `dense layer`."""
    equation: str
    """What one layer computes."""
    source: str
    params: Callable[[ModelShape, Ints], Floats]
    """Parameters on one tensor-parallel rank, without routed experts."""
    replicated_params: Callable[[ModelShape], int]
    """Those of them that every tensor-parallel rank holds whole."""
    matrix_params: Callable[[ModelShape, Ints], Floats]
    """A lower bound of the weights that every token meets on one tensor-parallel rank."""
    macs: Callable[[ModelShape], LayerMacs]
    terms: Callable[[LayerInputs], KindTerms]
    """Times, traffic that shows, kept bytes by recompute group, temporaries."""
    modules: Callable[[ModelShape], tuple[str, ...]]
    """Recompute groups that it has, of `axes.RECOMPUTE_MODULES`."""
    is_routed: bool = False
    """It has routed experts, as `model.moe` gives them."""
    mixer: str = "attention"
    """What mixes positions in it (`sublayers.mixers`), as rules of degrees ask."""
    feed: str = "dense"
    """What stands behind it: `dense`, `moe` or `none`."""
    blocks: Callable[[ModelShape], int] = lambda shape: 2
    """Gathers and reductions over tp of a layer's width in its forward, one of each a block."""
    linear_params: Callable[[ModelShape, Ints], Floats] | None = None
    """Weights of its linear layers on one tensor-parallel rank, without routed experts: fp8 and
    fp4 recipes quantise them; None: `matrix_params`."""
    frameworks: tuple[str, ...] = ()
    """Names of those whose files can say such a layer; listed in docs/files.md."""
    matrices: Callable[[ModelShape], tuple[Matrix, ...]] | None = None
    """Its matrices, those of routed experts included, for optimizers that treat a matrix as one;
    None: they are not listed, and such optimizers are refused by the kind's name."""

    context_elements: Callable[[ModelShape], int] = lambda shape: 0
    """Of one sequence, of what it attends to beside the sequence."""

    def blocks_at(self, shape: ModelShape, seq_len: float) -> float:
        """Return the blocks of a layer over `seq_len` tokens of a sequence on a rank.

        A context of C elements is gathered once forward, and its gradient summed once backward:
        half a block of C / (s h) the size. Left out: the second gather that a stack has which
        keeps only shards of its inputs. Source: Megatron-LM core/tensor_parallel/layers.py
        (ColumnParallelLinear of linear_kv).
        """
        return self.blocks(shape) + self.context_elements(shape) / (2.0 * seq_len * shape.hidden)

    def linear_weights(self, shape: ModelShape, tp: Ints) -> Floats:
        """Return the weights of its linear layers on one tensor-parallel rank."""
        return (self.linear_params or self.matrix_params)(shape, tp)


def host_s(problem: Problem, tp: Ints) -> Floats:
    """Return the least time in which the host gets one layer launched, both directions, seconds.

    The stack's time per layer, `host_share_without_tp` of it where there is no collective to
    launch and launching them counts; 2.2 times that with latent attention.
    """
    launches_frac = 1.0 + launches.LATENT_LAUNCHES if problem.shape.latent else 1.0
    return plain_host_s(problem, tp, launches_frac)


def plain_host_s(problem: Problem, tp: Ints, times: float = 1.0) -> Floats:
    """Return the same of a dense layer with ordinary attention, so many `times`, seconds."""
    stack = problem.stack
    alone = stack.host_share_without_tp if stack.launches_collectives else 1.0
    if problem.job.tuning:
        times = times * launches_frac(problem.shape, problem.job.tuning)
    return np.where(np.asarray(tp) > 1, 1.0, alone) * (stack.host_s_per_layer * times)


def waits_and_tax(
    stack: StackProfile, ahead: tuple[Exposure, Exposure], after: tuple[Exposure, Exposure]
) -> tuple[ForwardBackward, ForwardBackward]:
    """Return what a layer waits for tp and cp, and how the hidden rest slows its compute."""
    exposed = ForwardBackward(*(tp.exposed_s + cp.exposed_s for tp, cp in (ahead, after)))
    slowdown = stack.overlap_slowdown
    tax = ForwardBackward(*(slowdown * (tp.hidden_s + cp.hidden_s) for tp, cp in (ahead, after)))
    return exposed, tax


def paced_s(stack: StackProfile, launch_s: Floats, device_s: Floats) -> Floats:
    """Return how long kernels take that the host launches in `launch_s`, the device computes.

    Far ahead (`launches_ahead`): the larger of both. Otherwise sqrt( launch^2 + device^2 ): where
    a stack waits for the device now and then, as the synchronising timers of Megatron-LM and
    DeepSpeed do around every pass, small kernels after a wait follow their launches and large ones
    do not, so that neither hides the other whole.
    Source: the form is fitted over vTrain's small models on A100 (layers of 3 to 17 ms whose
    launches take 3), nanotron's host-bound runs follow the larger of both.

    >>> from costmodels.stacks import STACKS
    >>> both = STACKS["nanotron"], STACKS["megatron-deepspeed"]
    >>> [round(float(paced_s(stack, np.array(3.0), np.array(4.0))), 6) for stack in both]
    [4.0, 5.0]
    """
    if stack.launches_ahead:
        return np.maximum(launch_s, device_s)
    return np.hypot(launch_s, device_s)


def host_waits(
    stack: StackProfile,
    launch_s: Floats,
    device: ForwardBackward,
    synced_s: Floats | float = 0.0,
) -> ForwardBackward:
    """Return what the host adds to a layer beyond the time of the device.

    At least `synced_s`, which the device waits for however long it takes itself.
    """
    paced = paced_s(stack, launch_s, device.total_s)
    missing = np.maximum(synced_s, paced - device.total_s)
    return ForwardBackward(HOST_FORWARD_SHARE * missing, (1 - HOST_FORWARD_SHARE) * missing)
