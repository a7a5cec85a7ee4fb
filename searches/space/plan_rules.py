"""The rules over the free axes as masks, in the order in which a rejection is attributed."""

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import SCHEDULES, switch_axes
from costmodels.offload.optimizer import gradients_leave
from costmodels.plans import RECOMPUTE_AXES, SP_OVERLAPPED, ShapeTable
from searches.frameworks.case import PlanKinds
from searches.frameworks.table import runnable_batches, runnable_kinds
from searches.mode_rules import mode_faults
from searches.rules import (
    MODULE_RULES,
    Context,
    broken_module_rule,
    fills_dualpipe,
    fits_host,
    offloads_whole_layers,
    optimizer_faults,
    pieces_differ,
    second_copy_faults,
)
from searches.space.free_axes import FreeAxes
from searches.space.plan_masks import PlanRule

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


def plan_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return the rules over the free axes in the order in which a rejection is attributed.

    The pin on mbs is not among them: `free_axes` holds to it.
    """
    of_batches = batch_rules(context, shapes, axes.mbs)
    return [
        *pin_rules(context, shapes, axes),
        *of_batches,
        *kind_rules(context, shapes, axes),
        *framework_batch_rules(context, shapes, axes, of_batches),
    ]


def batch_rules(context: Context, shapes: ShapeTable, mbs: Ints) -> list[PlanRule]:
    """Return what dp and the schedule ask of the micro-batches, over shapes x mbs."""
    sequences = context.problem.job.global_batch // shapes.dp[:, None]
    n_micro, pp, schedule = sequences // mbs[None, :], shapes.pp[:, None], shapes.schedule[:, None]
    looped = schedule == SCHEDULES.index("interleaved")
    return [
        PlanRule("BAT001", sequences % mbs[None, :] == 0, of_batches=True),
        PlanRule("BAT002", ~looped | (n_micro % pp == 0), of_batches=True),
        PlanRule("BAT003", fills_dualpipe(schedule, pp, n_micro), of_batches=True),
    ]


def legal_batches(rules: list[PlanRule]) -> Bools:
    """Return which micro-batches break none of the `batch_rules`, `(n_shapes, n_mbs)`."""
    return np.asarray(np.logical_and.reduce([rule.mask for rule in rules]))


def framework_batch_rules(
    context: Context, shapes: ShapeTable, axes: FreeAxes, of_batches: list[PlanRule]
) -> list[PlanRule]:
    """Return what the frameworks ask of the micro-batches that `of_batches` leave."""
    if context.options.framework == "any":
        return []
    runs = runnable_batches(context.options.framework, context.problem, shapes, axes.mbs)
    runs = runs | ~legal_batches(of_batches)  # what the rules above refuse is theirs
    return [] if runs.all() else [PlanRule("FRM001", runs, of_batches=True)]


def kind_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return the rules over sp, sharding and recompute, the pins aside."""
    job, problem = context.problem.job, context.problem
    column = (slice(None), None, None, None)
    tp, pp, cp, dp = (x[column] for x in (shapes.tp, shapes.pp, shapes.cp, shapes.dp))
    sp = context.options.modes[0][None, :, None, None]
    zero = axes.shardings.zero[None, None, :, None]
    rules = [
        PlanRule("SP001", (sp == 0) | ((tp > 1) & (job.seq_len % (tp * cp) == 0))),
    ]
    emitted = context.options.framework != "any"
    if emitted:
        rules.append(PlanRule("ZER001", (zero <= 1) | (pp == 1)))
    rules.append(PlanRule("ZER002", (zero == 0) | (dp * cp > 1)))
    rules += _second_copy_rules(shapes, axes)
    blocking = axes.shardings.dp_blocking[None, None, :, None]
    if blocking.any():
        rules.append(PlanRule("OVL001", (blocking == 0) | (dp * cp > 1)))
    if context.options.n_sp > SP_OVERLAPPED:
        pieces = pieces_differ(problem, shapes.tp)[column]
        rules.append(PlanRule("OVL002", (sp < SP_OVERLAPPED) | pieces))
    faults = [broken_module_rule(problem.shape, code) for code in axes.recompute_modules.tolist()]
    for code in MODULE_RULES:
        broken = np.array([fault == code for fault in faults])
        if broken.any():
            rules.append(PlanRule(code, ~broken[None, None, None, :]))
    again = (axes.recompute, axes.recompute_modules, axes.activation_offload_layers)
    refused = mode_faults(problem, context.options, shapes, again)
    rules += [PlanRule(code, ~broken) for code, broken in refused.items()]
    for code, broken in optimizer_faults(problem, axes.shardings).items():
        rules.append(PlanRule(code, ~broken[None, None, :, None]))
    rules += _host_rules(context, shapes, axes)
    if emitted:
        framework = context.options.framework
        modes, rows = context.options.modes
        kinds = PlanKinds(
            axes.shardings,
            axes.recompute,
            axes.recompute_layers,
            axes.recompute_modules,
            axes.activation_offload_layers,
            modes,
            rows,
            context.options.switches,
        )
        result = runnable_kinds(framework, problem, shapes, kinds)
        rules.append(PlanRule("FRM001", result))
    return rules


def _second_copy_rules(shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what is asked of plans with a second copy of the weights (hpZ)."""
    if not (axes.shardings.hpz > 1).any():
        return []
    result = second_copy_faults(shapes, axes.shardings)
    return [PlanRule(code, ~broken.T[:, None, :, None]) for code, broken in result.items()]


def _host_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what the host allows of optimizers and activations on it.

    Whether the activations fit depends on the micro-batch too: that is looked at with the memory.
    """
    rules, host = [], context.problem.pool.host
    n_away = axes.activation_offload_layers
    if n_away.any():
        stays = (n_away == 0)[None, None, None, :]
        if host is None:
            rules.append(PlanRule("OFF001", stays))
        rules.append(PlanRule("OFF004", stays | (shapes.pp == 1)[:, None, None, None]))
        columns = (axes.recompute, axes.recompute_layers, n_away)
        total = offloads_whole_layers(context.problem.shape, *columns)
        rules.append(PlanRule("OFF005", total[None, None, None, :]))
    offloaded = axes.shardings.optimizer_offload > 0
    if not offloaded.any():
        return rules
    if host is None:
        return [*rules, PlanRule("OFF001", ~offloaded[None, None, :, None])]
    if not gradients_leave(context.problem.stack):
        total = ~offloaded | (axes.shardings.zero <= 1)
        rules.append(PlanRule("OFF003", total[None, None, :, None]))
    fits = fits_host(context.problem, shapes, axes.shardings)
    return [*rules, PlanRule("OFF002", fits.T[:, None, :, None])]


def pin_rules(context: Context, shapes: ShapeTable, axes: FreeAxes) -> list[PlanRule]:
    """Return what the pins on the free axes allow, by axis."""
    options = context.options
    return [
        PlanRule("PIN001", _allowed(context, axis, column.ravel()).reshape(column.shape))
        for axis, column in pinned_columns(context, shapes, axes).items()
        if axis in options.only or axis in options.at_most
    ]


def pinned_columns(context: Context, shapes: ShapeTable, axes: FreeAxes) -> dict[str, Ints]:
    """Return the values of the axes besides mbs, over shapes x sp x sharding x recompute."""
    options, shardings = context.options, axes.shardings
    sp, rows = options.modes
    of_mode = {"sp": np.minimum(sp, 1), "tp_overlap": (sp == SP_OVERLAPPED).astype(np.int32)}
    of_mode |= {axis.name: options.switches.column(axis.name)[rows] for axis in switch_axes()}
    of_sharding = {
        "zero": shardings.zero[None],
        "dp_shard": shardings.shard(shapes.replicas).T,
        "hpz": shardings.hpz[None],
        "optimizer_offload": shardings.optimizer_offload[None],
        "dp_overlap": 1 - shardings.dp_blocking[None],
    }
    of_option = {name: getattr(axes, name) for name in RECOMPUTE_AXES}
    of_option["activation_offload"] = (axes.activation_offload_layers > 0).astype(np.int32)
    return {
        **{name: column[None, :, None, None] for name, column in of_mode.items()},
        **{name: column[:, None, :, None] for name, column in of_sharding.items()},
        **{name: column[None, None, None, :] for name, column in of_option.items()},
    }


def _allowed(context: Context, axis: str, values: Ints) -> Bools:
    return np.array([context.options.allows(axis, int(v)) for v in values], dtype=bool)
