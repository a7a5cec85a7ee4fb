"""Selective recomputation: what each module of a layer no longer keeps, and what it takes again.

Modules are those of Megatron-LM's `--recompute-modules` (`axes.RECOMPUTE_MODULES`). `core_attn`,
`mlp`, `moe` and `shared_experts` are ordinary checkpoints: their input stays, which is kept for
other reasons anyway (queries, keys and values; the input of a norm; the output of the norm before
routed experts), and all of their forward runs again, collectives included. `layernorm`, `moe_act`,
`mla_up_proj` and `gdn_norm_out` (`sublayers.delta_net`) discard their output once its reader has
run and compute it again before that reader's backward; nothing is kept in its place.

Arrays are `(n,)`, one entry for each way of splitting a layer, or `(n_modules, n)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.axes import RECOMPUTE_MODULES
from costmodels.comm.exposure import Exposure
from costmodels.comm.tensor_parallel import layer_exposures, tensor_parallel_group, tp_collective_s
from costmodels.layers import experts
from costmodels.layers.compute import (
    activation_forward_s,
    latent_rotary_forward_s,
    mlp_linear_times,
    norm_forward_s,
    up_projection_s,
)
from costmodels.offload.modules import ModuleCopies
from costmodels.problem import Problem
from costmodels.shapes import ModelShape
from costmodels.tuning.activations import Freed

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModuleTerms:
    """Recomputing each module of one layer and micro-batch; `(n_modules, n)` each.

    0 where the layer has no such module. Modules of a legal set share nothing: sets are sums.
    """

    forward_s: Floats
    """Its forward again, with what it waits for on the network."""
    tp: Exposure
    """The tensor-parallel collectives in it."""
    exchange_s: Floats
    """The exchange of tokens between experts in it."""
    attention_bytes: Floats
    """What attention no longer keeps."""
    mlp_bytes: Floats
    """What the MLP, or the experts, no longer keep."""


@dataclass(frozen=True, slots=True)
class RecomputedModule:
    """One module; arrays `(n,)`. Fields as in `ModuleTerms`."""

    forward_s: Floats
    attention_bytes: Floats
    mlp_bytes: Floats
    tp: Exposure
    exchange_s: Floats

    def __add__(self, other: "RecomputedModule") -> "RecomputedModule":
        """Return what a module is that stands in both sublayers: a norm before each."""
        return RecomputedModule(
            self.forward_s + other.forward_s,
            self.attention_bytes + other.attention_bytes,
            self.mlp_bytes + other.mlp_bytes,
            Exposure(self.tp.total_s + other.tp.total_s, self.tp.exposed_s + other.tp.exposed_s),
            self.exchange_s + other.exchange_s,
        )


Modules = dict[str, RecomputedModule]
"""Modules by name, of a sublayer or of a layer."""


@dataclass(frozen=True, slots=True)
class Core:
    """The attention core of a layer; arrays `(n,)`."""

    forward_s: Floats
    """With the exchange of keys and values that shows."""
    dropped_bytes: Floats
    """The scores and what a softmax keeps of them; 0 with a flash kernel."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The routed experts of a layer; arrays `(n,)`."""

    forward_s: Floats
    """Router, permutation, products, activation."""
    exchange_s: Floats
    """All-to-alls and collectives over etp, forward."""
    kept_bytes: Floats
    activation_s: Floats
    """The activation's forward."""
    activation_bytes: Floats
    """What it leaves for the second product."""


def routed_terms(
    problem: Problem,
    tokens: Floats,
    degrees: tuple[Ints, Ints, Ints, Ints],
    times: experts.ExpertTimes,
    kept_bytes: Floats,
) -> Routed:
    """Return what recomputing routed experts needs; `degrees` are tp, sp, ep, etp.

    The activation writes 2 f_e / t_e bytes a row, 2 more where the gate is an operator of its
    own, and moves 6 f_e / t_e (4 without gate) to do it, in one launch.
    """
    shape, stack, part = problem.shape, problem.stack, problem.pool.accelerator
    tp, sp, ep, etp = degrees
    n = experts.local_tokens(stack, tokens, tp, sp, ep)
    rows = experts.expert_rows(problem, n, sp, ep, etp)
    width = rows * shape.expert_ffn / np.asarray(etp, dtype=np.float64)
    per_byte = stack.elementwise_factor / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    moved = (6.0 if shape.gated else 4.0) * width
    eager = memory.EAGER_GATE_BYTES if shape.gated and not stack.fused_activation else 0.0
    wide = problem.job.recipe.activation_bytes / 2.0
    saved = memory.quantized_inputs(problem).saved_bytes
    second = 2.0 if experts.keeps_inputs(problem) else 0.0
    return Routed(
        forward_s=times.compute.forward_s,
        exchange_s=times.exchange.forward_s,
        kept_bytes=kept_bytes,
        activation_s=moved * per_byte + part.efficiency.kernel_latency_s,
        activation_bytes=(wide * (second + eager) - saved) * width,
    )


def module_terms(
    problem: Problem,
    tokens: Floats,
    tp: Ints,
    sp: Ints,
    core: Core,
    routed: Routed | None = None,
) -> ModuleTerms:
    """Return the modules of a dense layer, or of one with routed experts.

    bytes a token that are no longer kept, and what runs again (t_sp = t with SP, else 1):

      core_attn       the scores (`memory.layer_activation_bytes`), or the output where a stack
                      keeps products alone (`memory.context_output_bytes`); the core, its exchange
      layernorm       2 h / t_sp a norm that stands alone; 4 h / t_sp bytes of traffic each
      mla_up_proj     (4 a d_k + 2 a d_v) / t + 2 (r_q + r_kv) / t; r_q -> a d_k / t and
                      r_kv -> a (d_n + d_v) / t, norms of the latents, rotation, and with SP the
                      gather of r_q + r_kv + d_r (h without compressed queries) elements
      mlp             (6 gated, 4) f / t + 2 h / t_sp; norm, both products, activation, and the
                      collectives of its block
      shared_experts  (6, 4) f_s / t; both products, activation, collectives
      moe_act         2 f_e / t_e a row; the activation
      moe             all that routed and shared experts keep; all that they run, exchange included

    A norm stands alone where no product follows it at once: before latent attention and before
    routed experts. Transformer Engine joins the others with that product (LayerNormLinear), and
    `layernorm` leaves them alone; `mlp` has its norm in it.

    Source: Megatron-LM core 0.19.2 transformer/{transformer_config,transformer_layer}.py,
    multi_latent_attention.py, moe/{moe_layer,experts}.py, models/gpt/gpt_layer_specs.py. Checked
    against Korthikanti et al. 2022, section 5 (core_attn). Left out: the host's time to launch it,
    the slowdown beside hidden traffic. Of an input that is kept quantised the narrower copy is
    what goes (`memory.saved_input_bytes`), twice before the down projections of latent attention.
    """
    of_attention = attention_modules(problem, tokens, tp, sp, core)
    return stacked((of_attention, mlp_modules(problem, tokens, tp, sp, routed)), tokens)


def stacked(parts: Sequence[Modules], tokens: Floats) -> ModuleTerms:
    """Return the modules of a layer's sublayers as terms of the layer."""
    zeros = np.zeros_like(tokens)
    entries: Modules = {}
    for part in parts:
        for name, one in part.items():
            entries[name] = entries[name] + one if name in entries else one
    absent = RecomputedModule(zeros, zeros, zeros, Exposure(zeros, zeros), zeros)
    rows = [entries.get(name, absent) for name in RECOMPUTE_MODULES]
    return ModuleTerms(
        forward_s=np.array([x.forward_s for x in rows]),
        tp=Exposure(
            np.array([x.tp.total_s for x in rows]), np.array([x.tp.exposed_s for x in rows])
        ),
        exchange_s=np.array([x.exchange_s for x in rows]),
        attention_bytes=np.array([x.attention_bytes for x in rows]),
        mlp_bytes=np.array([x.mlp_bytes for x in rows]),
    )


def norm_bytes(problem: Problem, tokens: Floats, tp: Ints, sp: Ints) -> Floats:
    """Return what the output of one norm keeps, 2 h / t_sp bytes a token; 0 if it is not kept."""
    stack, element = problem.stack, problem.job.recipe.activation_bytes
    if stack.keeps == "products":
        return np.zeros_like(tokens)
    total = np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
    eager = memory.norm_bytes_besides(problem.shape, stack, element)
    return np.asarray(tokens * (element + eager) * problem.shape.hidden / total)


def freed_by(problem: Problem, shape: ModelShape, tp: Ints) -> Freed | None:
    """Return what frozen weights free of a layer (`memory.freed_by_tuning`); None without any."""
    tuning, width = problem.job.tuning, problem.job.recipe.activation_bytes
    return memory.freed_by_tuning(shape, problem.stack, tuning, tp, width) if tuning else None


def attention_modules(problem: Problem, tokens: Floats, tp: Ints, sp: Ints, core: Core) -> Modules:
    """Return the modules of attention (`module_terms`)."""
    shape, stack, part = problem.shape, problem.stack, problem.pool.accelerator
    zeros = np.zeros_like(tokens)
    nothing = Exposure(zeros, zeros)
    width = problem.job.recipe.activation_bytes
    dropped = core.dropped_bytes + memory.context_output_bytes(shape, stack, tokens, tp, width)
    entries = {"core_attn": RecomputedModule(core.forward_s, dropped, zeros, nothing, zeros)}
    if shape.latent:
        total = np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
        quantized = memory.quantized_inputs(problem)
        of_down = norm_bytes(problem, tokens, tp, sp) - tokens * shape.hidden / total * (
            memory.DOWN_PROJECTIONS * quantized.saved_bytes - 2.0 * quantized.share
        )
        if freed := freed_by(problem, shape, tp):
            of_down = of_down - tokens * freed.norm / total
        norm_s = norm_forward_s(shape, part, stack, tokens, tp, sp)
        entries["layernorm"] = RecomputedModule(norm_s, of_down, zeros, nothing, zeros)
        entries["mla_up_proj"] = _up_projection(problem, tokens, tp, sp)
    return entries


def mlp_modules(
    problem: Problem, tokens: Floats, tp: Ints, sp: Ints, routed: Routed | None = None
) -> Modules:
    """Return the modules of an MLP, or of routed experts (`module_terms`)."""
    shape = problem.shape.without_experts() if routed else problem.shape
    stack, part = problem.stack, problem.pool.accelerator
    zeros = np.zeros_like(tokens)
    nothing = Exposure(zeros, zeros)
    norm_s = norm_forward_s(shape, part, stack, tokens, tp, sp)
    of_norm, entries = norm_bytes(problem, tokens, tp, sp), {}
    freed = freed_by(problem, shape, tp)
    inner = _mlp(problem, shape, tokens, tp, sp) if shape.ffn else None
    if inner and not routed:
        total = np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
        saved = memory.quantized_inputs(problem).saved_bytes
        of_norm = of_norm - tokens * shape.hidden / total * saved
        if freed:
            of_norm = of_norm - tokens * freed.mlp_norm / total
        entries["mlp"] = RecomputedModule(
            norm_s + inner.forward_s, zeros, of_norm + inner.mlp_bytes, inner.tp, zeros
        )
    if routed:
        if freed:
            total = np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
            of_norm = of_norm - tokens * freed.mlp_norm / total
        entries["layernorm"] = RecomputedModule(norm_s, zeros, of_norm, nothing, zeros)
        if inner:
            entries["shared_experts"] = inner
        entries["moe_act"] = RecomputedModule(
            routed.activation_s, zeros, routed.activation_bytes, nothing, zeros
        )
        shared = inner or RecomputedModule(zeros, zeros, zeros, nothing, zeros)
        entries["moe"] = RecomputedModule(
            routed.forward_s + routed.exchange_s + shared.forward_s,
            zeros,
            routed.kept_bytes + shared.mlp_bytes,
            shared.tp,
            routed.exchange_s,
        )
    return entries


def without_away(terms: ModuleTerms, away: ModuleCopies) -> ModuleTerms:
    """Return modules that drop nothing of what offloaded ones have on the host already.

    Of `mla_up_proj` queries, keys and values with `core_attn`; of `layernorm` the norm before
    latent attention with `qkv_linear`.
    """
    if not (away.projected_bytes.any() or away.normed_bytes.any()):
        return terms
    dropped = terms.attention_bytes.copy()
    for name, gone in (("mla_up_proj", away.projected_bytes), ("layernorm", away.normed_bytes)):
        dropped[RECOMPUTE_MODULES.index(name)] -= gone
    return replace(terms, attention_bytes=dropped)


def _mlp(
    problem: Problem, shape: ModelShape, tokens: Floats, tp: Ints, sp: Ints
) -> RecomputedModule:
    """Return an MLP without its norm: two products, the activation, the collectives around."""
    job, stack, part = problem.job, problem.stack, problem.pool.accelerator
    t, zeros = np.asarray(tp, dtype=np.float64), np.zeros_like(tokens)
    products = mlp_linear_times(shape, job, part, stack, tokens, tp)
    waits, _ = layer_exposures(problem, tokens, tp, sp, products, blocks=1)
    forward = products.both.forward_s + activation_forward_s(shape, part, stack, tokens, tp)
    inner = memory.inner_bytes(shape, stack) * shape.ffn / t
    wide = job.recipe.activation_bytes
    inner = (
        inner + memory.activation_bytes_besides(shape, stack, wide) * (2.0 / wide) * shape.ffn / t
    )
    if not stack.sp_regather:
        gathered = 2.0 * shape.hidden * (t - 1.0) / t
        inner = inner + np.where(np.asarray(sp) > 0, gathered, 0.0)
    inner = job.recipe.activation_bytes / 2.0 * inner
    inner = inner - memory.quantized_inputs(problem).saved_bytes * shape.ffn / t
    if freed := freed_by(problem, shape, tp):
        inner = inner - freed.mlp
    return RecomputedModule(forward + waits.exposed_s, zeros, tokens * inner, waits, zeros)


def latent_bytes(problem: Problem, tokens: Floats) -> Floats:
    """Return what the up-projections of latent attention gather with sequence parallelism."""
    shape, width = problem.shape, problem.job.recipe.activation_bytes
    return width * tokens * ((shape.q_rank or shape.hidden) + shape.kv_rank + shape.qk_rope)


def _up_projection(problem: Problem, tokens: Floats, tp: Ints, sp: Ints) -> RecomputedModule:
    """Return the way from the latents to queries, keys and values."""
    shape, part = problem.shape, problem.pool.accelerator
    t, zeros = np.asarray(tp, dtype=np.float64), np.zeros_like(tokens)
    group = tensor_parallel_group(problem, tp)
    gather = tp_collective_s(problem, "all-gather", latent_bytes(problem, tokens), group)
    waits = np.where(np.asarray(sp) > 0, gather, 0.0)
    forward = up_projection_s(shape, problem.job, part, problem.stack, tokens, tp)
    forward = forward + latent_rotary_forward_s(shape, part, problem.stack, tokens, tp)
    width_bytes = (4.0 * shape.q_width + 2.0 * shape.v_width) / t
    width_bytes = width_bytes + memory.kv_product_bytes(shape, problem.stack) / t
    width_bytes = width_bytes + 2.0 * (shape.q_rank + shape.kv_rank) / t
    width_bytes = problem.job.recipe.activation_bytes / 2.0 * width_bytes
    saved = memory.quantized_inputs(problem).saved_bytes
    width_bytes = width_bytes - saved * (shape.q_rank + shape.kv_rank) / t
    if freed := freed_by(problem, shape, tp):
        width_bytes = width_bytes - freed.attention
    return RecomputedModule(
        forward + waits, tokens * width_bytes, zeros, Exposure(waits, waits), zeros
    )


@dataclass(frozen=True, slots=True)
class KeptByKind:
    """The modules of one kind of layer, and what a layer of it keeps that recomputes nothing."""

    modules: ModuleTerms
    kept_bytes: Floats


@dataclass(frozen=True, slots=True)
class SetTerms:
    """Terms of whole sets of modules, in the order of `codes`; `(n_sets, n)` each."""

    codes: Ints
    """The sets, ascending, the empty one first."""
    again_s: Floats
    """What a layer of the model's first kind runs again."""
    kept_bytes: Floats
    """What it keeps."""
    passing_bytes: Floats
    """What the layer that needs most had dropped, while it runs backward."""
    other_again_s: tuple[Floats, ...] = ()
    """What a layer of each other kind runs again beyond one of the first."""
    other_kept_bytes: tuple[Floats, ...] = ()
    """What it keeps beyond one of the first."""

    def index(self, codes: Ints, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return where each (set, layer) stands in the flattened arrays."""
        if len(self.codes) == 1:
            return positions
        place = np.zeros(int(self.codes[-1]) + 1, dtype=np.intp)
        place[self.codes] = np.arange(len(self.codes)) * self.again_s.shape[1]
        return np.asarray(place[codes] + positions)


def set_terms(codes: Ints, kinds: Sequence[KeptByKind], *, is_first_present: bool) -> SetTerms:
    """Return the terms of some sets, from those of the modules and of layers that keep all.

    A layer's backward goes through the MLP first and frees it: of what was dropped, the MLP's part
    and attention's exist one after the other, and the larger counts. `is_first_present`: the model
    has layers of the first kind.
    """
    codes = np.unique(np.append(codes, 0)).astype(np.int32)
    first, *others = (_of_sets(codes.tolist(), x.modules, x.kept_bytes) for x in kinds)
    recompute_s, stored, passing = first
    if not is_first_present:
        passing = others[0][2]
    for _, _, of_other in others:
        passing = np.maximum(passing, of_other)
    return SetTerms(
        codes,
        recompute_s,
        stored,
        passing,
        tuple(other_again - recompute_s for other_again, _, _ in others),
        tuple(other_kept - stored for _, other_kept, _ in others),
    )


def _of_sets(
    codes: Sequence[int], terms: ModuleTerms, kept_bytes: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return what runs again, what is kept, and what was dropped at once, of each set."""

    def total(each: Floats) -> Floats:
        # Module by module: the sum of a set does not depend on the others' terms or their order.
        # It is that of the set without its last module, which most others share, and that one.
        sums = {0: np.zeros(each.shape[1:])}

        def of_set(code: int) -> Floats:
            if code not in sums:
                last = code.bit_length() - 1
                sums[code] = of_set(code - (1 << last)) + each[last]
            return sums[code]

        return np.array([of_set(code) for code in codes])

    attention, mlp = total(terms.attention_bytes), total(terms.mlp_bytes)
    return total(terms.forward_s), kept_bytes - attention - mlp, np.maximum(attention, mlp)


@dataclass(frozen=True, slots=True)
class RunAgain:
    """What the recomputed modules of some layers take in one backward, seconds."""

    forward_s: float
    """All of it."""
    tp_s: float
    """Tensor-parallel collectives on the wire."""
    tp_exposed_s: float
    exchange_s: float
    """Exchange of tokens between experts."""


def run_again(
    names: Sequence[str], kinds: Sequence[tuple[ModuleTerms, float]], row: int = 0
) -> RunAgain:
    """Return what a set of modules takes in layers of some kinds: modules and number of each.

    Of the terms at `row`.
    """
    places = [RECOMPUTE_MODULES.index(name) for name in names]

    def total(values: Callable[[ModuleTerms], Floats]) -> float:
        first, *others = (
            n_layers * float(sum(values(terms)[i].item(row) for i in places))
            for terms, n_layers in kinds
        )
        return sum(others, first)

    return RunAgain(
        total(lambda x: x.forward_s),
        total(lambda x: x.tp.total_s),
        total(lambda x: x.tp.exposed_s),
        total(lambda x: x.exchange_s),
    )


def repeated_blocks(names: Sequence[str], shape: ModelShape) -> tuple[float, float]:
    """Return the blocks whose tensor-parallel collectives run again: of dense, of expert layers.

    A block is one gather and one reduction of a layer's width (attention, MLP, shared experts).
    """
    of_experts = bool(shape.shared_ffn) and ("moe" in names or "shared_experts" in names)
    return float("mlp" in names), float(of_experts)
