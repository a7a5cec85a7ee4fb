"""Why there is no plan, in words: the rules, pins and limits that cannot hold together."""

import math
from collections.abc import Iterable

from costmodels.layers.kinds import attention_shapes, mixer_heads, mlp_widths
from costmodels.shapes import ModelShape
from planner.solver.answer.result import Conflict, ConflictPart
from planner.units import format_gib
from searches.conflicts import Condition, find_conflicts, user_conditions, without
from searches.feasibility import any_fits
from searches.frameworks.carried import foreign_rules
from searches.frameworks.case import Case
from searches.frameworks.registry import searched_frameworks
from searches.frameworks.rule import spoken
from searches.options import AXES, TEXT_AXES, TOKENS_PER_CP
from searches.rules import Context, fully_sharded_bytes, fully_sharded_fits, least_model_parallel
from searches.space.shape_space import cp_limit, divisors


def conflicts_of(context: Context, n_legal: int) -> tuple[Conflict, ...]:
    """Return what excludes every plan of a search that found none.

    Without a legal layout these are sets of rules, pins and limits, as few as exclude everything;
    with `n_legal` layouts of which none fits, memory and the pins that keep it from fitting.
    """
    if n_legal:
        result: tuple[tuple[Condition, ...], ...] = (_memory_conflict(context),)
    elif _foreign_text(context):  # excludes every layout by itself: none need be looked at
        result = ((Condition("FRM001"),),)
    else:
        result = find_conflicts(context)
    return tuple(
        Conflict(tuple(ConflictPart(c.code, condition_text(context, c)) for c in conditions))
        for conditions in result
    )


def _memory_conflict(context: Context) -> tuple[Condition, ...]:
    """Return MEM001 and those pins and limits of which none can be kept if the job is to fit.

    None when the job does not fit without any of them. One after the other is left out for good
    when nothing fits without it, so that each one that stays is needed.
    """
    memory = (Condition("MEM001"),)
    pins = user_conditions(context, AXES)
    if not any_fits(without(context, pins)):
        return memory
    needed = list(pins)
    for pin in pins:
        fewer = [p for p in needed if p != pin]
        if not any_fits(without(context, [p for p in pins if p not in fewer])):
            needed = fewer
    return (*needed, *memory)


def _listed(values: Iterable[str]) -> str:
    texts = list(values)
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _pin_text(context: Context, pin: Condition) -> str:
    """Return what the user allows on an axis, and why no candidate has it, if none has."""
    options, n, axis = context.options, context.n_devices, pin.axis
    if pin.limit:
        return f"{axis} is at most {options.at_most[axis]} (--max)"
    values = sorted(options.only[axis])
    names = TEXT_AXES.get(axis)
    text = f"{axis} is {_listed(names[v] if names else str(v) for v in values)} (--pin, --only)"
    if axis in ("tp", "pp", "cp", "dp") and not set(values) & set(divisors(n)):
        return f"{text}, which does not divide {n} devices"
    if axis == "cp_comm" and 0 not in values and cp_limit(context) == 1:
        least = 2 * TOKENS_PER_CP
        return f"{text}, but cp above 1 is tried from {least} tokens on unless --max cp names it"
    return text


def _states_text(context: Context) -> str:
    """Return what MEM000 asks of this job: only ways that these devices have, else what it takes.

    Split over tp * pp, or everything sharded over all devices (ZeRO 3, pp 1), the only bound where
    experts are sharded by other degrees.
    """
    pool, n, need = context.problem.pool, context.n_devices, least_model_parallel(context)
    usable, sharded = format_gib(pool.usable_bytes), format_gib(fully_sharded_bytes(context))
    fits = fully_sharded_fits(context)
    if not math.isfinite(need) or need <= 0.0:
        return (
            f"the states fit into {usable} GiB: shared out evenly over all {n} devices they take "
            f"{sharded} GiB of each"
        )
    least = math.ceil(need)
    ways = [f"tp * pp of {least} or more"] if least <= n else []
    ways += ["ZeRO 3 and pp 1"] if fits else []
    condition = f"weights and gradients fit into {usable} GiB"
    if ways:
        return f"{condition}: {', or '.join(ways)}"
    return (
        f"{condition}: that takes tp * pp of {least} or more, and there are {n} devices; ZeRO 3"
        f" over all of them takes {sharded} GiB of each"
    )


def condition_text(context: Context, condition: Condition) -> str:
    """Return a condition with the numbers of this job."""
    if condition.of_user:
        return _pin_text(context, condition)
    shape, job, pool = context.problem.shape, context.problem.job, context.problem.pool
    return _TEXTS[condition.code].format(
        shape=shape,
        job=job,
        domain=pool.scale_up_domain,
        usable=format_gib(pool.usable_bytes),
        states=_states_text(context) if condition.code == "MEM000" else "",
        framework=context.options.framework
        if context.options.framework != "default"
        else "a framework that plans are written for",
        foreign=_foreign_text(context),
        mixers=" and ".join(map(str, mixer_heads(shape))),
        n=context.n_devices,
        **_widths(shape),
    )


def _widths(shape: ModelShape) -> dict[str, str]:
    """Return heads, KV heads and widths of the MLPs, of all layers that have others."""
    own = attention_shapes(shape) or (shape,)
    each = {
        "heads": [x.heads for x in own],
        "kv_heads": [x.kv_heads for x in own],
        "widths": mlp_widths(shape) or (shape.ffn,),
    }
    return {key: " and ".join(map(str, dict.fromkeys(values))) for key, values in each.items()}


def _foreign_text(context: Context) -> str:
    """Return what of a job no searched framework has, and which one would do, or "".

    The accelerator, kinds of layers, adapters, or answers that are compared.
    """
    problem = context.problem
    vendor = problem.pool.accelerator.vendor
    mbs, names = _evenest_batch(context), searched_frameworks(context.options.framework, vendor)
    rules = foreign_rules(names, problem, mbs)
    if not rules:
        return ""
    case = Case.of_run(
        {}, layout={"mbs": mbs}, model=problem.shape, job=problem.job, vendor=vendor
    )
    reasons = "; ".join(spoken(rule.reason, case) for rule in rules)
    return f" ({reasons}; closest: {spoken(rules[0].closest, case)})"


def _evenest_batch(context: Context) -> int:
    """Return a micro-batch that pins and the batch leave, an even one where there is one."""
    options, batch = context.options, context.problem.job.global_batch
    dps = [x for x in divisors(context.n_devices) if options.allows("dp", x)]
    sizes = [x for dp in dps if batch % dp == 0 for x in divisors(batch // dp)]
    allowed = sorted(x for x in options.only.get("mbs", sizes) if options.allows("mbs", x))
    return next((x for x in allowed if x % 2 == 0), next(iter(allowed), 1))


_TEXTS = {
    "TP001": "tp divides the {heads} attention heads",
    "TP002": "tp divides the {kv_heads} KV heads or is a multiple of them",
    "TP003": "tp divides the MLP width {widths} of dense layers",
    "TP005": "tp divides the scale-up domain of {domain} devices or is a multiple of it",
    "TP006": "tp divides the {mixers} heads and groups of other layers than attention",
    "CP001": "2 cp divides the {job.seq_len} tokens of a sequence",
    "CP002": "with a2a, tp * cp divides the {heads} heads and the {kv_heads} KV heads",
    "CP003": "cp above 1 needs a fused attention kernel",
    "CP004": "windows and chunks have cp_comm all-gather or a2a",
    "CP005": "tp * cp divides the heads ({mixers}, with groups) of other layers than attention",
    "CP006": "an encoder-decoder has cp 1",
    "CP007": "compressed attention has cp 1",
    "EP001": "ep divides the {shape.n_experts} experts (a dense model has ep 1 and etp 1)",
    "EP002": "etp * ep divides tp * cp * dp",
    "EP003": "etp divides the width {shape.expert_ffn} of an expert",
    "VPP001": "vpp above 1 needs pp above 1",
    "PP001": "pp * vpp is at most the {shape.layers} layers and two ends",
    "PP002": "the {shape.layers} layers split over pp * vpp stages, evenly or with shorter ends",
    "PP003": "an encoder-decoder has pp 1",
    "PP004": "layers that read what earlier layers hold have pp 1",
    "ORD001": "pipelines inside data parallelism (rank_order) place some group elsewhere",
    "ORD002": "with pipelines inside data parallelism, etp * ep is tp * cp",
    "DP001": "dp divides the global batch of {job.global_batch} sequences",
    "MEM000": "{states}",
    "BAT001": "mbs * dp divides the global batch of {job.global_batch} sequences",
    "BAT002": "with vpp above 1, the micro-batches are a multiple of pp",
    "BAT003": "DualPipe has 2 pp micro-batches or more (dualpipe: even pp and micro-batches)",
    "SP001": "sequence parallelism needs tp above 1, and tp * cp to divide {job.seq_len} tokens",
    "ZER001": "ZeRO 2 and 3 need pp 1",
    "ZER002": "ZeRO 1 to 3 need dp * cp above 1",
    "REC001": "recompute of the attention core needs a model without flash attention",
    "REC002": "recomputed modules are modules of the model",
    "REC003": "moe is recomputed without moe_act and shared_experts, which are in it",
    "SCH001": "the schedule matches pp and vpp",
    "SCH003": "a framework that is searched runs the schedule",
    "SCH002": "models with experts or multi-token prediction have no ZB-H1 and ZB-V",
    "HPZ001": "a second copy of the weights needs zero 3 over all dp cp ranks",
    "HPZ002": "a second copy of the weights needs tp, pp, ep and etp 1",
    "HPZ003": "hpz must divide dp * cp",
    "OPT001": "{job.optimizer} shares out whole matrices with zero 0 or 1 over all ranks",
    "OPT002": "an optimizer on the host is priced for adam alone",
    "OFF001": "what is offloaded needs a host whose link and memory are known",
    "OFF002": "the host's memory takes 16 bytes a parameter updated there, and activations",
    "OFF003": "the stack has an optimizer on the host with whole gradients only (ZeRO 0 or 1)",
    "OFF004": "stored activations leave for the host without a pipeline only",
    "OFF005": "of the layers all but two can leave for the host, or all recomputed ones",
    "OVL001": "dp_overlap off needs dp * cp above 1",
    "OVL002": "tp_overlap on needs sp, tp inside a scale-up domain, and a stack that has it",
    "DSP001": "deepep and hybridep run on NVIDIA parts, deepep on AMD's too, and not on racks",
    "DSP002": "deepep and hybridep have settings for the expert group",
    "DSP003": "a dispatcher other than alltoall needs ep above 1",
    "DSP004": "deepep needs experts without a capacity factor",
    "EPO001": "ep_overlap needs ep above 1 and a dispatcher other than allgather",
    "EPO002": "ep_overlap 1f1b needs pp 1 or vpp above 1, dualpipe a DualPipe schedule",
    "EPO003": "ep_overlap needs neither recompute full nor the module moe",
    "EPO004": "ep_overlap 1f1b has at most one module of multi-token prediction",
    "CGR001": "modules in CUDA graphs are modules of the model that can be captured",
    "CGR002": "full_iteration with experts needs hybridep, etp 1 and Blackwell",
    "CGR003": "cuda_graph needs no full recompute, no layers on the host",
    "CGR004": "ep_overlap needs mlp outside graphs",
    "OFM001": "offload_modules needs modules that the model has, attn_proj with core_attn",
    "OFM002": "offload_modules needs a host whose link and memory are known",
    "OFM003": "offload_modules needs a schedule whose weight gradients do not wait",
    "OFM004": "offload_modules of norms and experts need their modules outside graphs",
    "OFM005": "offload_modules needs modules that are neither recomputed nor in offloaded layers",
    "FRM001": "{framework} can run it{foreign}",
    "DOM001": "data-parallel traffic runs beside compute, which is never slower",
    "MEM001": "the fullest device holds at most {usable} GiB",
}
"""What each rule asks for, as a condition on one job."""
