"""What plans are priced against: the problem of two inputs, and as each framework runs it."""

from dataclasses import replace

from costmodels.layers.kinds import kinds_of
from costmodels.problem import Problem, run_by
from costmodels.shapes import ModelShape
from costmodels.stacks import STACKS
from planner.frameworks.registry import default_stack, own_stacks
from planner.solver.calibration.apply import calibrated, calibrated_stack
from planner.solver.calibration.file import Calibration
from planner.solver.options import SolveOptions
from planner.solver.scenarios import largest_allowed
from planner.solver.unsupported import check_problem
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import unequal_groups
from searches.device_counts import device_counts, on_devices
from searches.frameworks.carried import able_frameworks, foreign_kinds
from searches.frameworks.registry import ANY, DEFAULT, framework_rules, searched_frameworks

BOTH_SIDES = ("bidirectional", "bidirectional-window", "encoder")
"""Mixers of encoders."""


def of_able_framework(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions
) -> tuple[SolveOptions, tuple[str, ...]]:
    """Return the options, with a framework that runs the job where none is named, and what to say.

    Where neither framework nor stack is named: where no pool has accelerators that the usual
    frameworks run on, the first that does; of an encoder whose layers the first of the usual
    ones, whose prices plans have, lacks, one that has them. Without such a one the options stay.
    Plans of `any` are priced as that first one runs them.
    """
    usual = searched_frameworks(DEFAULT)
    vendors = {pool.accelerator.vendor for pool in cluster.cluster.pools}
    found = {searched_frameworks(DEFAULT, vendor) for vendor in vendors}
    if len(found) == 1 and usual not in found and not options.stack:
        own, vendor = framework_rules(found.pop()[0]), min(vendors)
        if options.framework == DEFAULT:
            runs = f"{own.title} runs on accelerators of {vendor}"
            note = f"framework {own.name}: {runs}, of which no run was measured: wide intervals"
            return replace(options, framework=own.name), (note,)
        if options.framework == ANY:
            return replace(options, stack=default_stack(ANY, vendor)), ()
    record = framework_rules(usual[0])
    lacking = foreign_kinds(record, model.shape)
    named = options.framework != DEFAULT or options.stack
    able = able_frameworks(model.shape)
    if named or not lacking or not able or not _is_encoder(model.shape):
        return options, ()
    chosen, *others = sorted(able, key=lambda name: name not in usual)
    also = f"; {' and '.join(others)} too" if others else ""
    note = f"framework {chosen}: {record.title} has no {', '.join(lacking)}{also}"
    return replace(options, framework=chosen), (note,)


def _is_encoder(shape: ModelShape) -> bool:
    counted = zip(kinds_of(shape), shape.kind_counts, strict=True)
    return any(n and kind.mixer in BOTH_SIDES for kind, n in counted)


def make_problem(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, n_devices: int = 0
) -> Problem:
    """Return what plans on the first pool are priced against; `SearchError` if not modelled.

    On the first `n_devices` of it, without them on the most that the options allow.
    """
    pool, fabric = cluster.cluster.pools[0], cluster.cluster.fabric
    vendor = pool.accelerator.vendor
    stack = options.stack or default_stack(options.framework, vendor)
    problem = run_by(STACKS[stack], model.shape, model.job, pool, fabric)
    check_problem(problem)
    problem = calibrated(problem, options.calibration)
    return on_devices(problem, n_devices or largest_allowed(problem, options))


def searched_problem(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Problem:
    """Return `make_problem`; `SearchError` for ZeRO groups that no number of devices has."""
    problem = make_problem(model, cluster, options)
    sizes = options.restricted().get("dp_shard")
    stage = options.pins.get("tp", 1) * options.pins.get("pp", 1)
    counts = [n for n in device_counts(problem.pool) if options.allows_devices(n)]
    ranks = [n // stage for n in counts if n % stage == 0]
    if sizes and ranks and not any(r % size == 0 for r in ranks for size in sizes):
        raise unequal_groups(min(sizes), max(ranks))
    return problem


def as_framework(problem: Problem, framework: str, calibration: Calibration) -> Problem:
    """Return the problem with the stack of `framework`.

    A stack that the user chose by hand is taken to describe every framework.
    """
    own = default_stack(framework)
    chosen = problem.stack.name not in own_stacks()
    if chosen:
        return problem
    stack = calibrated_stack(STACKS[own], calibration)
    return run_by(stack, problem.shape, problem.job, problem.pool, problem.fabric)
