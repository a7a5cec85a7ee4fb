"""What the card says in words: the layout, the bottleneck, closed axes, what was assumed."""

from collections.abc import Mapping

from costmodels.axes import AXES
from costmodels.plans import Layout
from costmodels.schedule.stages import SPLITS
from hardware.nouns import GPU, DeviceNoun
from planner.option_names import JOB_OPTIONS
from planner.render.card.card import Assumption, Bar, ClosedAxis
from planner.render.card.figures import seconds
from planner.render.nouns import noun_of
from planner.solver.answer.reasons import stage_words
from planner.solver.answer.result import Result
from planner.specs.cluster.words import cluster_words
from planner.text_lines import ASSUMED
from planner.units import GIB, format_percent

LEAST_GAIN_FRAC = 0.01
"""Share of the step that a closed axis must save to be named."""
LEAST_PART_FRAC = 0.01
"""Share of the step that a part must take to be named behind the bottleneck."""
SCHEDULE_WORDS: Mapping[str, str] = {"1f1b": "1F1B", "gpipe": "GPipe", "none": ""}


def layout_words(layout: Layout, noun: DeviceNoun = GPU) -> str:
    """Return a layout in words and digits: `TP 4 x PP 4 x DP 32, micro-batch 1, interleaved 4`."""
    x = layout
    parts = [
        degrees_words(x, noun),
        *_sharding_words(x),
        f"micro-batch {x.mbs}",
        *_pipeline_words(x),
    ]
    return ", ".join([*parts, recompute_words(x), *_other_words(x)])


def degrees_words(layout: Layout, noun: DeviceNoun = GPU) -> str:
    """Return the degrees above 1: `TP 4 x PP 4 x CP 2 x DP 16, EP 8`; `1 GPU` where all are 1."""
    x = layout
    degrees = (("TP", x.tp), ("PP", x.pp), ("CP", x.cp), ("DP", x.dp))
    product = " x ".join(f"{name} {size}" for name, size in degrees if size > 1)
    experts = [f"{name} {size}" for name, size in (("EP", x.ep), ("ETP", x.etp)) if size > 1]
    return ", ".join([product or f"1 {noun.one}", *experts])


def _sharding_words(layout: Layout) -> list[str]:
    x = layout
    words = [f"ZeRO {x.zero}"] if x.zero else []
    if x.shard:
        words.append(f"sharded in groups of {x.dp_shard}")
    if x.hpz > 1:
        words.append(f"second weight copy per {x.hpz} ranks")
    return words


def _pipeline_words(layout: Layout) -> list[str]:
    x = layout
    if x.pp == 1:
        return []
    schedule = SCHEDULE_WORDS.get(x.schedule, x.schedule)
    words = [f"interleaved {x.vpp}" if x.schedule == "interleaved" else schedule]
    if x.split == "ends":
        words.append("lighter end stages")
    elif x.split not in SPLITS:
        words.append(f"layers {stage_words(x.stage_layers)}")
    return words


def recompute_words(layout: Layout) -> str:
    """Return the recomputation: `no recomputation`, or what runs forward twice."""
    x = layout
    if x.recompute == "none":
        return "no recomputation"
    if x.recompute == "full":
        most = max(x.stage_layers)
        if x.recompute_layers >= most:
            return "full recomputation"
        return f"recomputation of {x.recompute_layers} of {most} layers a stage"
    return f"recomputation of {', '.join(x.recompute_modules)}"


def _other_words(layout: Layout) -> list[str]:
    """Return what else is off the usual."""
    x = layout
    words = [f"{x.cp_comm} context exchange"] if x.cp > 1 and x.cp_comm != "p2p" else []
    words += ["pipelines inside DP"] * x.pipelines_inside
    words += ["no sequence parallelism"] * (x.tp > 1 and not x.sp)
    words += ["optimizer offload"] * x.optimizer_offload
    if x.activation_offload:
        words.append(f"activation offload of {x.activation_offload_layers} layers")
    words += ["no DP overlap"] * (x.dp > 1 and not x.dp_overlap)
    words += ["TP overlap"] * x.tp_overlap
    named = (
        f"{AXES[name].label or name.replace('_', ' ')} {AXES[name].text(value)}"
        for name, value in x.switches
    )
    return [*words, *(text.removesuffix(" on") for text in named)]


def bottleneck_words(bar: Bar) -> str:
    """Return the largest part of a step, and the next two that take a hundredth of it or more."""
    first, *others = sorted(bar.segments, key=lambda s: -s.share)
    next_parts = [
        f"{s.label} {format_percent(s.share)}" for s in others[:2] if s.share >= LEAST_PART_FRAC
    ]
    then = f", then {' and '.join(next_parts)}" if next_parts else ""
    return f"{first.label} takes {format_percent(first.share)} of the step{then}"


def closed_axes(result: Result) -> tuple[ClosedAxis, ...]:
    """Return the closed axes that would make the recommended layout faster, the fastest first."""
    if not result.plans:
        return ()
    step_s = result.plans[0].step_time_s
    axes = []
    for x in sorted(result.alternatives, key=lambda x: x.step_time_s):
        change = x.step_time_s / step_s - 1
        if change > -LEAST_GAIN_FRAC:
            continue
        over = "" if x.fits else f", needs {x.peak_bytes / GIB:.1f} GiB: another layout"
        text = f"{x.pin}: {seconds(x.step_time_s)} ({format_percent(change)}{over})"
        axes.append(
            ClosedAxis(f"--pin {x.pin}", x.step_time_s, change, round(x.peak_bytes), x.fits, text)
        )
    return tuple(axes)


def assumptions_of(result: Result) -> tuple[Assumption, ...]:
    """Return what the question left open, each with the option that changes it.

    Fields of an imported file, the machine of a cluster in words, tokens and price.
    """
    fields = (x.removeprefix(ASSUMED) for x in result.notes if x.startswith(ASSUMED))
    imported = tuple(Assumption(text, _option_of(text)) for text in fields)
    return (*imported, *_of_words(result), *_unstated(result))


def _of_words(result: Result) -> list[Assumption]:
    """Return what a cluster in words takes from the usual machine of its part."""
    words = cluster_words(str(result.inputs["cluster_source"]))
    if words is None:
        return []
    pool = result.inputs["cluster"]["pools"][0]
    fields = [] if words.counts_nodes else ["accelerators_per_node"]
    fields += ["nic"] * (not words.network and pool["nodes"] > 1)
    return [
        Assumption(f"pools.0.{name} = {pool[name]} (usual machine)", f"--set pools.0.{name}=")
        for name in fields
        if name in pool
    ]


def _unstated(result: Result) -> list[Assumption]:
    """Return what is not said because nobody stated what it takes: days and cost."""
    if not result.plans:
        return []
    unstated = []
    if result.inputs["model"]["training"].get("tokens") is None:
        unstated.append(Assumption("no tokens of the run, so no days", "--tokens"))
    if not any("price_per_hour" in pool for pool in result.inputs["cluster"]["pools"]):
        option = "--set pools.0.price_per_hour="
        unstated.append(
            Assumption(f"no price of a {noun_of(result).one} hour, so no cost", option)
        )
    return unstated


def _option_of(text: str) -> str:
    """Return what changes an assumed field: `--seq`, `--set PATH=VALUE`; "" for other text."""
    path, equals, _ = text.partition(" = ")
    if not equals or " " in path:
        return ""
    return JOB_OPTIONS.get(path, f"--set {path}=")
