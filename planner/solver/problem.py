"""What plans are priced against: the problem of two inputs, and as each framework runs it."""

from costmodels.problem import Problem, run_by
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


def make_problem(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, n_devices: int = 0
) -> Problem:
    """Return what plans on the first pool are priced against; `SearchError` if not modelled.

    On the first `n_devices` of it, without them on the most that the options allow.
    """
    pool, fabric = cluster.cluster.pools[0], cluster.cluster.fabric
    problem = run_by(STACKS[options.stack_name], model.shape, model.job, pool, fabric)
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
