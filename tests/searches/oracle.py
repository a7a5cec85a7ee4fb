"""The search a second time: nested loops over every combination, rules one by one, scalars.

Nothing of `searches` but its plain options and of `costmodels` but its plain data types is used.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from costmodels.plans import Layout
from costmodels.precision import Recipe
from costmodels.problem import Problem
from costmodels.shapes import DeltaNetShape, Mamba2Shape, ModelShape, RglruShape
from searches.options import SearchOptions
from tests.searches import oracle_models as models
from tests.searches import oracle_physics as physics
from tests.searches import oracle_streams as streams
from tests.searches.oracle_mode_rules import WORDS as MODES
from tests.searches.oracle_mode_rules import broken_mode_rule
from tests.searches.oracle_offload import sent_modules

SPLITS = ("even", "ends")
WORDS = {
    "split": SPLITS,
    "cp_comm": ("", "p2p", "all-gather", "a2a"),
    "recompute": ("none", "selective", "full"),
    "schedule": (
        "none",
        "gpipe",
        "1f1b",
        "interleaved",
        "zb-h1",
        "zb-v",
        "dualpipe",
        "dualpipe-v",
    ),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    **MODES,
}
SPLIT_BACKWARD = WORDS["schedule"][4:]
USUAL, INSIDE = WORDS["rank_order"]
MODULES = (
    *("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"),
    "gdn_norm_out",
)
"""Bit i of a set of recomputed modules, as the options number it, stands for the i-th."""
MAX_VPP, MAX_RECOMPUTE_STEPS = 12, 16
CP_COMMS = ("", "p2p", "all-gather", "a2a")
Shape = tuple[int, int, int, int, str, int, str, int, int, str, str]
"""tp, pp, dp, vpp, split, cp, cp_comm, ep, etp, schedule, rank_order."""
SHAPE_AXES = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "split",
    "cp",
    "cp_comm",
    "ep",
    "etp",
    "schedule",
    "rank_order",
)


@dataclass(frozen=True)
class Priced:
    """One legal plan with its numbers."""

    layout: Layout
    closed_form_s: float
    peak_bytes: float


@dataclass(frozen=True)
class Answer:
    shapes: list[Shape]
    rejected_shapes: Counter[str]
    legal: list[Priced]
    rejected_plans: Counter[str]
    fitting: list[Priced]
    """By closed form, then memory, then degrees."""


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def allows(options: SearchOptions, axis: str, value: int | str) -> bool:
    number = WORDS[axis].index(value) if isinstance(value, str) else value
    if axis in options.only and number not in options.only[axis]:
        return False
    return axis not in options.at_most or number <= options.at_most[axis]


# Shapes --------------------------------------------------------------------------------------


def stage_layers(layers: int, pp: int, vpp: int, split: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage, () when they cannot be split this way."""
    n = pp * vpp
    if split == "even":
        return (layers // n,) * n if layers % n == 0 else ()
    units = layers + 2
    if n == 1 or units < n:
        return ()
    if vpp > 1 and units < 2 * n and units % n not in (0, n - 2, n - 1):
        return ()  # one layer beside two
    shares = [units // n] * n
    larger = [*range(n - 2, 0, -1), 0, n - 1]
    for stage in larger[: units % n]:
        shares[stage] += 1
    return (shares[0] - 1, *shares[1:-1], shares[-1] - 1)


def splits(layers: int, pp: int, vpp: int, split: str) -> bool:
    """Tell whether the split exists and is not another name of the even one."""
    held = stage_layers(layers, pp, vpp, split)
    return held != () and (split == "even" or held != stage_layers(layers, pp, vpp, "even"))


def all_shapes(problem: Problem, options: SearchOptions, n_devices: int) -> Iterator[Shape]:
    """Yield every factorisation with every number of chunks, split, exchange, grid and order."""
    asked = max([options.at_most.get("vpp", 0), *options.only.get("vpp", ())])
    for tp in divisors(n_devices):
        for pp in divisors(n_devices // tp):
            if pp > problem.shape.layers + 2:
                continue
            for vpp in range(1, (asked or MAX_VPP) + 1 if pp > 1 else 2):
                for split in SPLITS:
                    for rest in context_and_experts(problem, options, n_devices // tp // pp, tp):
                        dp = n_devices // tp // pp // rest[0]
                        for schedule in schedules_of(pp, vpp):
                            for order in orders(problem, options) if pp > 1 else [USUAL]:
                                yield tp, pp, dp, vpp, split, *rest, schedule, order


def orders(problem: Problem, options: SearchOptions) -> list[str]:
    """Return the orders of ranks: Megatron's second where borders of some unit cost something."""
    named = 1 in options.only.get("rank_order", ())
    runs = options.framework in ("any", "default", "megatron")
    return [USUAL, INSIDE] if named or (runs and units_that_cost(problem)) else [USUAL]


def units_that_cost(problem: Problem) -> list[int]:
    """Return the sizes of domains and tier units whose borders are felt, less than everything."""
    pool = problem.pool
    units = [pool.scale_up_domain]
    slowdown = 1.0
    for tier in problem.fabric.tiers:
        slowdown *= tier.oversubscription
        if slowdown > 1 or pool.n_summing_tiers > 0:
            units += [tier.n_nodes * pool.devices_per_node]
    return [unit for unit in units if unit < pool.n_devices]


def order_matters(problem: Problem, tp: int, cp: int) -> bool:
    """Tell whether the ranks of some stage's replica share a unit with ranks of another one."""
    starts = range(0, problem.pool.n_devices, tp * cp)
    return any(start % unit for unit in units_that_cost(problem) for start in starts)


def context_and_experts(
    problem: Problem, options: SearchOptions, n_left: int, tp: int
) -> Iterator[tuple[int, str, int, int]]:
    """Yield (cp, cp_comm, ep, etp) with `n_left` devices for cp and dp."""
    most = max([options.at_most.get("cp", 0), *options.only.get("cp", ())])
    most = most or max(1, problem.job.seq_len // 4096)
    n_experts = problem.shape.n_experts
    ep = {1, *options.only.get("ep", ())}
    etp = {1, *options.only.get("etp", ())}
    if n_experts:
        ep |= {e for e in divisors(n_experts) if e <= problem.pool.n_devices}
        etp |= {tp}
    for cp in divisors(n_left):
        if cp <= most:
            for kind in CP_COMMS[1:] if cp > 1 else ("",):
                for e in sorted(ep):
                    for x in sorted(etp):
                        yield cp, kind, e, x


def heads_and_groups(sizes: Mamba2Shape | DeltaNetShape | RglruShape) -> tuple[int, int]:
    """Return what tp and cp cut of a mixer that is no attention."""
    if isinstance(sizes, Mamba2Shape):
        return sizes.heads, sizes.groups
    if isinstance(sizes, RglruShape):
        return sizes.heads, sizes.heads
    return sizes.v_heads, sizes.k_heads


def broken_shape_rule(problem: Problem, options: SearchOptions, shape: Shape) -> str:
    """Return the code of the first rule that a shape breaks, or ""."""
    tp, pp, dp, vpp, split, cp, cp_comm, ep, etp, schedule, order = shape
    model, domain = problem.shape, problem.pool.scale_up_domain
    pinned = zip(SHAPE_AXES, shape, strict=True)
    if not all(allows(options, axis, value) for axis, value in pinned):
        return "PIN001"
    if model.heads % tp:
        return "TP001"
    if model.kv_heads % tp and tp % model.kv_heads:
        return "TP002"
    if model.ffn % tp and not all(models.routed_layers(model)):
        return "TP003"
    if domain % tp and tp % domain:
        return "TP005"
    heads = model.mamba2 or model.delta_net or model.rglru
    if heads and any(n % tp for n in heads_and_groups(heads)):
        return "TP006"
    if model.compressed and (model.heads % tp or model.compressed.groups % tp):
        return "TP006"
    if model.vision and (model.vision.heads % tp or model.vision.ffn % tp):
        return "TP006"
    x = model.encoder
    if x and any(n % tp for n in (x.heads or model.heads, x.ffn or model.ffn)):
        return "TP006"
    if cp > 1 and problem.job.seq_len % (2 * cp):
        return "CP001"
    if cp_comm == "a2a" and (model.heads % (tp * cp) or model.kv_heads % (tp * cp)):
        return "CP002"
    if cp > 1 and not model.flash_attention:
        return "CP003"
    partial = any(run.kind.startswith(("window+", "chunk+")) for run in model.layer_runs)
    if cp > 1 and partial and cp_comm == "p2p":
        return "CP004"
    if cp > 1 and heads:
        most, groups = heads_and_groups(heads)
        held = groups // tp  # those of a rank; of Mamba-2 each may be on several
        repeats = model.mamba2 is not None and cp % held == 0
        if most % (tp * cp) or (held % cp and not repeats):
            return "CP005"
    if cp > 1 and model.encoder:
        return "CP006"
    if cp > 1 and model.compressed:
        return "CP007"
    if model.n_experts % ep or (not model.n_experts and (ep > 1 or etp > 1)):
        return "EP001"
    if tp * cp * dp % (ep * etp):
        return "EP002"
    if model.n_experts and model.expert_ffn % etp:
        return "EP003"
    if vpp > 1 and pp == 1:
        return "VPP001"
    if pp * vpp > model.layers + 2:
        return "PP001"
    if not splits(model.layers, pp, vpp, split):
        return "PP002"
    if pp > 1 and model.encoder:
        return "PP003"
    if pp > 1 and (model.per_layer or any("kv_shared" in dict(x.sizes) for x in model.variants)):
        return "PP004"
    if (model.n_experts or model.mtp_layers) and schedule in ("zb-h1", "zb-v"):
        return "SCH002"
    if options.framework != "any" and schedule not in ("none", "1f1b", "interleaved"):
        return "SCH003"
    if order == INSIDE:
        asked = options.only.get("rank_order") == {1}
        if not asked and (min(pp, dp) == 1 or not order_matters(problem, tp, cp)):
            return "ORD001"
        if model.n_experts and ep * etp != tp * cp:
            return "ORD002"
    if problem.job.global_batch % dp:
        return "DP001"
    if not states_may_fit(problem, options, tp, pp, dp * cp):
        return "MEM000"
    return ""


def true_params(problem: Problem) -> float:
    """Return the parameters of the whole model, the vocabulary unpadded."""
    if models.is_special(problem, ""):
        return models.true_params(problem)
    shape = problem.shape
    rows = shape.vocab * (1 if shape.tied else 2)
    if shape.positions == "learned":
        rows += max(shape.max_positions, problem.job.seq_len)
    rows += 1 if shape.norm == "rmsnorm" else 2
    return shape.layers * physics.layer_params(problem, 1) + rows * shape.hidden


def least_weight_delta(recipe: Recipe) -> float:
    """Return what a quantised weight takes more than one in bf16, on the kindest part."""
    if not recipe.gathers_quantized:
        return 0.0
    layouts = 1 if recipe.transposes == "by-part" else 2
    return layouts * recipe.layout_bytes - recipe.param_bytes


def states_may_fit(problem: Problem, options: SearchOptions, tp: int, pp: int, dp: int) -> bool:
    """Tell whether weights and gradients alone fit, sharded as far as the rules let them be.

    What the host can take counts as gone. Experts may be sharded over all devices.
    """
    recipe, params, routed = problem.job.recipe, true_params(problem), problem.shape.n_experts > 0
    usable = usable_bytes(problem)
    spared = max(0.0, -least_weight_delta(recipe))
    held = (recipe.param_bytes - spared + recipe.grad_bytes) * params
    if not routed and held / max(usable, 1.0) <= tp * pp:
        return True
    per_param = recipe.param_bytes + recipe.grad_bytes + recipe.state_bytes
    if True in offload_choices(problem, options):
        leaves = problem.stack.offload_overlap == "gradients"
        per_param = recipe.param_bytes + (0 if leaves else recipe.grad_bytes)
    per_param -= spared
    any_framework = options.framework == "any" or routed
    return (pp == 1 or any_framework) and per_param * params / (tp * pp * dp) <= usable


def usable_bytes(problem: Problem) -> float:
    return problem.pool.accelerator.memory_bytes - problem.pool.memory_margin_bytes


# Free axes -----------------------------------------------------------------------------------


def micro_batch_sizes(problem: Problem, options: SearchOptions) -> list[int]:
    usual = max(32, 65536 // problem.job.seq_len)
    limit = options.at_most.get("mbs", max([usual, *options.only.get("mbs", ())]))
    sizes = divisors(problem.job.global_batch)
    return [size for size in sizes if size <= limit and allows(options, "mbs", size)]


@cache
def number(modules: tuple[str, ...]) -> int:
    return sum(2 ** MODULES.index(name) for name in modules)


def recompute_choices(
    problem: Problem, options: SearchOptions, stage_layers: tuple[int, ...]
) -> list[tuple[str, int, tuple[str, ...], int]]:
    """Return what is recomputed, with the layers whose activations are on the host.

    Those only where the user names them: a grid of the first layers of all, but two, without
    recomputation, the recomputed layers from three on, and pinned numbers with everything.
    """
    plain = without_offload(problem, options, stage_layers)
    numbers = options.only.get("activation_offload_layers", frozenset()) - {0}
    away: list[tuple[str, int, tuple[str, ...], int]] = []
    if numbers or 1 in options.only.get("activation_offload", ()):
        most, fine = problem.shape.layers - 2, "activation_offload_layers" in options.only
        step = -(-most // MAX_RECOMPUTE_STEPS)
        for n in range(1, most + 1):
            if fine or n == 1 or (most - n) % step == 0:
                away.append(("none", 0, (), n))
        away += [("full", k, (), k) for kind, k, _ in plain if kind == "full" and k > 2]
        away += [(*choice, n) for n in sorted(numbers) for choice in plain]
    return list(dict.fromkeys([*((*choice, 0) for choice in plain), *away]))


def without_offload(
    problem: Problem, options: SearchOptions, stage_layers: tuple[int, ...]
) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return none, selective with sets of modules, and full over k layers.

    The sets: the attention core, what the model may recompute, and pinned ones. Many k are
    thinned, the ends kept.
    """
    sets = {("core_attn",), *legal_module_sets(problem.shape)}
    for code in options.only.get("recompute_modules", ()):
        sets.add(tuple(name for i, name in enumerate(MODULES) if code & 2**i))
    chosen = [("selective", 0, names) for names in sorted(sets - {()}, key=number)]
    longest = max(stage_layers)
    step = -(-longest // MAX_RECOMPUTE_STEPS)
    every = "recompute_layers" in options.only
    depths = [k for k in range(1, longest + 1) if every or k == 1 or (longest - k) % step == 0]
    return [("none", 0, ()), *chosen, *(("full", k, ()) for k in depths)]


@cache
def legal_module_sets(shape: ModelShape) -> list[tuple[str, ...]]:
    every = (tuple(x for i, x in enumerate(MODULES) if n & 2**i) for n in range(1, 2**8))
    return [names for names in every if not broken_module_rule(shape, names)]


@cache
def broken_module_rule(shape: ModelShape, names: tuple[str, ...]) -> str:
    """Return the code of the rule that a set of recomputed modules breaks, or ""."""
    kinds = models.routed_layers(shape)
    there = {"core_attn"}
    if shape.kv_rank:
        there |= {"layernorm", "mla_up_proj"}
    if any(kinds):
        there |= {"layernorm", "moe", "moe_act", *(["shared_experts"] if shape.shared_ffn else [])}
    if not all(kinds) and not shape.diffusion:
        there.add("mlp")
    if shape.compressed and any(getattr(kind, "mixer", "") in streams.MIXERS for kind in kinds):
        there.add("mla_up_proj")
    if any(getattr(kind, "mixer", "") == "gdn" for kind in kinds):
        there.add("gdn_norm_out")
    if "core_attn" in names and shape.flash_attention:
        return "REC001"
    if set(names) - there:
        return "REC002"
    return "REC003" if "moe" in names and {"moe_act", "shared_experts"} & {*names} else ""


def schedules_of(pp: int, vpp: int) -> tuple[str, ...]:
    if pp == 1:
        return ("none",)
    return {
        1: ("gpipe", "1f1b", "zb-h1", "dualpipe"),
        2: ("interleaved", "zb-v", "dualpipe-v"),
    }.get(vpp, ("interleaved",))


def all_layouts(problem: Problem, options: SearchOptions, shape: Shape) -> Iterator[Layout]:
    """Yield every combination of the free axes with one shape, legal or not."""
    tp, pp, dp, vpp, split, cp, cp_comm, ep, etp, schedule, order = shape
    gbs = problem.job.global_batch
    held = stage_layers(problem.shape.layers, pp, vpp, split)
    for mbs in micro_batch_sizes(problem, options):
        for (sp, pieces), modes in itertools.product(
            piece_choices(options), mode_choices(options)
        ):
            for zero, shard, hpz in sharding_choices(dp * cp, options):
                for away, beside in switch_choices(problem, options):
                    for recompute, depth, modules, n in recompute_choices(problem, options, held):
                        yield Layout(
                            tp * pp * cp * dp,
                            tp,
                            pp,
                            dp,
                            vpp,
                            split,
                            mbs,
                            gbs,
                            zero,
                            sp,
                            schedule,
                            recompute,
                            depth,
                            held,
                            cp,
                            ep,
                            etp,
                            cp_comm=cp_comm,
                            shard=shard,
                            recompute_modules=modules,
                            rank_order=order,
                            optimizer_offload=away,
                            dp_overlap=beside,
                            tp_overlap=pieces,
                            activation_offload_layers=n,
                            hpz=hpz,
                            switches=modes,
                        )


Modes = tuple[tuple[str, str], ...]


def mode_choices(options: SearchOptions) -> list[Modes]:
    """Return every combination of the modes that are named, or else open; without those off."""
    values = []
    for axis, words in MODES.items():
        codes = options.only.get(axis, options.open.get(axis, frozenset({0})))
        values.append([(axis, words[code]) for code in sorted(codes)])
    rows = itertools.product(*values)
    return [tuple((axis, x) for axis, x in row if x != MODES[axis][0]) for row in rows]


def sharding_choices(ranks: int, options: SearchOptions) -> list[tuple[int, int, int]]:
    """Return every ZeRO stage with every size of its group, 0 for all ranks, and hpZ if named."""
    smaller = [g for g in divisors(ranks) if 1 < g < ranks]
    rows = [(0, 0), *((zero, g) for zero in (1, 2, 3) for g in (0, *smaller))]
    second = sorted({1, *options.only.get("hpz", ())})
    return [(*row, hpz) for row in rows for hpz in second]


def offload_choices(problem: Problem, options: SearchOptions) -> tuple[bool, ...]:
    """Return where the optimizer may be: on the host where the user asks for it."""
    return (False, True) if 1 in options.only.get("optimizer_offload", ()) else (False,)


def switch_choices(problem: Problem, options: SearchOptions) -> list[tuple[bool, bool]]:
    """Return the positions of optimizer_offload and dp_overlap."""
    asked = options.only.get("dp_overlap")
    beside = (True, False) if asked is None or 0 in asked else (True,)
    return [(away, b) for away in offload_choices(problem, options) for b in beside]


def piece_choices(options: SearchOptions) -> list[tuple[bool, bool]]:
    """Return the positions of sp and tp_overlap, which is only where the user names it."""
    more = [(True, True)] if 1 in options.only.get("tp_overlap", ()) else []
    return [(False, False), (True, False), *more]


def as_overlapped(problem: Problem, layout: Layout) -> Problem:
    """Return the problem with the overlap of tensor-parallel traffic that a plan has."""
    if not layout.tp_overlap:
        return problem
    stack = replace(problem.stack, tp_overlap=problem.stack.tp_overlap_on)
    return replace(problem, stack=stack)


def mode_values(plan: Layout) -> dict[str, str]:
    """Return the modes of a plan, those at rest too."""
    return modes_with(plan.switches)


@cache
def modes_with(switches: Modes) -> dict[str, str]:
    return {axis: words[0] for axis, words in MODES.items()} | dict(switches)


def is_no_candidate(problem: Problem, options: SearchOptions, plan: Layout) -> bool:
    """Tell whether a plan without overlap is none that the search has: nothing to overlap."""
    asked = options.only.get("dp_overlap")
    return asked is None and not plan.dp_overlap and plan.dp * plan.cp == 1


def is_dominated(
    problem: Problem, options: SearchOptions, plan: Layout, proven: dict[object, bool]
) -> bool:
    """Tell whether a plan without overlap is proven to be no faster than with it.

    `proven` holds the answers so far.
    """
    if plan.dp_overlap or "dp_overlap" in options.only:
        return False
    key = (
        plan.tp,
        plan.pp,
        plan.vpp,
        plan.dp,
        plan.cp,
        plan.zero,
        plan.shard,
        plan.stage_layers,
        plan.schedule,
        plan.ep,
        plan.etp,
        plan.rank_order,
    )
    if key not in proven:
        special = models.is_special(problem, plan.schedule)
        proves = (models if special else physics).overlap_is_no_slower
        least = min(micro_batch_sizes(problem, options), default=1)
        proven[key] = proves(problem, plan, least)
    return proven[key]


def broken_plan_rule(problem: Problem, options: SearchOptions, plan: Layout) -> str:
    """Return the code of the first rule that a plan over a legal shape breaks, or ""."""
    pinned = {
        "sp": int(plan.sp),
        "zero": plan.zero,
        "recompute": plan.recompute,
        "recompute_layers": plan.recompute_layers,
        "dp_shard": plan.shard or plan.dp * plan.cp,
        "hpz": plan.hpz,
        "recompute_modules": number(plan.recompute_modules),
        "optimizer_offload": int(plan.optimizer_offload),
        "dp_overlap": int(plan.dp_overlap),
        "tp_overlap": int(plan.tp_overlap),
        "activation_offload": int(plan.activation_offload_layers > 0),
        "activation_offload_layers": plan.activation_offload_layers,
        **mode_values(plan),
    }
    asked = options.only.keys() | options.at_most.keys()
    if not all(allows(options, axis, pinned[axis]) for axis in pinned.keys() & asked):
        return "PIN001"
    if plan.gbs % (plan.mbs * plan.dp):
        return "BAT001"
    if plan.schedule == "interleaved" and plan.gbs // (plan.mbs * plan.dp) % plan.pp:
        return "BAT002"
    if plan.schedule.startswith("dualpipe"):
        m = plan.gbs // (plan.mbs * plan.dp)
        odd = plan.schedule == "dualpipe" and (plan.pp % 2 or m % 2)
        if m < 2 * plan.pp or odd:
            return "BAT003"
    if plan.sp and (plan.tp == 1 or problem.job.seq_len % (plan.tp * plan.cp)):
        return "SP001"
    if plan.zero >= 2 and plan.pp > 1 and options.framework != "any":
        return "ZER001"
    if plan.zero >= 1 and plan.dp * plan.cp == 1:
        return "ZER002"
    if plan.hpz > 1 and (plan.zero < 3 or plan.shard):
        return "HPZ001"
    if plan.hpz > 1 and max(plan.tp, plan.pp, plan.ep, plan.etp) > 1:
        return "HPZ002"
    if plan.dp * plan.cp % plan.hpz:
        return "HPZ003"
    if not plan.dp_overlap and plan.dp * plan.cp == 1:
        return "OVL001"
    inside = plan.tp > 1 and problem.pool.scale_up_domain % plan.tp == 0
    if plan.tp_overlap and not (inside and problem.stack.tp_overlap_on):
        return "OVL002"
    if plan.recompute_modules and broken_module_rule(problem.shape, plan.recompute_modules):
        return broken_module_rule(problem.shape, plan.recompute_modules)
    if plan.switches and (code := broken_mode_rule(problem, plan)):
        return code
    whole = problem.job.optimizer in ("muon", "soap")
    if whole and (plan.zero > 1 or (plan.zero == 1 and plan.shard)):
        return "OPT001"
    if problem.job.optimizer != "adam" and plan.optimizer_offload:
        return "OPT002"
    away = plan.activation_offload_layers
    if away and problem.pool.host is None:
        return "OFF001"
    if away and plan.pp > 1:
        return "OFF004"
    leaves = {"none": away <= problem.shape.layers - 2, "full": away == plan.recompute_layers}
    if away and not leaves.get(plan.recompute, False):
        return "OFF005"
    if plan.optimizer_offload and problem.pool.host is None:
        return "OFF001"
    piped = problem.stack.offload_overlap == "pipelined"
    if plan.optimizer_offload and piped and plan.zero >= 2:
        return "OFF003"
    if plan.optimizer_offload and not physics.host_holds(problem, plan):
        return "OFF002"
    if not framework_runs(options.framework, problem, plan):
        return "FRM001"
    return ""


# Frameworks ----------------------------------------------------------------------------------


def framework_runs(framework: str, problem: Problem, plan: Layout) -> bool:
    """Tell whether the framework, or with `default` one of the two, runs a plan."""
    if framework == "megatron":
        return megatron_runs(problem, plan)
    if framework == "deepspeed":
        return deepspeed_runs(problem, plan)
    return framework == "any" or megatron_runs(problem, plan) or deepspeed_runs(problem, plan)


def megatron_runs(problem: Problem, plan: Layout) -> bool:
    precision, shape = problem.job.precision, problem.shape
    if plan.hpz > 1:
        return False
    if plan.rank_order == INSIDE:
        expert_tp = plan.etp if shape.n_experts else plan.tp
        if plan.zero >= 2 or plan.n_devices != plan.dp * plan.ep * expert_tp * plan.pp:
            return False
    if precision == "fp16-grads" or (precision == "fp32" and shape.flash_attention):
        return False
    if precision == "fp8-rowwise":
        return False
    if shape.n_experts and ((plan.tp > 1 and not plan.sp) or (shape.bias and plan.etp > 1)):
        return False
    if shape.n_experts and plan.zero and plan.shard:
        holders = plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)
        if holders % (plan.cp * plan.dp // plan.shard):
            return False
    if plan.optimizer_offload and not megatron_offloads(precision, plan):
        return False
    if plan.activation_offload_layers and (plan.recompute != "none" or plan.zero >= 2):
        return False
    return not (plan.zero >= 2 and plan.pp > 1) and megatron_pads_alike(problem, plan.tp)


def megatron_offloads(precision: str, plan: Layout) -> bool:
    """Tell whether the distributed optimizer of bf16 weights is on the host."""
    alone = plan.zero == 0 and plan.dp * plan.cp == 1
    return (plan.zero == 1 or alone) and precision[:3] in ("bf1", "fp8")


def megatron_pads_alike(problem: Problem, tp: int) -> bool:
    """Tell whether some divisor makes Megatron allocate the rows that the model asks for."""
    rows = physics.padded_vocab(problem, tp)
    for divisor in (problem.shape.vocab_multiple, 128, int(rows // tp)):
        unit = divisor * tp
        if unit and -(-problem.shape.vocab // unit) * unit == rows:
            return True
    return False


def deepspeed_runs(problem: Problem, plan: Layout) -> bool:
    shape = problem.shape
    if plan.switches:  # its files carry none
        return False
    if not plan.dp_overlap and (plan.zero == 0 or plan.pp > 1):
        return False
    if plan.sp or plan.vpp > 1 or plan.cp > 1 or plan.tp > shape.kv_heads or plan.shard:
        return False
    if plan.recompute == "selective" and plan.recompute_modules != ("core_attn",):
        return False
    if plan.rank_order == INSIDE or (shape.n_experts and not auto_ep_runs(shape, plan)):
        return False
    precision = problem.job.precision
    if precision.startswith("fp8"):
        return False
    if plan.activation_offload_layers and plan.recompute != "full":
        return False
    if plan.optimizer_offload:
        if plan.pp > 1 or (plan.zero == 0 and plan.dp * plan.cp > 1):
            return False
    elif precision in ("bf16", "fp16") and plan.zero == 0:
        return False
    return plan.pp == 1 or deepspeed_pipeline_runs(precision, plan)


def auto_ep_runs(shape: ModelShape, plan: Layout) -> bool:
    """Tell whether DeepSpeed's AutoEP has the experts of a plan without context parallelism."""
    if plan.pp > 1 or plan.etp > 1 or shape.capacity_factor or (plan.tp > 1 and plan.ep == 1):
        return False
    if plan.zero == 3 and plan.hpz > 1:
        return False
    return not (plan.optimizer_offload and plan.tp > 1)


def deepspeed_pipeline_runs(precision: str, plan: Layout) -> bool:
    if plan.tp > 1 or plan.zero >= 2 or (precision == "bf16-grads" and plan.zero == 0):
        return False
    if plan.recompute == "full" and plan.recompute_layers < max(plan.stage_layers):
        return False
    return plan.stage_layers in (even_blocks(plan), uniform_cut(plan))


def even_blocks(plan: Layout) -> tuple[int, ...]:
    return (plan.stage_layers[0],) * plan.pp


def uniform_cut(plan: Layout) -> tuple[int, ...]:
    """Cut embedding, blocks and head as one list; the earlier stages take the remainder."""
    units = sum(plan.stage_layers) + 2
    owner = [i for i in range(plan.pp) for _ in range(units // plan.pp + (i < units % plan.pp))]
    blocks = owner[1:-1]
    return tuple(blocks.count(i) for i in range(plan.pp))


# The search ----------------------------------------------------------------------------------


def solve(problem: Problem, options: SearchOptions, n_devices: int) -> Answer:
    """Return every legal plan with its numbers, in the order in which the loops find them."""
    shapes: list[Shape] = []
    rejected_shapes: Counter[str] = Counter()
    rejected_plans: Counter[str] = Counter()
    legal: list[Priced] = []
    known: dict[tuple[object, ...], Micro] = {}
    proven: dict[object, bool] = {}
    for shape in all_shapes(problem, options, n_devices):
        overlapped: set[tuple[object, ...]] = set()  # legal with it, so found first
        code = broken_shape_rule(problem, options, shape)
        if code:
            rejected_shapes[code] += 1
            continue
        shapes.append(shape)
        for layout in all_layouts(problem, options, shape):
            if is_no_candidate(problem, options, layout):
                continue
            if is_dominated(problem, options, layout, proven):
                rejected_plans["DOM001"] += free_axes(layout) in overlapped
                continue
            code = broken_plan_rule(problem, options, layout)
            if layout.dp_overlap and not code:
                overlapped.add(free_axes(layout))
            if code:
                rejected_plans[code] += 1
            else:
                # What a micro-batch takes on one rank: the order of ranks moves neither tp nor cp.
                key = (
                    layout.tp,
                    layout.cp,
                    layout.cp_comm,
                    layout.mbs,
                    layout.sp,
                    layout.ep,
                    layout.etp,
                    models.is_special(problem, layout.schedule),
                )
                key, seen = (
                    (*key, layout.tp_overlap, layout.switches),
                    as_overlapped(problem, layout),
                )
                if key not in known:
                    known[key] = micro_batch(seen, layout)
                legal.append(price(seen, layout, known[key]))
    fitting = [
        plan
        for plan in legal
        if plan.peak_bytes <= usable_bytes(problem) and host_holds(problem, plan.layout)
    ]
    if len(fitting) < len(legal):
        rejected_plans["MEM001"] = len(legal) - len(fitting)
    rejected_plans = +rejected_plans
    return Answer(shapes, rejected_shapes, legal, rejected_plans, sorted(fitting, key=rank_key))


def free_axes(plan: Layout) -> tuple[object, ...]:
    """Return what tells two plans of one shape apart, but for the overlap."""
    return (
        plan.mbs,
        plan.sp,
        plan.tp_overlap,
        plan.switches,
        plan.zero,
        plan.shard,
        plan.hpz,
        plan.optimizer_offload,
        plan.recompute,
        plan.recompute_layers,
        plan.recompute_modules,
        plan.activation_offload_layers,
    )


def host_holds(problem: Problem, layout: Layout) -> bool:
    """Tell whether the activations on the host fit beside the optimizer there."""
    if not layout.activation_offload_layers and not sent_modules(layout):
        return True
    one = micro_batch(problem, layout)
    if isinstance(one, models.Micro):
        return models.host_bytes(problem, layout, one) <= 0.9 * problem.pool.host.memory_bytes
    return physics.host_holds_all(problem, layout, one)


Micro = physics.MicroBatch | models.Micro


def micro_batch(problem: Problem, layout: Layout) -> Micro:
    """Return everything of one micro-batch, from whichever module knows the plan."""
    if models.is_special(problem, layout.schedule):
        return models.micro_batch(problem, layout)
    return physics.micro_batch(problem, layout)


def price(problem: Problem, layout: Layout, one: Micro) -> Priced:
    if isinstance(one, models.Micro):
        peak = models.peak_bytes(problem, layout, one)
        return Priced(layout, models.closed_form_s(problem, layout, one), peak)
    flush = physics.straggler(problem, layout) * physics.closed_flush_s(problem, layout, one)
    ranks = range(layout.pp)
    return Priced(
        layout,
        flush + physics.outside_pipeline_s(problem, layout, one),
        max(physics.rank_bytes(problem, layout, one, rank) for rank in ranks),
    )


def exact_step_s(problem: Problem, layout: Layout) -> float:
    """Return the step time with every block of the pipeline simulated."""
    problem = as_overlapped(problem, layout)
    one = micro_batch(problem, layout)
    if isinstance(one, models.Micro):
        return models.exact_step_s(problem, layout, one)
    flush = physics.simulated_flush_s(problem, layout, one)
    slow = physics.straggler(problem, layout)
    return slow * flush + physics.outside_pipeline_s(problem, layout, one)


def degrees(layout: Layout) -> tuple[object, ...]:
    return (
        layout.tp,
        layout.pp,
        layout.vpp,
        layout.zero,
        layout.recompute_layers,
        layout.mbs,
        layout.sp,
        layout.split,
        layout.recompute,
        layout.cp,
        CP_COMMS.index(layout.cp_comm),
        layout.ep,
        layout.etp,
        -(layout.shard or layout.dp * layout.cp),
        WORDS["schedule"].index(layout.schedule),
        number(layout.recompute_modules),
        layout.rank_order == INSIDE,
        layout.optimizer_offload,
        not layout.dp_overlap,
        layout.activation_offload_layers,
        layout.tp_overlap,
        layout.hpz,
        *(WORDS[axis].index(value) for axis, value in mode_values(layout).items()),
    )


def rank_key(plan: Priced) -> tuple[object, ...]:
    return plan.closed_form_s, plan.peak_bytes, degrees(plan.layout)
