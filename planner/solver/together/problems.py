"""The mixed problem of a request, and what of a request plans over several pools do not have."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from costmodels.axes import RECOMPUTES
from costmodels.mixed.layer_tables import Degrees, mixed_problem, possible_degrees
from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.prices import MixedPrice, fits, price
from costmodels.mixed.tables import MixedProblem
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.step import straggler_factor
from planner.errors import SearchError, UsageError
from planner.option_names import option
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.together.records import SHARDED_ZERO
from planner.solver.together.sharded_job import FRAMEWORKS, SHARDED_AXES, is_sharded, too_old
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import NUMERICS, axis_text
from planner.specs.search.section import TOGETHER
from searches.frameworks.registry import ANY, DEFAULT
from searches.mixed.search import without_pool

RUNNER = "megatron"
"""The framework that runs plans over several pools, where they are one grid of ranks."""
OBJECTIVES = ("step_time", "tokens_per_s", "cost", "energy", "goodput")
"""Those by which plans over several pools are ranked."""
DEGREES = ("tp", "cp", "ep", "mbs")
"""Axes of what a stage of such a plan runs."""
AXES = (*DEGREES, "recompute", "zero")
"""Axes that such plans have, and a request may name."""
OPTIMIZERS = ("adam",)


def is_for_runner(options: SolveOptions) -> bool:
    """Tell whether only plans are wanted that `RUNNER` runs."""
    return options.framework.partition("@")[0] == RUNNER


def check_together(options: SolveOptions) -> None:
    """Raise `UsageError` for what is asked of plans over several pools that they do not have."""
    asked = option("pools", TOGETHER)
    apart = "leave " + option("pools") + " out to plan for each pool alone"
    runs_several = is_for_runner(options) or is_sharded(options)
    if options.framework not in (DEFAULT, ANY) and not runs_several:
        raise UsageError(
            asked
            + ": no configuration of "
            + options.framework
            + " holds a job over unlike pools",
            option("framework", f"{RUNNER}, {' or '.join(FRAMEWORKS)}") + "; or leave it out",
            code="not-modelled",
        )
    if options.pareto:
        raise UsageError(asked + " has no front", "leave " + option("pareto") + " out")
    if options.objective not in OBJECTIVES:
        raise UsageError(
            asked + " is not ranked by " + options.objective, f"one of {', '.join(OBJECTIVES)}"
        )
    named = {*options.pins, *options.only, *options.at_most} - {*NUMERICS}
    axes = SHARDED_AXES if is_sharded(options) else AXES
    strange = sorted(named - {*axes})
    if strange:
        raise UsageError(
            asked + f": plans over several pools have no axis {', '.join(strange)} of their own",
            f"name {', '.join(axes)} alone, or " + apart,
            code="not-modelled",
        )
    if is_sharded(options):
        _check_sharded(options, apart)
        return
    allowed = options.restricted().get("zero", frozenset([1]))
    if not allowed & {0, 1}:
        named_zero = axis_text("zero", min(allowed))
        raise UsageError(
            asked + f": ZeRO stage {named_zero} is not modelled over several pools",
            option("pin", "zero=1") + " or 0",
            code="not-modelled",
        )


def _check_sharded(options: SolveOptions, apart: str) -> None:
    """Raise `UsageError` for what is asked of sharded replicas that they do not have."""
    if least := too_old(options.framework):
        raise UsageError(
            f"{options.framework} averages the losses of ranks whatever they hold: unequal batches"
            " would not weigh right",
            f"release {least} or later",
            code="not-modelled",
        )
    zero = options.restricted().get("zero", frozenset([SHARDED_ZERO]))
    if SHARDED_ZERO not in zero or options.at_most.get("zero", SHARDED_ZERO) < SHARDED_ZERO:
        raise UsageError(
            option("framework", options.framework)
            + " runs jobs over several pools with weights, gradients and optimizer sharded alone",
            option("pin", f"zero={SHARDED_ZERO}") + ", or " + apart,
            code="not-modelled",
        )
    if "mbs" in options.restricted():
        raise UsageError(
            "replicas on unlike pools take unlike micro-batches: mbs is bounded, not named",
            option("max", "mbs=8") + ", or " + apart,
            code="not-modelled",
        )


def check_model(shape: ModelShape, job: TrainingJob) -> None:
    """Raise `SearchError` for a model or a job that is not modelled over several pools."""
    parts = {
        "multi-token prediction": shape.mtp_layers,
        "an encoder": shape.encoder,
        "a vision tower": shape.vision,
        "diffusion": shape.diffusion,
        "embeddings of each layer": shape.per_layer,
        "adapters": job.tuning,
        "preferences": job.compares_answers,
        f"optimizer {job.optimizer}": job.optimizer not in OPTIMIZERS,
    }
    changes = {
        "multi-token prediction": option("set", "model.mtp_layers=0") + ", or ",
        f"optimizer {job.optimizer}": option("set", "training.optimizer=adam") + ", or ",
    }
    for name, has_it in parts.items():
        if has_it:
            raise SearchError(
                f"{name}: not modelled over several pools in this version",
                changes.get(name, "")
                + ("leave " + option("pools") + " out to plan for each pool alone"),
                code="not-modelled",
            )


@dataclass(frozen=True, slots=True)
class JoinedProblem:
    """One job on the pools of a cluster that can be joined."""

    mixed: MixedProblem
    problems: tuple[Problem, ...]
    """By joined pool: what plans on it alone are priced against."""
    indices: tuple[int, ...]
    """By joined pool: its place in the cluster."""

    def straggler_factor(self, places: Collection[int]) -> float:
        """Return by how much the slowest node of some pools slows a pipeline over them."""
        used = [self.problems[i] for i in sorted(places)]
        n_nodes = sum(problem.pool.n_nodes for problem in used)
        return straggler_factor(used[0], n_nodes * used[0].pool.devices_per_node)

    def least_factor_frac(self, place: int) -> float:
        """Return how much less two pools are slowed down than all but one, as a ratio.

        A step with fewer stragglers is at least that ratio of the same with more.
        """
        others = sorted(set(range(len(self.problems))) - {place})
        least = min(self.straggler_factor(pair) for pair in combinations(others, 2))
        return min(1.0, least / self.straggler_factor(others))

    def without(self, place: int) -> MixedProblem:
        """Return the job without one of the pools, whose nodes slow nobody down any more."""
        others = set(range(len(self.problems))) - {place}
        factor = self.straggler_factor(others)
        left = without_pool(self.mixed, place)
        # One device without a table: nothing runs on it, and shares of the pool stay numbers.
        pools = tuple(replace(x, n_devices=max(1, x.n_devices)) for x in left.pools)
        return replace(left, pools=pools, straggler_factor=factor)

    def priced(self, plan: MixedPlan) -> MixedPrice | None:
        """Return the price of a plan on the pools that it uses; None where it does not fit."""
        priced = self.price(plan)
        return priced if fits(plan, self.mixed, priced) else None

    def price(self, plan: MixedPlan) -> MixedPrice:
        """Return the price of a plan on the pools that it uses, whether or not it fits."""
        return price(plan, self.of_plan(plan))

    def of_plan(self, plan: MixedPlan) -> MixedProblem:
        """Return the job with the stragglers of the pools that a plan uses alone."""
        return replace(self.mixed, straggler_factor=self.straggler_factor(plan.pools))


def joined_problem(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    indices: Sequence[int],
    degrees: Sequence[Sequence[Degrees]] = (),
) -> JoinedProblem:
    """Return the mixed problem on some pools of a cluster.

    `degrees` are those of each pool; without them all that the options allow.
    """
    problems = tuple(make_problem(model, cluster.only(i), options) for i in indices)
    degrees = degrees or [
        [x for x in possible_degrees(p) if _is_allowed(x, options)] for p in problems
    ]
    if not any(degrees):
        raise SearchError(
            "no degrees of plans over several pools keep what is pinned or listed",
            "open " + ", ".join(DEGREES),
        )
    hour = [cluster.operations[i].price_per_device_hour or 0.0 for i in indices]
    mixed = mixed_problem(
        problems, cluster.cluster, [price / 3600.0 for price in hour], degrees=degrees
    )
    codes = options.restricted().get("recompute", frozenset(range(len(RECOMPUTES))))
    names = {RECOMPUTES[code] for code in codes if code <= options.at_most.get("recompute", code)}
    zero = max(options.restricted().get("zero", frozenset([1])) & {0, 1})
    zero = min(zero, options.at_most.get("zero", 1))
    tables = tuple(table for table in mixed.tables if table.recompute in names)
    return JoinedProblem(replace(mixed, tables=tables, zero=zero), problems, tuple(indices))


def _is_allowed(degrees: Degrees, options: SolveOptions) -> bool:
    restricted = options.restricted()
    return all(
        (value := getattr(degrees, axis)) in restricted.get(axis, (value,))
        and value <= options.at_most.get(axis, value)
        for axis in DEGREES
    )
