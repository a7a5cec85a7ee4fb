"""From a measured run to a priced plan: what is known, what had to be assumed, what is skipped."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodels import memory
from costmodels.axes import RECOMPUTE_MODULES, SCHEDULES, modules_code, modules_of
from costmodels.breakdown import Breakdown, break_down
from costmodels.plans import PLACEMENT_OF, Layout
from costmodels.precision import RECIPES
from costmodels.problem import Problem, run_by
from costmodels.schedule.stages import FOLDED, balanced_layers, end_weights, spelled, stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS, StackProfile, compiled
from hardware.catalogue import Catalogue, load_catalogue
from hardware.parts import Accelerator, Fabric
from planner.measure.validate.defaults import (
    CHUNKED_LOSS,
    UNFUSED_LOSS,
    WITHOUT_MASTER_COPY,
    Defaults,
    Stack,
    stack_of_cell,
)
from planner.measure.validate.described import (
    Entry,
    Skip,
    model_shape,
    pool_of,
    refuse_model,
    routed_as,
)
from planner.measure.validate.points import MeasuredPoint
from planner.measure.validate.switches import (
    adapters_of,
    in_used_domain,
    layout_switches,
    offloads,
    samples_of,
    stated_split,
    with_overlap,
    with_stated_widths,
)
from planner.solver.calibration.apply import calibrated_pool, calibrated_stack
from planner.solver.calibration.file import Calibration, load_calibration
from searches.rules import INSIDE_MOE, MOE, fills_dualpipe, modules_in, splits_cleanly

NO_MICRO_BATCH = "no micro-batch"
"""Reason why a run is no single case: it is a range (`price_run`)."""
LARGEST_MICRO_BATCH = 64
"""Sequences up to which micro-batches are looked at where a run states none."""
OUTSIDE_TENSORS = ("overhead", "fragmentation")
"""Memory terms that a count of allocated tensors leaves out."""
_UNFUSED = ("unfused", "eager", "math", "naive", "core")
_ATTENTION = (*_UNFUSED, "flash", "flash1", "flash-v1", "flash2", "flash3", "cudnn", "fused")
_FLASH_1 = ("aleph-alpha", "llm-foundry")
"""Stacks of the time of FlashAttention 1, in which `flash` alone means that version; elsewhere it
means the fused kernel that the stack has."""
_SCHEDULES = ("none", "1f1b", "interleaved", "gpipe")
_ZERO_BUBBLE = {
    "zb-h1": "zb-h1",
    "zb1p": "zb-h1",
    "zb-v": "zb-v",
    "zbv": "zb-v",
    "dualpipe": "dualpipe",
    "dualpipe-v": "dualpipe-v",
    "dualpipev": "dualpipe-v",
}
"""Names of schedules that split the backward, as sources write them."""


@dataclass(frozen=True, slots=True)
class PricedCase:
    """A measured run in the terms of the cost model."""

    problem: Problem
    layout: Layout
    memory: str
    """What the source's memory figure counts: see `Defaults.memory`."""
    memory_rank: str
    assumptions: tuple[str, ...]
    memory_layers: int | None = None
    """Fully recomputed layers of a virtual stage that keep as much as a policy of the run which
    has no layout of its own; None: those of `layout`."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says about a run. Seconds and bytes."""

    step_s: float
    peak_bytes: float
    """All of the fullest device, context included: what decides whether the run fits."""
    allocated_bytes: float
    """Tensors of the fullest device, without context and fragmentation."""
    memory_bytes: float
    """Counted as the source counts: its kind of figure, its rank."""
    capacity_bytes: float
    """Memory of the device."""
    time_s: Mapping[str, float]
    """Step time by term."""
    assumptions: tuple[str, ...]
    range_s: tuple[float, float] | None = None
    """Of a run that states no micro-batch: the shortest and the longest step over those that fit.
    `step_s` is the shortest."""

    @property
    def fits(self) -> bool:
        """The fullest device has room for the plan."""
        return self.peak_bytes <= self.capacity_bytes


def case_of(
    point: MeasuredPoint,
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None = None,
) -> PricedCase:
    """Return the run as a problem and a layout; `Skip` when it cannot be priced.

    Priced with `calibration`, the shipped one without it.
    """
    calibration = calibration or load_calibration()
    _refuse_names(point, models, hardware)
    stack = stack_of_cell(point.stack)
    defaults, message = stack.defaults, list(stack.assumptions)
    _refuse_run(point)
    flash = _flash(point, defaults, message)
    shape, more = model_shape(point.model, models[point.model], flash, defaults.dropout)
    message += more
    shape, more = routed_as(shape, point.moe_routing)
    message += more
    if defaults.dropout:
        message.append("dropout not stated: on")
    catalogue = load_catalogue()
    pool, more = pool_of(hardware[point.hardware], point.n_gpus, catalogue, point.power_w)
    message += more
    pool = in_used_domain(pool, point, message)
    precision = _precision(point, defaults, pool.accelerator, message)
    layers, layout = _layout(point, stack, shape, message)
    if point.offload and pool.host is None:
        message.append(
            f"host of {pool.accelerator.name} not known: what waits there costs no time"
        )
    if shape.layer_runs and layers != shape.layers:
        raise Skip("hybrid layers that do not share evenly")
    assert point.seq_len is not None  # _refuse_run has seen to it
    tuning = adapters_of(point, models[point.model], shape, message)
    if tuning is None and point.stack.lower() in WITHOUT_MASTER_COPY:
        raise Skip("weights without a master copy")
    data = samples_of(point, shape, message)
    plain = TrainingJob(point.seq_len, layout.gbs, precision, tuning=tuning, data=data)
    job = with_stated_widths(plain, point, message)
    profile = _with_facts(calibrated_stack(stack.profile, calibration), point, message)
    profile = _with_kernel(profile, point.attention, catalogue)
    pool = calibrated_pool(pool, calibration)
    problem = run_by(profile, replace(shape, layers=layers), job, pool, Fabric())
    counts, rank = _memory_kind(point, defaults)
    again = None
    if _PER_OP.match(point.recompute.lower() or defaults.recompute) and layout.recompute == "full":
        again = _layers_kept_alike(problem, layout, compiled=bool(point.compile))
        text = f"its memory as full for {again} of {max(layout.stage_layers)} layers"
        message.append(f"recompute {point.recompute!r}: {text}, which keep as much")
    return PricedCase(problem, layout, counts, rank, tuple(message), again)


def _refuse_names(
    point: MeasuredPoint, models: Mapping[str, Entry], hardware: Mapping[str, Entry]
) -> None:
    """Raise for a run whose model or hardware is not known, or whose model is not priced."""
    for name, entries, kind in (
        (point.model, models, "model"),
        (point.hardware, hardware, "hardware"),
    ):
        if not name:
            raise Skip(f"no {kind} named")
        if name not in entries:
            raise Skip(f"{kind} not described")
    refuse_model(point.model, models[point.model])


def _refuse_run(point: MeasuredPoint) -> None:
    """Raise for what is not stated or not modelled, whatever the model and the hardware."""
    nothing = point.step_s is None and point.peak_bytes is None and point.oom is None
    checks = (
        (not point.n_gpus, "no number of devices"),
        (point.tp is None or point.pp is None, "no layout"),
        (point.gbs is None or point.seq_len is None, "no batch or sequence length"),
        (nothing and point.only_rate, "only a FLOP rate"),
        (nothing, "no step time"),
        (point.mbs is None, NO_MICRO_BATCH),
    )
    for is_refused, reason in checks:
        if is_refused:
            raise Skip(reason)


def _flash(point: MeasuredPoint, defaults: Defaults, assumptions: list[str]) -> bool:
    if not point.attention:
        named = "a fused kernel" if defaults.flash_attention else "unfused"
        assumptions.append(f"attention not stated: {named}")
        return defaults.flash_attention
    named = point.attention.lower()
    if named not in _ATTENTION:
        assumptions.append(f"attention {point.attention!r}: the stack's own fused kernel")
    if named == "fused" and defaults.kind == "eager":
        assumptions.append(
            "attention 'fused' in an eager stack: a fused softmax that stores its scores"
        )
        return False
    return named not in _UNFUSED


def _with_kernel(stack: StackProfile, attention: str, catalogue: Catalogue) -> StackProfile:
    """Return the profile with the row's attention kernel first, where the cell names one."""
    key = attention.lower()
    if key == "flash-v1" or (key == "flash" and stack.name in _FLASH_1):
        key = "flash1"
    kernels = {k for a in catalogue.accelerators.values() for k in a.efficiency.attention_frac}
    if key not in kernels or key in _UNFUSED or stack.attention_kernels[:1] == (key,):
        return stack
    return replace(stack, attention_kernels=(key, *stack.attention_kernels))


def _precision(
    point: MeasuredPoint, defaults: Defaults, part: Accelerator, assumptions: list[str]
) -> str:
    """Return the key of the numeric recipe."""
    named = point.precision.lower()
    if not named:
        named = defaults.precision
        if named == "bf16" and "bf16" not in part.peak_flops_per_s:
            named = "fp16"
        assumptions.append(f"precision not stated: {named}")
    if named in ("bf16", "fp16"):
        printed, named = named, {"bf16": defaults.bf16, "fp16": defaults.fp16}[named]
        if named != printed:
            assumptions.append(f"gradients not stated: {RECIPES[named, 'adam'].name}")
    if named.startswith("nvfp4"):
        if named != "nvfp4":
            assumptions.append(f"precision {point.precision!r}: nvfp4 in all layers")
        named = "nvfp4"
    if named in ("fp8", "mxfp8"):
        named = _fp8_recipe(point, defaults, assumptions)
    key = (named, "adam")
    if key not in RECIPES or RECIPES[key].linear not in part.peak_flops_per_s:
        raise Skip("precision not modelled")
    return named


_FP8_RECIPES = {
    "delayed": "fp8-delayed",
    "tensorwise": "fp8-tensorwise",
    "rowwise": "fp8-rowwise",
    "current-scaling": "fp8-tensorwise",
    "current": "fp8-tensorwise",
    "mxfp8": "fp8-mxfp8",
    "blockwise": "fp8-blockwise",
    "sub-channel": "fp8-blockwise",
    "subchannel": "fp8-blockwise",
}


def _fp8_recipe(point: MeasuredPoint, defaults: Defaults, assumptions: list[str]) -> str:
    """Return the key of the numeric recipe of an fp8 run."""
    named = point.fp8_recipe.lower() or ("mxfp8" if "mx" in point.precision.lower() else "")
    if named in _FP8_RECIPES:
        return _FP8_RECIPES[named]
    what = f"fp8 scaling {point.fp8_recipe!r} not known" if named else "fp8 scaling not stated"
    assumptions.append(f"{what}: {defaults.fp8}")
    return f"fp8-{defaults.fp8}"


def _layout(
    point: MeasuredPoint, stack: Stack, shape: ModelShape, assumptions: list[str]
) -> tuple[int, Layout]:
    """Return the layers to price and the layout."""
    defaults = stack.defaults
    tp, pp, cp, dp, n_micro = _degrees(point)
    vpp, schedule = _pipeline(point, shape, pp, n_micro, assumptions)
    counts = stated_split(point, shape.layers, pp, vpp, assumptions)
    layers, split = shape.layers, spelled(counts)
    if not counts:
        layers, split = _split(shape, stack.profile.balancer, pp, vpp, assumptions)
        counts = stage_layers(layers, pp, vpp, split)
    kind, recompute_layers, modules = _recompute(point, defaults, shape, max(counts), assumptions)
    sp = point.sp
    if sp is None:
        sp = defaults.sp
        if tp > 1:
            assumptions.append(f"sp not stated: {'on' if sp else 'off'}")
    assert point.mbs is not None  # _degrees has seen to both
    assert point.gbs is not None
    zero, shard = _zero(point, defaults, dp * cp, assumptions)
    ep, etp = _expert_degrees(point, shape, point.n_gpus // pp, assumptions)
    exchange = _cp_comm(point, defaults, cp, shape.heads, shape.kv_heads, assumptions)
    degrees: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "cp_comm": exchange}
    degrees |= {"ep": ep, "etp": etp, "vpp": vpp} | offloads(point)
    return layers, Layout(
        **degrees,
        n_devices=point.n_gpus,
        split=split,
        mbs=point.mbs,
        gbs=point.gbs,
        zero=zero,
        sp=bool(sp) and tp > 1,
        schedule=schedule,
        recompute=kind,
        recompute_layers=recompute_layers,
        recompute_modules=modules,
        stage_layers=counts,
        shard=shard,
        switches=layout_switches(point, shape, assumptions),
    )


def _expert_degrees(
    point: MeasuredPoint, shape: ModelShape, n_stage_ranks: int, assumptions: list[str]
) -> tuple[int, int]:
    """Return ep and etp; experts must fold into the ranks of a pipeline stage."""
    ep, etp = point.ep or 1, point.etp or 1
    if not shape.n_experts:
        if ep > 1:
            raise Skip("expert parallelism of a dense model")
        return 1, 1

    def folds(etp: int) -> bool:
        return not (shape.n_experts % ep or shape.expert_ffn % etp or n_stage_ranks % (ep * etp))

    if point.etp is None and (point.tp or 1) > 1:
        etp = point.tp or 1
        why = "as tp"
        if not folds(etp):
            etp, why = 1, f"experts do not fold with {etp}, as tp"
        assumptions.append(f"etp not stated: {etp} ({why})")
    if not folds(etp):
        raise Skip("experts do not fold into the ranks")
    return ep, etp


def _cp_comm(
    point: MeasuredPoint,
    defaults: Defaults,
    cp: int,
    heads: int,
    kv_heads: int,
    assumptions: list[str],
) -> str:
    """Return how the context-parallel ranks exchange keys and values."""
    if cp == 1:
        return ""
    assert point.seq_len is not None  # _refuse_run has seen to it
    text = f"{point.overlap} {point.notes}".lower()
    named = [kind for kind, names in _CP_COMMS.items() if any(word in text for word in names)]
    if not named:
        assumptions.append(f"cp exchange not stated: {defaults.cp_comm}")
    kind, tp = (named or [defaults.cp_comm])[0], point.tp or 1
    if point.seq_len % (2 * cp):
        raise Skip("sequence does not divide by 2 cp")
    if kind == "a2a" and (heads % (tp * cp) or kv_heads % (tp * cp)):
        raise Skip("heads do not divide by cp")
    return kind


_CP_COMMS = {
    "a2a": ("cp by all-to-all", "cp by a2a", "ulysses"),
    "all-gather": ("cp by all-gather", "cp by allgather", "cp all-gather"),
    "p2p": ("cp by p2p", "cp by ring", "ring attention"),
}
"""Words of a row's overlap or notes by kind of exchange."""


def _degrees(point: MeasuredPoint) -> tuple[int, int, int, int, int]:
    """Return tp, pp, cp, dp and micro-batches; the cells must multiply to the devices."""
    tp, pp, cp = point.tp or 1, point.pp or 1, point.cp or 1
    dp = point.dp or max(1, point.n_gpus // (tp * pp * cp))
    if tp * pp * cp * dp > point.n_gpus:
        raise Skip("more ranks than devices")
    if tp * pp * cp * dp < point.n_gpus:
        raise Skip("fewer ranks than devices")
    assert point.gbs is not None  # _refuse_run has seen to both
    assert point.mbs is not None
    n_micro, rest = divmod(point.gbs, point.mbs * dp)
    if rest or n_micro < 1:
        raise Skip("batch does not divide")
    return tp, pp, cp, dp, n_micro


def _pipeline(
    point: MeasuredPoint, shape: ModelShape, pp: int, n_micro: int, assumptions: list[str]
) -> tuple[int, str]:
    """Return vpp and the schedule."""
    if pp == 1:
        return 1, "none"
    named = point.schedule.lower()
    if named in _ZERO_BUBBLE:
        if not splits_cleanly(shape):
            raise Skip("zero-bubble schedule of experts not modelled")
        return _split_backward(point, _ZERO_BUBBLE[named], pp, n_micro)
    if named not in ("", *_SCHEDULES):
        raise Skip("schedule not modelled")
    vpp = point.vpp or 1
    if not point.vpp:
        assumptions.append("vpp not stated: 1")
    if named == "gpipe" and vpp == 1:
        return 1, "gpipe"
    if named in ("", "none"):
        assumptions.append(f"schedule not stated: {'interleaved' if vpp > 1 else '1f1b'}")
    if vpp > 1 and n_micro % pp:
        raise Skip("interleaved with an uneven number of micro-batches")
    return vpp, "interleaved" if vpp > 1 else "1f1b"


def _split_backward(point: MeasuredPoint, schedule: str, pp: int, n_micro: int) -> tuple[int, str]:
    """Return vpp and a schedule that splits the backward, which settles vpp."""
    vpp = 2 if PLACEMENT_OF.get(schedule) == FOLDED else 1
    if (point.vpp or vpp) != vpp:
        raise Skip("schedule with another vpp")
    row = (SCHEDULES.index(schedule), pp, n_micro)
    if not fills_dualpipe(*(np.array([x], dtype=np.int32) for x in row)).all():
        raise Skip("too few or odd micro-batches for dualpipe")
    return vpp, schedule


def _split(
    shape: ModelShape, balancer: str, pp: int, vpp: int, assumptions: list[str]
) -> tuple[int, str]:
    """Return the layers to price and the split.

    A stack with a balancer of its own splits as that says. Where no split exists (a chunk within
    the pipeline would hold no layer) the layers are rounded up to equal chunks: the slowest stage
    and the pipeline stay right, the ends are a little too heavy.
    """
    layers = shape.layers
    if pp > 1 and vpp == 1 and balancer != "even":
        first, last = end_weights(shape, balancer)
        counts = balanced_layers(layers, pp, first, last, balancer)
        if len(set(counts)) > 1:
            assumptions.append(
                f"stages not stated: {spelled(counts)} (the stack balances by {balancer})"
            )
            return layers, spelled(counts)
    for split in ("even", "ends"):
        if stage_layers(layers, pp, vpp, split):
            if split == "ends":
                assumptions.append("layers do not divide over the stages: the ends hold fewer")
            return layers, split
    if pp * vpp > 2 * layers:
        raise Skip("more stages than layers")
    padded = -(-layers // (pp * vpp)) * pp * vpp
    assumptions.append(f"layers do not divide over the stages: priced as {padded}")
    return padded, "even"


def _zero(
    point: MeasuredPoint, defaults: Defaults, ranks: int, assumptions: list[str]
) -> tuple[int, int]:
    """Return the ZeRO stage and the ranks of one ZeRO group (0: all `ranks`, dp cp)."""
    zero = point.zero
    if zero is None:
        zero = defaults.zero
        if ranks > 1:
            assumptions.append(f"zero not stated: {zero}")
    if point.hsdp:
        group = re.search(r"x\s*(\d+)|over\s+(\d+)\s+rank", point.hsdp.lower())
        shard = int(group[1] or group[2]) if group else 0
        if shard == 1:
            return 0, 0
        if shard < 1 or ranks % shard:
            raise Skip("hsdp group does not divide dp")
        return zero, shard if shard < ranks else 0
    return zero, 0


def _recompute(
    point: MeasuredPoint, defaults: Defaults, shape: ModelShape, chunk: int, assumptions: list[str]
) -> tuple[str, int, tuple[str, ...]]:
    """Return kind, recomputed layers of each virtual stage, which holds `chunk`, and modules."""
    text = point.recompute.lower()
    if not text:
        text = defaults.recompute
        assumptions.append(f"recompute not stated: {text}")
    if text == "none":
        return "none", 0, ()
    if text.startswith("full"):
        block = re.search(r"\bblock\W+(\d+)", text)
        return "full", min(chunk, int(block[1])) if block else chunk, ()
    if text == "selective":
        return "selective", 0, ()
    named = set(re.findall(r"\w+", text)[1:])
    if text.startswith("selective:") and named <= set(RECOMPUTE_MODULES):
        return _modules(named, shape)
    if text.startswith("saves "):
        return _with_saved(frozenset(re.findall(r"\w+", text)[1:]), shape, chunk, assumptions)
    if re.match(r"selective\W+(per )?(op|layer|every)", text):
        assumptions.append(f"recompute {point.recompute!r}: priced as full for half of the layers")
        return "full", -(-chunk // 2), ()
    raise Skip("recompute policy not modelled")


_PER_OP = re.compile(r"selective\W+(per )?op\b")
"""torchtitan's policy that keeps the output of every second product and of attention."""


def _layers_kept_alike(problem: Problem, layout: Layout, *, compiled: bool) -> int:
    """Return the layers of a virtual stage that, recomputed in full, leave as much as per-op.

    Per token it keeps the layer's input (2 h over t with SP), attention's output and log-sum-exp,
    and of seven products in order (q, k, v, out, gate, up, down) every other one: 2 a d + 2 k d +
    2 f over t, and 2 h of the last, which no backward reads: a compiler drops it. Not for experts
    and latent attention: half of the layers, as for the time.
    Source: torchtitan distributed/activation_checkpoint.py (_op_sac_save_list, mm_count).
    """
    shape, tp = problem.shape, np.array([layout.tp], dtype=np.int32)
    if shape.n_experts or shape.latent or not shape.gated:
        return layout.recompute_layers
    sp, ones = np.array([int(layout.sp)]), np.ones(1)
    tokens = layout.mbs * problem.job.seq_len / layout.cp
    batch = memory.MicroBatch(tokens, problem.job.seq_len, problem.job.recipe.activation_bytes)
    all_bytes = memory.layer_activation_bytes(shape, problem.stack, batch, tp, sp, ones).item()
    least = memory.checkpoint_bytes(shape, tokens, tp, sp, batch.element_bytes).item()
    kv = shape.kv_heads * shape.head_dim
    split = 2.0 * shape.q_width + 2.0 * kv + 2.0 * shape.ffn
    split = (batch.element_bytes / 2.0) * (split + 2.0 * shape.q_width) + 4.0 * shape.heads
    stored_bytes = least * (1 if compiled else 2) + tokens * split / layout.tp
    chunk = max(layout.stage_layers)
    return min(chunk, max(0, round(chunk * (all_bytes - stored_bytes) / (all_bytes - least))))


_SAVED = ("qkv", "out", "up", "down", "dots")
"""Matrix products of a layer whose outputs a compiler's policy may keep; `dots`: all of them."""


def _with_saved(
    saved: frozenset[str], shape: ModelShape, chunk: int, assumptions: list[str]
) -> tuple[str, int, tuple[str, ...]]:
    """Return what comes nearest to keeping the outputs of some products and nothing else.

    Products that are not kept run again, but for the last, whose output no backward needs: a
    compiler leaves it out. They are priced as that share of the layers recomputed in full, so
    with that share of the attention core and the memory-bound operators, which all run again;
    with every product kept the core alone.
    """
    if not saved or not saved <= set(_SAVED) or shape.n_experts or shape.latent:
        raise Skip("recompute policy not modelled")
    h, q, kv = shape.hidden, shape.q_width, shape.kv_heads * shape.head_dim
    width = h * shape.ffn
    flops = {"qkv": h * (q + 2 * kv), "out": q * h, "up": width * (2 if shape.gated else 1)}
    recompute_flops = (
        0 if "dots" in saved else sum(n for name, n in flops.items() if name not in saved)
    )
    layers = round(chunk * recompute_flops / (sum(flops.values()) + width))
    outputs = "all products" if "dots" in saved else " and ".join(x for x in _SAVED if x in saved)
    text = f"full for {layers} of {chunk} layers" if layers else "the attention core again"
    assumptions.append(f"recompute keeps {outputs} alone: priced as {text}")
    return ("full", layers, ()) if layers else ("selective", 0, ())


def _modules(named: set[str], shape: ModelShape) -> tuple[str, int, tuple[str, ...]]:
    """Return the kind, no layers, and the modules that change something in this model.

    A run may name parts of a layer of experts that is recomputed as a whole.
    """
    code = modules_code(named) & modules_in(shape)
    code &= ~INSIDE_MOE if code & MOE else code
    return "selective" if code else "none", 0, modules_of(code)


def _with_facts(stack: StackProfile, point: MeasuredPoint, assumptions: list[str]) -> StackProfile:
    """Return the profile with what the row says about norm kernel, compiler and overlap."""
    if point.norm_kernel in ("fused", "unfused"):
        stack = replace(stack, fused_norms=point.norm_kernel == "fused")
    if point.attention.lower() in ("unfused", "eager", "naive"):
        stack = replace(stack, fused_softmax=False)
    if point.stack.lower() in UNFUSED_LOSS and not _FUSED_LOSS.search(point.notes.lower()):
        logit_bytes = STACKS["megatron-lm-2021"].logit_bytes
        stack = replace(stack, fused_loss=False, logit_bytes=logit_bytes)
    n_chunks = CHUNKED_LOSS.get(point.stack.lower(), 0)
    if n_chunks and not _WHOLE_LOSS.search(point.notes.lower()):
        stack = replace(stack, logit_bytes=stack.logit_bytes / n_chunks)
        assumptions.append(f"loss not stated: in {n_chunks} chunks")
    if _IN_PLACE_LOSS.search(point.notes.lower()):
        stack = replace(stack, fused_loss=True, logit_bytes=2.0)
        assumptions.append("loss stated: Transformer Engine's")
    if point.compile:
        eager_loss = bool(_EAGER_LOSS.match(point.release.lower()))
        stack = compiled(replace(stack, compiles_loss=stack.compiles_loss and not eager_loss))
    return with_overlap(stack, point, assumptions)


_FUSED_LOSS = re.compile(r"fused cross entropy|cumulative step")
"""Words of runs that fuse the loss: the first of several steps that add up, and all after it."""
_WHOLE_LOSS = re.compile(r"cumulative: \+ (packed dataset|compile)$")
"""Words of runs whose loss is not yet in chunks: the first of several steps that add up."""
_IN_PLACE_LOSS = re.compile(r"cross_entropy_fusion_impl=te\b")
"""Words of runs with Transformer Engine's loss, whose gradient takes the place of the logits."""
_EAGER_LOSS = re.compile(r"torchtitan (9dec370|820504e)|torchao 0\.([0-9]|10)\b")
"""Releases whose runs compile the model alone: before torchtitan's bbb1b616 of 2 April 2025."""


def _memory_kind(point: MeasuredPoint, defaults: Defaults) -> tuple[str, str]:
    """Return what the memory figure counts, from the row's words or the stack's default."""
    notes = f"{point.mem_unit} {point.notes}".lower()
    for phrases, kind in (
        (("nvidia-smi", "device memory", "device usage"), "device"),
        (("max allocated", "max_memory_allocated"), "allocated"),
        (("reserved",), "reserved"),
    ):
        if any(word in notes for word in phrases):
            return kind, defaults.memory_rank
    return defaults.memory, defaults.memory_rank


def price(case: PricedCase) -> tuple[Prediction, Breakdown]:
    """Return the prediction of a run and its breakdown."""
    breakdown = break_down(case.problem, case.layout)
    outside = {"device": (), "reserved": OUTSIDE_TENSORS[:1], "allocated": OUTSIDE_TENSORS}

    def counted(stage: Mapping[str, float], kind: str) -> float:
        return sum(value for term, value in stage.items() if term not in outside[kind])

    memory = breakdown
    if case.memory_layers is not None:
        layout = replace(case.layout, recompute_layers=case.memory_layers)
        memory = break_down(case.problem, layout)
    stages = memory.stages[:1] if case.memory_rank == "first" else memory.stages
    return Prediction(
        step_s=breakdown.step_s,
        peak_bytes=memory.peak_bytes,
        allocated_bytes=max(counted(stage, "allocated") for stage in memory.stages),
        memory_bytes=max(counted(stage, case.memory) for stage in stages),
        capacity_bytes=case.problem.pool.usable_bytes,
        time_s=breakdown.time_s,
        assumptions=case.assumptions,
    ), breakdown


def price_run(
    point: MeasuredPoint,
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None = None,
) -> tuple[PricedCase, Prediction]:
    """Return a run as it is priced, with its prediction; `Skip` when it cannot be.

    Without a micro-batch all powers of two are priced that divide the share of a data-parallel
    rank. Of those that fit by their prediction the fastest counts, as people run it: what was
    measured has no say in that. Where none fits, the one with the least memory.
    """
    try:
        case = case_of(point, models, hardware, calibration)
    except Skip as reason:
        if str(reason) != NO_MICRO_BATCH:
            raise
        return _best_of_range(
            [
                (case, price(case)[0])
                for case in _over_micro_batches(point, models, hardware, calibration)
            ]
        )
    return case, price(case)[0]


def _over_micro_batches(
    point: MeasuredPoint,
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None,
) -> list[PricedCase]:
    results, why = [], Skip("batch does not divide")
    mbs = 1
    while mbs <= LARGEST_MICRO_BATCH:
        try:
            results.append(case_of(replace(point, mbs=mbs), models, hardware, calibration))
        except Skip as reason:
            why = reason
        mbs *= 2
    if not results:
        raise why
    return results


def _best_of_range(
    priced: Sequence[tuple[PricedCase, Prediction]],
) -> tuple[PricedCase, Prediction]:
    fitting = [one for one in priced if one[1].fits]
    if not fitting:
        fitting = [min(priced, key=lambda one: one[1].peak_bytes)]
    steps = [result.step_s for _, result in fitting]
    case, result = min(fitting, key=lambda one: one[1].step_s)
    sizes = [case.layout.mbs for case, _ in fitting]
    text = f"mbs not stated: {case.layout.mbs}, the fastest of {min(sizes)} to {max(sizes)}"
    if not result.fits:
        text = f"mbs not stated: {case.layout.mbs}, none fits by its prediction"
    case = replace(case, assumptions=(*case.assumptions, text))
    return case, replace(result, assumptions=case.assumptions, range_s=(min(steps), max(steps)))


def predict(
    point: MeasuredPoint,
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None = None,
) -> Prediction:
    """Return what the cost model says about a measured run; `Skip` when it says nothing."""
    return price_run(point, models, hardware, calibration)[1]
