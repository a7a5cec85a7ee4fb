"""From a measured run to a priced plan: what is known, what had to be assumed, what is skipped."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodels.breakdown import Breakdown, break_down
from costmodels.plans import Layout
from costmodels.precision import RECIPES
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from costmodels.stacks import StackProfile
from costmodels.stages import stage_layers
from hardware.catalogue import Catalogue, load_catalogue
from hardware.parts import Accelerator, Fabric
from planner.validation.defaults import Defaults, stack_of
from planner.validation.described import Entry, Skip, model_shape, pool_of
from planner.validation.points import Point

OUTSIDE_TENSORS = ("overhead", "fragmentation")
"""Memory terms that a count of allocated tensors leaves out."""
_UNFUSED = ("unfused", "eager", "math", "naive", "core")
_SCHEDULES = ("none", "1f1b", "interleaved", "gpipe")


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run in the terms of the cost model."""

    problem: Problem
    layout: Layout
    memory: str
    """What the source's memory figure counts: see `Defaults.memory`."""
    memory_rank: str
    assumptions: tuple[str, ...]


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

    @property
    def fits(self) -> bool:
        """The fullest device has room for the plan."""
        return self.peak_bytes <= self.capacity_bytes


def case_of(point: Point, models: Mapping[str, Entry], hardware: Mapping[str, Entry]) -> Case:
    """Return the run as a problem and a layout; `Skip` when it cannot be priced."""
    if point.model not in models:
        raise Skip("model not described")
    if point.hardware not in hardware:
        raise Skip("hardware not described")
    stack = stack_of(point.stack)
    defaults, said = stack.defaults, list(stack.assumptions)
    _refuse_run(point)
    flash = _flash(point, defaults, said)
    shape, more = model_shape(point.model, models[point.model], flash, defaults.dropout)
    said += more
    if defaults.dropout:
        said.append("dropout not stated: on")
    catalogue = load_catalogue()
    pool, more = pool_of(hardware[point.hardware], point.n_gpus, catalogue)
    said += more
    precision = _precision(point, defaults, pool.accelerator, said)
    layers, layout = _layout(point, defaults, shape.layers, said)
    said += _not_modelled(point)
    assert point.seq_len is not None  # _refuse_run has seen to it
    job = TrainingJob(point.seq_len, layout.gbs, precision)
    profile = _with_kernel(stack.profile, point.attention, catalogue)
    problem = Problem(replace(shape, layers=layers), job, pool, Fabric(), profile)
    memory, rank = _memory_kind(point, defaults)
    return Case(problem, layout, memory, rank, tuple(said))


def _refuse_run(point: Point) -> None:
    """Raise for what is not stated or not modelled, whatever the model and the hardware."""
    precision = point.precision.lower()
    nothing = point.step_s is None and point.peak_bytes is None and point.oom is None
    checks = (
        (point.lora, "lora"),
        (point.packed, "packed"),
        ("fp8" in precision and ("fp8", "adam") not in RECIPES, "fp8"),
        ((point.cp or 1) > 1, "context parallelism"),
        ((point.ep or 1) > 1, "mixture of experts"),
        (point.tp is None or point.pp is None, "no layout"),
        (point.gbs is None or point.seq_len is None, "no batch or sequence length"),
        (point.mbs is None, "no micro-batch"),
        (nothing and point.only_rate, "only a FLOP rate"),
        (nothing, "no step time"),
    )
    for found, reason in checks:
        if found:
            raise Skip(reason)


def _flash(point: Point, defaults: Defaults, said: list[str]) -> bool:
    if not point.attention:
        named = "a fused kernel" if defaults.flash_attention else "unfused"
        said.append(f"attention not stated: {named}")
        return defaults.flash_attention
    named = point.attention.lower()
    if named == "fused" and defaults.kind == "eager":
        said.append("attention 'fused' in an eager stack: a fused softmax that stores its scores")
        return False
    return named not in _UNFUSED


def _with_kernel(stack: StackProfile, attention: str, catalogue: Catalogue) -> StackProfile:
    """Return the profile with the row's attention kernel first, where the cell names one."""
    key = attention.lower()
    known = {k for a in catalogue.accelerators.values() for k in a.efficiency.attention_frac}
    if key not in known or key in _UNFUSED or stack.attention_kernels[:1] == (key,):
        return stack
    return replace(stack, attention_kernels=(key, *stack.attention_kernels))


def _precision(point: Point, defaults: Defaults, part: Accelerator, said: list[str]) -> str:
    """Return the key of the numeric recipe."""
    named = point.precision.lower()
    if not named:
        named = defaults.precision
        if named == "bf16" and "bf16" not in part.peak_flops_per_s:
            named = "fp16"
        said.append(f"precision not stated: {named}")
    key = (named, "adam")
    if key not in RECIPES or RECIPES[key].gemm_precision not in part.peak_flops_per_s:
        raise Skip("precision not modelled")
    return named


def _layout(point: Point, defaults: Defaults, layers: int, said: list[str]) -> tuple[int, Layout]:
    """Return the layers to price and the layout."""
    tp, pp, dp, n_micro = _degrees(point)
    vpp, schedule = _pipeline(point, pp, n_micro, said)
    layers, split = _split(layers, pp, vpp, said)
    held = stage_layers(layers, pp, vpp, split)
    kind, again = _recompute(point, defaults, max(held), said)
    sp = point.sp
    if sp is None:
        sp = defaults.sp
        if tp > 1:
            said.append(f"sp not stated: {'on' if sp else 'off'}")
    assert point.mbs is not None  # _degrees has seen to both
    assert point.gbs is not None
    return layers, Layout(
        n_devices=point.n_gpus,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        split=split,
        mbs=point.mbs,
        gbs=point.gbs,
        zero=_zero(point, defaults, dp, said),
        sp=bool(sp) and tp > 1,
        schedule=schedule,
        recompute=kind,
        recompute_layers=again,
        stage_layers=held,
    )


def _degrees(point: Point) -> tuple[int, int, int, int]:
    """Return tp, pp, dp and micro-batches; the cells must multiply to the devices."""
    tp, pp = point.tp or 1, point.pp or 1
    dp = point.dp or max(1, point.n_gpus // (tp * pp))
    if tp * pp * dp > point.n_gpus:
        raise Skip("more ranks than devices")
    if tp * pp * dp < point.n_gpus:
        raise Skip("fewer ranks than devices")
    assert point.gbs is not None  # _refuse_run has seen to both
    assert point.mbs is not None
    n_micro, rest = divmod(point.gbs, point.mbs * dp)
    if rest or n_micro < 1:
        raise Skip("batch does not divide")
    return tp, pp, dp, n_micro


def _pipeline(point: Point, pp: int, n_micro: int, said: list[str]) -> tuple[int, str]:
    """Return vpp and the schedule."""
    if pp == 1:
        return 1, "none"
    named = point.schedule.lower()
    if named not in ("", *_SCHEDULES):
        raise Skip("schedule not modelled")
    vpp = point.vpp or 1
    if not point.vpp:
        said.append("vpp not stated: 1")
    if named == "gpipe" and vpp == 1:
        return 1, "gpipe"
    if named in ("", "none"):
        said.append(f"schedule not stated: {'interleaved' if vpp > 1 else '1f1b'}")
    if vpp > 1 and n_micro % pp:
        raise Skip("interleaved with an uneven number of micro-batches")
    return vpp, "interleaved" if vpp > 1 else "1f1b"


def _split(layers: int, pp: int, vpp: int, said: list[str]) -> tuple[int, str]:
    """Return the layers to price and the split.

    Where neither split exists (a chunk would hold no layer) the layers are rounded up to equal
    chunks: the slowest stage and the pipeline stay right, the ends are a little too heavy.
    """
    for split in ("even", "ends"):
        if stage_layers(layers, pp, vpp, split):
            if split == "ends":
                said.append("layers do not divide over the stages: the ends hold fewer")
            return layers, split
    if pp * vpp > 2 * layers:
        raise Skip("more stages than layers")
    padded = -(-layers // (pp * vpp)) * pp * vpp
    said.append(f"layers do not divide over the stages: priced as {padded}")
    return padded, "even"


def _zero(point: Point, defaults: Defaults, dp: int, said: list[str]) -> int:
    zero = point.zero
    if zero is None:
        zero = defaults.zero
        if dp > 1:
            said.append(f"zero not stated: {zero}")
    if point.hsdp:
        group = re.search(r"x\s*(\d+)|over\s+(\d+)\s+rank", point.hsdp.lower())
        shard = int(group[1] or group[2]) if group else 0
        if shard == 1:
            return 0
        if shard != dp:
            raise Skip("hsdp")
    return zero


def _recompute(point: Point, defaults: Defaults, chunk: int, said: list[str]) -> tuple[str, int]:
    """Return the kind and the recomputed layers of each virtual stage, which holds `chunk`."""
    text = point.recompute.lower()
    if not text:
        text = defaults.recompute
        said.append(f"recompute not stated: {text}")
    if text == "none":
        return "none", 0
    if text.startswith("full"):
        return "full", chunk
    if text == "selective" or "core_attn" in text:
        return "selective", 0
    if re.match(r"selective\W+(per )?(op|layer|every)", text):
        said.append(f"recompute {point.recompute!r}: priced as full for half of the layers")
        return "full", -(-chunk // 2)
    raise Skip("recompute policy not modelled")


def _not_modelled(point: Point) -> list[str]:
    """Return facts of the row that the cost model has no term for, in words."""
    facts = (
        (point.norm_kernel == "unfused", "unfused norm kernel: the stack's own"),
        (point.compile, "torch.compile: the stack's own kernels"),
        (bool(point.overlap), f"overlap {point.overlap!r}: the stack's own"),
    )
    return [text for holds, text in facts if holds]


def _memory_kind(point: Point, defaults: Defaults) -> tuple[str, str]:
    """Return what the memory figure counts, from the row's notes or the stack's default."""
    notes = point.notes.lower()
    for words, kind in (
        (("nvidia-smi", "device memory"), "device"),
        (("max allocated", "max_memory_allocated"), "allocated"),
        (("reserved",), "reserved"),
    ):
        if any(word in notes for word in words):
            return kind, defaults.memory_rank
    return defaults.memory, defaults.memory_rank


def price(case: Case) -> tuple[Prediction, Breakdown]:
    """Return the prediction of a run and its breakdown."""
    found = break_down(case.problem, case.layout)
    outside = {"device": (), "reserved": OUTSIDE_TENSORS[:1], "allocated": OUTSIDE_TENSORS}

    def counted(stage: Mapping[str, float], kind: str) -> float:
        return sum(value for term, value in stage.items() if term not in outside[kind])

    of = found.stages[:1] if case.memory_rank == "first" else found.stages
    return Prediction(
        step_s=found.step_s,
        peak_bytes=found.peak_bytes,
        allocated_bytes=max(counted(stage, "allocated") for stage in found.stages),
        memory_bytes=max(counted(stage, case.memory) for stage in of),
        capacity_bytes=case.problem.pool.usable_bytes,
        time_s=found.time_s,
        assumptions=case.assumptions,
    ), found


def predict(
    point: Point, models: Mapping[str, Entry], hardware: Mapping[str, Entry]
) -> Prediction:
    """Return what the cost model says about a measured run; `Skip` when it says nothing."""
    return price(case_of(point, models, hardware))[0]
