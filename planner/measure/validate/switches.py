"""What the cells about switches say, as axes of a layout, fields of a job and facts of a stack."""

import re
from collections.abc import Mapping
from dataclasses import replace

from costmodels.axes import AXES, CUDA_GRAPHS, DISPATCHERS, MAX_VALUE, OFFLOAD_MODULES, Value
from costmodels.data.lengths import MASKED, SampleData
from costmodels.layers.kinds import mixer_heads
from costmodels.offload.modules import INSIDE_EXPERTS, OF_EXPERTS, OF_LATENT
from costmodels.precision import numerics_fault
from costmodels.schedule.stages import spelled
from costmodels.shapes import DENSE, MOE, ModelShape, TrainingJob
from costmodels.stacks import StackProfile
from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import known_targets, target_names
from hardware.parts import Pool
from planner.frameworks.megatron.arguments import layout_counts
from planner.frameworks.megatron.mode_settings import WHOLE_EXPERTS
from planner.measure.validate.described import Entry, Skip
from planner.measure.validate.points import MeasuredPoint
from planner.specs.cluster.segments import whole_segment, with_segment

USER_BUFFERS = ("nemo", "megatron-bridge")
"""Frameworks, by the start of their name, whose recipes overlap tensor-parallel traffic."""
_TP_OVERLAPS = {"none": "none", "bulk": "bulk", "userbuffers": "userbuffers", "async": "pieces"}
"""`StackProfile.tp_overlap` by what the cell `tp_overlap` may say."""
_TP_WORDS = (
    (("userbuffers", "user buffers"), "userbuffers"),
    (("async tp",), "pieces"),
    (("vanilla tp", "no tp"), "none"),
)
"""The same by words of the cell `overlap`."""


def _parts(point: MeasuredPoint) -> list[str]:
    """Return what the cell `overlap` names, one phrase each."""
    return [part.strip() for part in re.split(r"[+;]", point.overlap.lower()) if part.strip()]


def _is_about(part: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", part) is not None


def with_overlap(stack: StackProfile, point: MeasuredPoint, notes: list[str]) -> StackProfile:
    """Return the profile with what the row says runs beside compute.

    Each phrase is a fact about the traffic that it names; about other traffic it says nothing. The
    cell `tp_overlap` comes before them.
    """
    parts = _parts(point)
    if parts and parts[0].startswith("none"):
        return replace(stack, tp_overlap="none", dp_overlap="none", zero1_overlap="none")
    stack = replace(stack, tp_overlap=_tensor_overlap(stack, point, parts, notes))
    text = " ".join(parts)
    reduce = "grad reduce" in text
    gather = "param all-gather" in text or "param gather" in text
    if reduce or gather:
        kind = "both" if reduce and gather else "reduce" if reduce else "none"
        stack = replace(stack, dp_overlap=kind, zero1_overlap=kind)
    known = ("tp", "pp", "ep", "cp", "fsdp", "grad reduce.*", "param (all-)?gather")
    unread = [part for part in parts if not any(_is_about(part, word) for word in known)]
    notes += [f"overlap {part!r}: not known, the stack's own" for part in unread]
    return stack


def _tensor_overlap(
    stack: StackProfile, point: MeasuredPoint, parts: list[str], notes: list[str]
) -> str:
    """Return what tensor-parallel traffic runs beside, as `StackProfile.tp_overlap` says it."""
    if point.tp_overlap.lower() in _TP_OVERLAPS:
        return _TP_OVERLAPS[point.tp_overlap.lower()]
    for words, kind in _TP_WORDS:
        if any(word in part for part in parts for word in words):
            return kind
    if any(re.match(r"tp\b", part) for part in parts):
        return stack.tp_overlap_on or stack.tp_overlap
    if point.framework.lower().startswith(USER_BUFFERS):
        if (point.tp or 1) > 1:
            notes.append("tp overlap not stated: user buffers, as its recipes set them")
        return "userbuffers"
    return stack.tp_overlap


def layout_switches(
    point: MeasuredPoint, shape: ModelShape, notes: list[str]
) -> tuple[tuple[str, Value], ...]:
    """Return the axes without a field of `Layout` that are not off, in the order of `AXES`."""
    values: dict[str, Value] = {
        "dispatcher": _dispatcher(point, shape, notes),
        "ep_overlap": _expert_overlap(point, shape),
        "cuda_graph": _graph(point, shape, notes),
        "offload_modules": _sent_modules(point, shape, notes),
    }
    return tuple((name, values[name]) for name in AXES if values.get(name, "") not in ("", "none"))


def _dispatcher(point: MeasuredPoint, shape: ModelShape, notes: list[str]) -> str:
    if not shape.n_experts:
        return ""
    named = point.dispatcher.lower()
    if named and named not in DISPATCHERS:
        notes.append(f"dispatcher {point.dispatcher!r}: not known, the stack's own")
    elif not named and (point.ep or 1) > 1:
        notes.append("dispatcher not stated: the stack's own")
    return named if named in DISPATCHERS and named != AXES["dispatcher"].off else ""


def _expert_overlap(point: MeasuredPoint, shape: ModelShape) -> str:
    overlapped = point.ep_overlap
    if overlapped is None:
        overlapped = any(re.match(r"(ep|expert)\b", part) for part in _parts(point))
    if not overlapped or not shape.n_experts:
        return ""
    return "dualpipe" if point.schedule.lower().startswith("dualpipe") else "1f1b"


def _graph(point: MeasuredPoint, shape: ModelShape, notes: list[str]) -> str:
    """Return what is captured; modules that a model has not are left out.

    Graphs of Mamba layers are those of the mixer, as those of attention.
    """
    named = point.cuda_graph.lower()
    parts = named.split("+")
    if "mamba" in parts and mixer_heads(shape):
        parts = list(dict.fromkeys("attn" if x == "mamba" else x for x in parts))
    modules = "+".join(part for part in parts if part != "mamba") or "none"
    if named and modules not in CUDA_GRAPHS:
        notes.append(f"cuda_graph {point.cuda_graph!r}: not known, none")
        return "none"
    return modules if named else "none"


_OPTIMIZERS = {"": "fp32", "adam": "fp32", "adamw": "fp32", "adam-bf16-moments": "bf16-moments"}
"""Widths of the states, `TrainingJob.optimizer_states`, by the cell `optimizer`."""
_NARROW_GRADS = re.compile(r"grad_reduce_in_fp32=(false|0)\b")
"""Words of runs of Megatron-LM whose gradients are kept and summed as wide as the weights."""


def with_stated_widths(job: TrainingJob, point: MeasuredPoint, notes: list[str]) -> TrainingJob:
    """Return the job with the widths that the row states; one that it cannot have is left out."""
    states = _OPTIMIZERS.get(point.optimizer.lower())
    if states is None:
        raise Skip("optimizer not modelled")
    wanted: Mapping[str, object] = {
        "optimizer_states": states,
        "fp8_param_gather": bool(point.fp8_param_gather),
        "fp8_attention": bool(point.fp8_attention),
    }
    if _NARROW_GRADS.search(point.notes.lower()):
        wanted = {**wanted, "grad_dtype": "bf16"}
        notes.append("gradients stated: bf16")
    for name, value in wanted.items():
        if value == getattr(job, name):
            continue
        changed = replace(job, **{name: value})  # type: ignore[arg-type]
        fault = numerics_fault(changed.numerics)
        if fault:
            notes.append(f"{fault}: left out")
        else:
            job = changed
    return job


def stated_split(
    point: MeasuredPoint, layers: int, pp: int, vpp: int, notes: list[str]
) -> tuple[int, ...]:
    """Return the layers of each virtual stage that the row states; () where it does not."""
    text = point.stage_layers
    if not text or pp == 1:
        return ()
    listed = re.fullmatch(r"\d+(\s*,\s*\d+)*", text)
    counts = tuple(int(n) for n in text.split(",")) if listed else layout_counts(text)
    if len(counts) != pp * vpp or sum(counts) != layers:
        notes.append(
            f"stage_layers are {len(counts)} stages of {sum(counts)} layers: not those of the run"
        )
        return ()
    notes.append(f"stages stated: {spelled(counts)}")
    return counts


def offloads(point: MeasuredPoint) -> dict[str, int | bool]:
    """Return the fields of a layout that say what lies on the host: activations, its states."""
    text = point.offload.lower()
    layers = _OFFLOADED_LAYERS.search(text)
    return {
        "activation_offload_layers": min(int(layers[1]), MAX_VALUE) if layers else 0,
        "optimizer_offload": "optimizer" in text,
    }


_OFFLOADED_LAYERS = re.compile(r"activations\W+(\d+) layers")


def _sent_modules(point: MeasuredPoint, shape: ModelShape, notes: list[str]) -> str:
    """Return the modules whose inputs wait on the host, as the axis `offload_modules` has them."""
    text = point.offload.lower()
    listed = re.search(r"activations\W+([\w+ ]+)", text)
    if not listed or _OFFLOADED_LAYERS.search(text):
        return ""
    names = set(re.findall(r"\w+", listed[1])) - {"optimizer"}
    if WHOLE_EXPERTS in names:
        names = names - {WHOLE_EXPERTS} | set(INSIDE_EXPERTS)
    missing = {
        *(OF_EXPERTS if not shape.n_experts else ()),
        *(OF_LATENT if not shape.latent else ()),
        *(("attn_proj",) if "core_attn" not in names else ()),
    }
    sent = [name for name in OFFLOAD_MODULES if name in names - missing]
    notes += [f"offload of {name}: not priced, stays" for name in sorted(names - {*sent})]
    return "+".join(sent)


def in_used_domain(pool: Pool, point: MeasuredPoint, notes: list[str]) -> Pool:
    """Return the pool with what the run uses of every scale-up domain that reaches over nodes.

    `segment` says it. Where it does not, what launchers ask for (`whole_segment`): 64 of 72 for
    256 devices. A run that is no larger than a domain lies in one.
    """
    domain, per_node = pool.scale_up_domain, pool.devices_per_node
    if domain <= per_node:
        return pool
    nodes = domain // per_node
    if point.segment:
        return with_segment(pool, max(1, min(nodes, point.segment // per_node)))
    if pool.n_nodes <= nodes:
        return pool
    used = whole_segment(pool.n_nodes, nodes)
    if used < nodes:
        notes.append(f"segment not stated: {used * per_node} of {domain}")
    return with_segment(pool, used)


USUAL_RANK, USUAL_TARGETS = 16, ("linear_qkv", "linear_proj")
"""Where a run does not say: those of MLPerf's Llama 2 70B LoRA."""
_PATTERNS = {"*_proj": "all-linear"}


def adapters_of(
    point: MeasuredPoint, entry: Entry, shape: ModelShape, notes: list[str]
) -> TuningJob | None:
    """Return the adapters of a run, None where it trains all weights; `Skip` if not priced.

    The row's own words win over the model's entry.
    """
    stated = entry.get("lora")
    if not point.lora and not stated:
        return None
    told = dict(stated) if isinstance(stated, dict) else {}
    if isinstance(told.get("targets"), str):  # of some rows, which say so themselves
        del told["targets"]
    words = point.peft.replace(",", " ").split()
    told |= dict(word.split("=", 1) for word in words if "=" in word)
    if "rank" not in told:
        notes.append(f"rank of adapters not stated: {USUAL_RANK}")
    names = told.get("targets")
    if isinstance(names, str):
        names = names.split("+")
    if not names:
        names = USUAL_TARGETS
        notes.append(f"targets of adapters not stated: {', '.join(names)}")
    targets = target_names([_PATTERNS.get(name, name) for name in names], shape)
    if set(targets) - set(known_targets(shape)):
        raise Skip("adapters of layers that the model has not")
    base = "nf4" if words[:1] == ["qlora"] else "bf16"
    dropout = float(told.get("dropout") or 0.0)
    return TuningJob(int(told.get("rank", USUAL_RANK)), targets, dropout=dropout, base=base)


USUAL_SAMPLE_TOKENS = 256
"""Where a run with packs does not say how long samples are: questions with their paragraphs."""
MOST_PACKED_TOKENS = 16_384
"""Longest pack for which that is taken: longer ones are made for samples as long, and how long
they are decides the time."""
WHOLE_PACKS = "MLPerf"
"""In the framework of runs whose packs have no masks between samples, as the rules have it."""


def samples_of(point: MeasuredPoint, shape: ModelShape, notes: list[str]) -> SampleData | None:
    """Return what the packs of a run hold; None where attention is over all of a sequence.

    Samples count as alike: few of them see so many keys that their spread would show.
    """
    if not point.packed or point.seq_len is None:
        return None
    is_plain = set(shape.kinds) <= {DENSE, MOE} and shape.flash_attention
    if WHOLE_PACKS in point.framework or not is_plain:
        notes.append("packed sequences: attention over whole packs")
        return None
    told = re.search(r"mean_sequences_per_pack=([\d.]+)", point.seq_packing)
    tokens = point.seq_len / float(told.group(1)) if told else float(USUAL_SAMPLE_TOKENS)
    if not told and point.seq_len > MOST_PACKED_TOKENS:
        raise Skip("lengths of samples in long packs not stated")
    if not told:
        notes.append(f"lengths of packed samples not stated: {USUAL_SAMPLE_TOKENS} tokens")
    mean = min(tokens, float(point.seq_len))
    return SampleData(MASKED, mean, mean * mean, 1.0)
