"""One step of one plan laid out in time: blocks, what they wait for, messages, memory.

Adds to `pipeline.timeline` what else a plan's price is made of: the communicators inside each
block, what follows the pipeline, and what each pipeline rank holds in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from costmodels.axes import SCHEDULES
from costmodels.breakdown import Breakdown, pipeline_run
from costmodels.comm.exposure import Exposure
from costmodels.comm.hidden_traffic import RankTraffic, hidden_traffic
from costmodels.layers.layer_kind import ExpertLayerTerms
from costmodels.layers.recompute import run_again
from costmodels.memory import in_flight_chunks
from costmodels.plans import ZERO_BUBBLE, Layout
from costmodels.schedule import pipeline
from costmodels.schedule.pipeline import TimedBlock, Timeline
from costmodels.schedule.stages import (
    LOOPED,
    interleaved_chunks,
    layer_prefix,
    other_kinds,
    passing_chunks,
)
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from costmodels.step import (
    Rows,
    data_parallel_exposed,
    offload_exposed,
    stage_times,
    straggler_factor,
)


@dataclass(frozen=True, slots=True)
class Wire:
    """What one communicator does during one block, seconds."""

    exposed_s: float
    hidden_s: float

    def __add__(self, other: "Wire") -> "Wire":
        return Wire(self.exposed_s + other.exposed_s, self.hidden_s + other.hidden_s)

    def __mul__(self, n: float) -> "Wire":
        return Wire(self.exposed_s * n, self.hidden_s * n)


NOTHING = Wire(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StageWires:
    """The communicators of one virtual stage, one micro-batch, by axis (`tp`, `cp`, `ep`)."""

    forward: Mapping[str, Wire]
    backward: Mapping[str, Wire]
    """With recomputation; where the backward is split, of the gradient of the input."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What a pipeline rank holds at which time, bytes."""

    always_bytes: float
    """States and overhead."""
    backward_bytes: float
    """What comes on top while a backward runs: logits and temporaries."""
    chunk_bytes: tuple[float, ...]
    """Activations of one micro-batch of each chunk from its forward to its backward; one figure
    where all chunks are alike."""
    late_bytes: float
    """The same from the gradient of its input to its weight gradient: nothing of it is dropped."""
    pp: int
    """Virtual stage j is chunk j // pp of a rank."""


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Everything about one step of one plan in time."""

    pipeline: Timeline
    layers: tuple[int, ...]
    """Layers of each virtual stage in model order."""
    wires: tuple[StageWires, ...]
    """By virtual stage as the blocks count them: those of DualPipe come twice."""
    memory: tuple[RankMemory, ...]
    """By pipeline rank."""
    data_parallel: tuple[RankTraffic, ...]
    """Gradients and weights on the wire by pipeline rank: what of it hides, and when."""
    after: tuple[tuple[str, str, float], ...]
    """What follows the pipeline, one after the other: name, thread (`compute`, `pp`, `dp`),
    seconds. All ranks wait for the one that takes longest."""

    @property
    def n_stages(self) -> int:
        """Virtual stages of the model; block stage j is stage j modulo this one."""
        return len(self.layers)


def step_timeline(plan: Breakdown) -> StepTimeline:
    """Return the step of a plan in time, from the full recurrence.

    Its end, the pipeline's plus all of `after`, is `plan.step_s`, but for a pipeline of many
    micro-batches that never becomes periodic, which `pipeline.flush_times_s` extrapolates.
    """
    rows, layout = plan.rows, plan.layout
    run = pipeline.timeline(pipeline_run(rows, layout))
    copies = 2 if layout.schedule == "dualpipe" else 1
    wires = stage_wires(rows, layout)
    return StepTimeline(
        pipeline=run,
        layers=layout.stage_layers,
        wires=wires * copies,
        memory=tuple(_rank_memory(plan, rank) for rank in range(layout.pp)),
        data_parallel=hidden_traffic(plan, run),
        after=_after(plan, run.end_s),
    )


def stage_wires(rows: Rows, layout: Layout) -> tuple[StageWires, ...]:
    """Return the exposed and hidden traffic of each virtual stage, seconds per micro-batch.

    The shares of `breakdown.virtual_stage_times` that are the terms tp, cp and ep.
    """
    layers, layout_of = rows.layers, layout.stage_layers
    tp_f, tp_b = _one(layers.tp_forward), _one(layers.tp_backward)
    cp_f, cp_b = _one(layers.cp_forward), _one(layers.cp_backward)
    shape, longest = rows.problem.shape, max(layout_of)
    kinds = list(zip(layers.others, other_kinds(shape.layer_sequence), strict=True))
    out = []
    for j, n_layers in enumerate(layout_of):
        full = min(n_layers, layout.recompute_layers)
        core = n_layers if "core_attn" in layout.recompute_modules else 0
        more_layers = shape.mtp_layers * (j == len(layout_of) - 1)
        core += more_layers if core else 0
        tp, tp_back = tp_f * n_layers, tp_b * n_layers + tp_f * full
        cp, cp_back = cp_f * n_layers, cp_b * n_layers + cp_f * (full + core)
        ep, ep_back = NOTHING, NOTHING
        of_kinds = [float(n_layers)]
        for kind, flags in kinds:
            prefix = layer_prefix(layout_of, (j,), flags, longest)
            count, n_recomputed = prefix[longest], prefix[min(longest, layout.recompute_layers)]
            of_kinds.append(count)
            of_kinds[0] -= count
            ahead = _one(kind.tp_forward) + tp_f * -1.0
            after = _one(kind.tp_backward) + tp_b * -1.0
            tp, tp_back = tp + ahead * count, tp_back + after * count + ahead * n_recomputed
            ahead = _one(kind.cp_forward) + cp_f * -1.0
            after = _one(kind.cp_backward) + cp_b * -1.0
            core_again = n_recomputed + (count if core else 0.0)
            cp, cp_back = cp + ahead * count, cp_back + after * count + ahead * core_again
            if isinstance(kind, ExpertLayerTerms):
                exchange_f = Wire(kind.exchange.forward_s.item(), 0.0)
                exchange_b = Wire(kind.exchange.backward_s.item(), 0.0)
                ep += exchange_f * count
                ep_back += exchange_b * count + exchange_f * n_recomputed
        of_kinds[shape.layer_sequence[-1]] += more_layers
        pairs = zip((x.modules for x in layers.of_kinds), of_kinds, strict=True)
        modules = run_again(layout.recompute_modules, list(pairs))
        tp_back += Wire(modules.tp_exposed_s, modules.tp_s - modules.tp_exposed_s)
        ep_back += Wire(modules.exchange_s, 0.0)
        if j == 0:
            tp += Wire(layers.embedding_tp.forward_s.item(), 0.0)
            tp_back += Wire(layers.embedding_tp.backward_s.item(), 0.0)
        if j == len(layout_of) - 1:
            tp += Wire(layers.head_tp.forward_s.item(), 0.0)
            tp_back += Wire(layers.head_tp.backward_s.item(), 0.0)
            cp += Wire(layers.head_cp.forward_s.item(), 0.0)
            cp_back += Wire(layers.head_cp.backward_s.item(), 0.0)
            ep += Wire(layers.head_ep.forward_s.item(), 0.0)
            ep_back += Wire(layers.head_ep.backward_s.item(), 0.0)
        out.append(
            StageWires(
                {"tp": tp, "cp": cp, "ep": ep}, {"tp": tp_back, "cp": cp_back, "ep": ep_back}
            )
        )
    return tuple(out)


def _one(exposure: Exposure) -> Wire:
    return Wire(exposure.exposed_s.item(), exposure.hidden_s.item())


def _after(plan: Breakdown, pipeline_s: float) -> tuple[tuple[str, str, float], ...]:
    """Return what follows the pipeline, in seconds, without what takes no time."""
    rows, layout = plan.rows, plan.layout
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    slowed = rows.problem.stack.overlap_slowdown * hidden
    kind = int((exposed + slowed)[:, 0].argmax())
    straggle = straggler_factor(rows.problem, layout.n_devices) - 1.0
    parts = (
        ("straggler", "compute", straggle * pipeline_s),
        ("tied embedding", "pp", rows.shapes.embedding_sync_s.item()),
        ("dp", "dp", exposed[kind, 0].item()),
        ("overlap", "compute", slowed[kind, 0].item()),
        ("optimizer", "compute", plan.time_s["optimizer"]),
        ("offload", "compute", offload_exposed(rows, stage_times(rows)).max().item()),
        ("fixed", "compute", plan.time_s["fixed"]),
    )
    return tuple(part for part in parts if part[2] > 0.0)


def _rank_memory(plan: Breakdown, rank: int) -> RankMemory:
    """Return the levels between which the memory of a rank moves."""
    rows, layout, terms = plan.rows, plan.layout, plan.stages[rank]
    code = SCHEDULES.index(layout.schedule)
    args = (code, rank, layout.pp, layout.vpp, layout.n_micro)
    deferred_bytes = terms["activations"] / in_flight_chunks(*args).item()
    chunks = unequal_chunk_bytes(rows, layout, rank) or (deferred_bytes,)
    if layout.schedule in ZERO_BUBBLE:
        chunk, deferred_bytes = _split_chunk_bytes(rows, layout, rank)
        chunks = (chunk,)
    # Lost to the allocator in proportion.
    total = 1.0 + rows.problem.stack.fragmentation_frac
    return RankMemory(
        always_bytes=terms["states"] + terms["overhead"],
        backward_bytes=terms["logits"] + terms["working"],
        chunk_bytes=tuple(total * chunk for chunk in chunks),
        late_bytes=total * deferred_bytes,
        pp=layout.pp,
    )


def unequal_chunk_bytes(rows: Rows, layout: Layout, rank: int) -> tuple[float, ...]:
    """Return the activations of a micro-batch in each chunk; empty where all chunks are alike.

    What the ends of the model keep is shared out evenly, as the memory model does.
    """
    counts, stages, shape = layout.stage_layers, layout.stages_of(rank), rows.problem.shape
    looped = layout.vpp > 1 and layout.placement == LOOPED
    if not (looped and interleaved_chunks(counts, stages, shape.layer_sequence)):
        return ()
    sets, depth = rows.sets, layout.recompute_layers
    layer_bytes = sets.kept_bytes.take(rows.set_index).item()
    more = [other.take(rows.set_index).item() for other in sets.other_kept_bytes]
    ends = rows.layers.embedding_bytes.item() * layout.has_embedding(rank)
    last = shape.layer_sequence[-1]
    module = layer_bytes + (more[last - 1] if last else 0.0)
    ends += shape.mtp_layers * layout.has_head(rank) * module
    sizes = []
    for j in stages:
        n_recomputed = min(counts[j], depth)
        size = (
            n_recomputed * rows.layers.checkpoint_bytes.item()
            + (counts[j] - n_recomputed) * layer_bytes
        )
        size += passing_chunks(counts, (j,)) * rows.layers.checkpoint_bytes.item()
        for flags, extra in zip(other_kinds(shape.layer_sequence), more, strict=True):
            prefix = layer_prefix(counts, (j,), flags, counts[j])
            size += (prefix[-1] - prefix[n_recomputed]) * extra
        sizes.append(size + ends / len(stages))
    return tuple(sizes)


def _split_chunk_bytes(rows: Rows, layout: Layout, rank: int) -> tuple[float, float]:
    """Return the activations of a mean chunk of a rank before and after its input's gradient."""
    layers, chunks = rows.layers, layout.chunks_of(rank)
    layer_bytes = rows.sets.kept_bytes.take(rows.set_index)
    scores = layers.modules.attention_bytes[0] * ("core_attn" in layout.recompute_modules)
    full = sum(min(count, layout.recompute_layers) for count in chunks)
    n_layers, one, deferred_bytes = (
        sum(chunks),
        layer_bytes.item(),
        (layers.kept_bytes - scores).item(),
    )
    ids = layers.embedding_bytes.item() * layout.has_embedding(rank)
    inputs = full + passing_chunks(layout.stage_layers, layout.stages_of(rank))
    before = inputs * layers.checkpoint_bytes.item() + (n_layers - full) * one
    return (before + ids) / len(chunks), (n_layers * deferred_bytes + ids) / len(chunks)


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """What a pipeline rank holds from one time on, besides what it always holds."""

    at_s: float
    """Seconds from the start of the step."""
    n_chunks: int
    """Chunks of micro-batches whose activations are kept."""
    kept_bytes: float
    """Their activations, with what the allocator loses to them."""
    backward_bytes: float
    """Logits and temporaries of a backward that runs; 0 while none does."""


def memory_course(memory: RankMemory, blocks: Sequence[TimedBlock]) -> list[MemoryLevel]:
    """Return the memory of a rank whenever it changes, in order of time.

    A forward takes the memory of its chunk as it starts, a backward frees it as it ends; where
    the backward is split, its weight gradient frees it as it starts, which is how the memory
    model counts (`zero_bubble.late_chunks`). With what is always held, the maximum is the rank's
    predicted peak.
    """
    before, n_deferred = [0] * len(memory.chunk_bytes), 0
    out = [MemoryLevel(0.0, 0, 0.0, 0.0)]

    def note(at_s: float, running: bool) -> None:
        stored = sum(map(mul, before, memory.chunk_bytes)) + n_deferred * memory.late_bytes
        if out[-1].at_s == at_s:
            out.pop()
        backward_bytes = memory.backward_bytes if running else 0.0
        out.append(MemoryLevel(at_s, sum(before) + n_deferred, stored, backward_bytes))

    for block in blocks:
        kinds = [kind for _, _, kind in block.parts]
        chunks = [stage // memory.pp % len(before) for stage, _, _ in block.parts]
        for chunk, kind in zip(chunks, kinds, strict=True):
            before[chunk] += kind == FORWARD
        n_deferred -= kinds.count(WEIGHT_GRAD)
        note(block.start_s, BACKWARD in kinds or INPUT_GRAD in kinds)
        for chunk, kind in zip(chunks, kinds, strict=True):
            before[chunk] -= kind in (BACKWARD, INPUT_GRAD)
        n_deferred += kinds.count(INPUT_GRAD)
        note(block.end_s, running=False)
    return out


def memory_levels(memory: RankMemory, blocks: Sequence[TimedBlock]) -> list[tuple[float, float]]:
    """Return (seconds, bytes) whenever the memory of a rank changes: all of `memory_course`."""
    return [
        (each.at_s, memory.always_bytes + each.kept_bytes + each.backward_bytes)
        for each in memory_course(memory, blocks)
    ]
