"""One step of one plan laid out in time: blocks, what they wait for, messages, memory.

Adds to `pipeline.timeline` what else a plan's price is made of: the communicators inside each
block, what follows the pipeline, and what each pipeline rank holds in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.axes import SCHEDULES
from costmodels.breakdown import Breakdown, virtual_stage_times, virtual_weight_grad_times
from costmodels.comm.exposure import Exposure
from costmodels.comm.hidden_traffic import RankTraffic, hidden_traffic
from costmodels.layers.recompute import run_again
from costmodels.memory import in_flight_chunks
from costmodels.plans import ZERO_BUBBLE, Layout
from costmodels.schedule import pipeline
from costmodels.schedule.pipeline import TimedBlock, Timeline
from costmodels.schedule.stages import expert_prefix
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from costmodels.step import (
    Rows,
    boundary_hops_s,
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
    chunk_bytes: float
    """Activations of one chunk and micro-batch from its forward to its backward."""
    late_bytes: float
    """The same from the gradient of its input to its weight gradient: nothing of it is dropped."""


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


def step_timeline(found: Breakdown) -> StepTimeline:
    """Return the step of a plan in time, from the full recurrence.

    Its end, the pipeline's plus all of `after`, is `found.step_s`, but for a pipeline of many
    micro-batches that never becomes periodic, which `pipeline.flush_s` extrapolates.
    """
    rows, layout = found.rows, found.layout
    forward, backward = virtual_stage_times(rows, layout)
    args = (layout.schedule, layout.pp, layout.vpp, layout.n_micro, forward, backward)
    hops = boundary_hops_s(rows, layout)
    run = pipeline.timeline(*args, hops, virtual_weight_grad_times(rows, layout))
    copies = 2 if layout.schedule == "dualpipe" else 1
    wires = stage_wires(rows, layout)
    return StepTimeline(
        pipeline=run,
        layers=layout.stage_layers,
        wires=wires * copies,
        memory=tuple(_rank_memory(found, rank) for rank in range(layout.pp)),
        data_parallel=hidden_traffic(found, run),
        after=_after(found, run.end_s),
    )


def stage_wires(rows: Rows, layout: Layout) -> tuple[StageWires, ...]:
    """Return the exposed and hidden traffic of each virtual stage, seconds per micro-batch.

    The shares of `breakdown.virtual_stage_times` that are the terms tp, cp and ep.
    """
    layers, layout_of = rows.layers, layout.stage_layers
    tp_f, tp_b = _one(layers.tp_forward), _one(layers.tp_backward)
    cp_f, cp_b = _one(layers.cp_forward), _one(layers.cp_backward)
    more = layers.experts
    out = []
    for j, held in enumerate(layout_of):
        full = min(held, layout.recompute_layers)
        core = held if "core_attn" in layout.recompute_modules else 0
        more_layers = rows.problem.shape.mtp_layers * (j == len(layout_of) - 1)
        core += more_layers if core else 0
        n_routed = 0.0
        tp, tp_back = tp_f * held, tp_b * held + tp_f * full
        ep, ep_back = NOTHING, NOTHING
        if more:
            routing, longest = rows.problem.shape.expert_layers, max(layout_of)
            prefix = expert_prefix(layout_of, (j,), routing, longest)
            n_routed = prefix[longest] + more_layers * routing[-1]
            routed, recomputed = prefix[longest], prefix[min(longest, layout.recompute_layers)]
            ahead = _one(more.tp_forward) + tp_f * -1.0
            after = _one(more.tp_backward) + tp_b * -1.0
            tp, tp_back = tp + ahead * routed, tp_back + after * routed + ahead * recomputed
            exchange_f = Wire(more.exchange.forward_s.item(), 0.0)
            exchange_b = Wire(more.exchange.backward_s.item(), 0.0)
            ep, ep_back = exchange_f * routed, exchange_b * routed + exchange_f * recomputed
        modules = run_again(
            layout.recompute_modules,
            layers.modules,
            more.modules if more else None,
            held + more_layers,
            n_routed,
        )
        tp_back += Wire(modules.tp_exposed_s, modules.tp_s - modules.tp_exposed_s)
        ep_back += Wire(modules.exchange_s, 0.0)
        cp, cp_back = cp_f * held, cp_b * held + cp_f * (full + core)
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


def _after(found: Breakdown, pipeline_s: float) -> tuple[tuple[str, str, float], ...]:
    """Return what follows the pipeline, in seconds, without what takes no time."""
    rows, layout = found.rows, found.layout
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    slowed = rows.problem.stack.overlap_slowdown * hidden
    kind = int((exposed + slowed)[:, 0].argmax())
    late = straggler_factor(rows.problem, layout.n_devices) - 1.0
    parts = (
        ("straggler", "compute", late * pipeline_s),
        ("tied embedding", "pp", rows.shapes.embedding_sync_s.item()),
        ("dp", "dp", exposed[kind, 0].item()),
        ("overlap", "compute", slowed[kind, 0].item()),
        ("optimizer", "compute", found.time_s["optimizer"]),
        ("offload", "compute", offload_exposed(rows, stage_times(rows)).max().item()),
        ("fixed", "compute", found.time_s["fixed"]),
    )
    return tuple(part for part in parts if part[2] > 0.0)


def _rank_memory(found: Breakdown, rank: int) -> RankMemory:
    """Return the levels between which the memory of a rank moves."""
    rows, layout, terms = found.rows, found.layout, found.stages[rank]
    code = SCHEDULES.index(layout.schedule)
    args = (code, rank, layout.pp, layout.vpp, layout.n_micro)
    chunk = late = terms["activations"] / in_flight_chunks(*args).item()
    if layout.schedule in ZERO_BUBBLE:
        chunk, late = _split_chunk_bytes(rows, layout, rank)
    # Lost to the allocator in proportion.
    total = 1.0 + rows.problem.stack.fragmentation_frac
    return RankMemory(
        always_bytes=terms["states"] + terms["overhead"],
        backward_bytes=terms["logits"] + terms["working"],
        chunk_bytes=total * chunk,
        late_bytes=total * late,
    )


def _split_chunk_bytes(rows: Rows, layout: Layout, rank: int) -> tuple[float, float]:
    """Return the activations of a mean chunk of a rank before and after its input's gradient."""
    layers, chunks = rows.layers, layout.chunks_of(rank)
    kept = rows.sets.kept_bytes.take(rows.set_index)
    scores = layers.modules.attention_bytes[0] * ("core_attn" in layout.recompute_modules)
    full = sum(min(count, layout.recompute_layers) for count in chunks)
    held, one, late = sum(chunks), kept.item(), (layers.kept_bytes - scores).item()
    ids = layers.embedding_bytes.item() * layout.has_embedding(rank)
    before = full * layers.checkpoint_bytes.item() + (held - full) * one
    return (before + ids) / len(chunks), (held * late + ids) / len(chunks)


def memory_levels(memory: RankMemory, blocks: tuple[TimedBlock, ...]) -> list[tuple[float, float]]:
    """Return (seconds, bytes) whenever the memory of a rank changes, in order of time.

    A forward takes the memory of its chunk as it starts, a backward frees it as it ends; where
    the backward is split, its weight gradient frees it as it starts, which is how the memory
    model counts (`zero_bubble.late_chunks`). The maximum is the rank's predicted peak.
    """
    before = late = 0
    out = [(0.0, memory.always_bytes)]

    def note(at_s: float, running: bool) -> None:
        kept = before * memory.chunk_bytes + late * memory.late_bytes
        level = memory.always_bytes + kept + (memory.backward_bytes if running else 0.0)
        if out[-1][0] == at_s:
            out.pop()
        out.append((at_s, level))

    for block in blocks:
        kinds = [kind for _, _, kind in block.parts]
        before += kinds.count(FORWARD)
        late -= kinds.count(WEIGHT_GRAD)
        note(block.start_s, BACKWARD in kinds or INPUT_GRAD in kinds)
        before -= kinds.count(BACKWARD) + kinds.count(INPUT_GRAD)
        late += kinds.count(INPUT_GRAD)
        note(block.end_s, running=False)
    return out
