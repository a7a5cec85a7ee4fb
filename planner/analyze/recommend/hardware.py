"""Which hardware does a job: of each part the fewest devices on which it fits and ends in time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hardware.catalogue import UnknownPartError, load_catalogue
from planner.analyze.recommend.answer import Recommendation
from planner.errors import SearchError, SpecError, UsageError
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.result_parts import calibration_json, inputs_json
from planner.solver.calibration.reference import reference_name
from planner.solver.execution import Execution
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.problem import make_problem
from planner.solver.recipes import one_recipe
from planner.solver.request import SolveRequest, anchored_options
from planner.solver.solve import Extent, solve_inputs
from planner.solver.sources import Source, read_inputs, source_names
from planner.solver.unsupported import check_options
from planner.specs.cluster.words import cluster_words
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.progress import Part, Progress, pieces_of, whole_of
from searches.executors.executor import SerialExecutor
from searches.feasibility import any_fits, states_can_fit
from searches.rules import Context

ANY = "any"
"""In place of a list of clusters: every part of the catalogue that is sold."""
NODES = (1, 2, 4)
"""Whole nodes tried of a part."""
MAX_CLUSTERS = 64
"""Most clusters that a list may name."""
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class HardwareLimits:
    """What the hardware must meet, and what it costs."""

    days: float = 0.0
    """Days in which the run must end; 0 for no limit."""
    usd_per_device_hour: Mapping[str, float] | None = None
    """By name or alias of an accelerator."""

    def check(self) -> None:
        """Raise `UsageError` for a number out of range or a price of no known part."""
        if not 0 <= self.days < 100_000:
            raise UsageError(
                f"--days must be above 0 and below 100000, not {self.days:g}",
                "--days 2",
                code="out-of-range",
            )
        for name, price in (self.usd_per_device_hour or {}).items():
            if not 0 < price < 1e6:
                raise UsageError(
                    f"--price {name} must be above 0 and below 1000000 USD, not {price:g}",
                    f"--price {name}=2.5",
                    code="out-of-range",
                )
            try:
                load_catalogue().accelerator(name)
            except UnknownPartError as error:
                close = " or ".join(error.suggestions)
                raise UsageError(
                    f"--price: no accelerator is called {name!r}",
                    f"did you mean {close}?" if close else "`planner catalog list` shows all",
                    code="unknown-name",
                ) from None

    def prices(self) -> dict[str, float]:
        """Return the prices by the catalogue's own names."""
        stated = (self.usd_per_device_hour or {}).items()
        return {load_catalogue().accelerator(name).name: price for name, price in stated}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cluster on which the job fits, with its best plan."""

    words: str
    cluster: ClusterInput
    plan: Plan
    price: float | None

    @property
    def n_devices(self) -> int:
        """Devices that the plan uses, and those that it leaves idle."""
        return self.plan.layout.n_devices + self.plan.n_idle

    @property
    def expected_s(self) -> float | None:
        """Time of the whole run with failures and checkpoints; None without stated tokens."""
        run = self.plan.run
        return run.expected_s if run and run.expected_s else self.plan.training_s

    @property
    def cost_usd(self) -> float | None:
        """Cost of the whole run; None without stated tokens or a price."""
        return self.plan.run.cost_usd if self.plan.run else None

    @property
    def device_s_per_token(self) -> float:
        """Device time of one token, seconds."""
        return self.n_devices / self.plan.tokens_per_s

    def ends_within(self, days: float) -> bool:
        """Tell whether the run ends in so many days; 0 is no limit."""
        return not days or (self.expected_s or math.inf) <= days * SECONDS_PER_DAY

    def to_json(self) -> dict[str, Any]:
        """Return the row of the answer, in base units."""
        return {
            "cluster": self.words,
            "n_devices": self.n_devices,
            "layout": shown_layout(self.plan.layout),
            "step_time_s": self.plan.step_time_s,
            "tokens_per_s": self.plan.tokens_per_s,
            "peak_bytes": self.plan.breakdown.peak_bytes,
            "usable_bytes": self.plan.usable_bytes,
            "expected_s": self.expected_s,
            "device_s_per_token": self.device_s_per_token,
            "usd_per_device_hour": self.price,
            "cost_usd": self.cost_usd,
        }


def clusters_of_part(name: str) -> tuple[str, ...]:
    """Return clusters of one part in words, the smallest first.

    Powers of two up to a node, then whole nodes; of a rack its parts of four devices as well.
    """
    part = load_catalogue().accelerator(name)
    full = part.devices_per_node
    counts: list[int] = []
    while (count := 2 ** len(counts)) < full:
        counts.append(count)
    return tuple(f"{n}x{part.name}" for n in [*counts, *(full * nodes for nodes in NODES)])


def cluster_list(cluster: Source) -> str:
    """Return the list of clusters; `UsageError` for the content of one."""
    if isinstance(cluster, str):
        return cluster
    raise UsageError(
        "hardware: the cluster must be a list of names", "4x4090,8xh100, a part alone, or any"
    )


def cluster_groups(cluster: str) -> list[tuple[str, ...]]:
    """Return groups of clusters in words; of each group the first that does is the answer.

    `any` is a group for every part of the catalogue that is sold; a list with commas has a group
    for each of its clusters, a part alone one for its sizes.
    """
    names = [each.strip() for each in cluster.split(",") if each.strip()]
    if not names or len(names) > MAX_CLUSTERS:
        raise UsageError(
            f"hardware: {len(names)} clusters named, 1 to {MAX_CLUSTERS} can be compared",
            "name them with commas, 4x4090,8xh100, or say any",
            code="out-of-range",
        )
    if names == [ANY]:
        sold = load_catalogue().accelerators.values()
        names = [part.name for part in sold if part.status == "confirmed"]
    return [_group(name) for name in names]


def _group(name: str) -> tuple[str, ...]:
    try:
        return clusters_of_part(name)
    except UnknownPartError:
        return (name,)  # a cluster in words, or the name of a file or an example


@dataclass(slots=True)
class HardwareSearch:
    """The job, and what was tried for it."""

    model: Source
    request: SolveRequest
    options: SolveOptions
    limits: HardwareLimits
    n_tried: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Clusters that cannot be searched, with the reason."""
    progress: Part | None = None
    """The part of the clusters that are searched now."""

    def candidate(self, words: str) -> Candidate | None:
        """Return the best plan on a cluster; None where none fits or ends in time."""
        model, cluster = read_inputs(self.model, words, self.request.overrides)
        price = self.limits.prices().get(cluster.cluster.pools[0].accelerator.name)
        if price is not None:
            overrides = (*self.request.overrides, ("pools.0.price_per_hour", price))
            model, cluster = read_inputs(self.model, words, overrides)
        model = one_recipe(model, self.options, "hardware is compared for one recipe")
        problem = make_problem(model, cluster, self.options)
        if not states_can_fit(problem, problem.pool.n_devices):
            return None
        self.n_tried += 1
        restrictions = replace(self.options.search_options(problem), n_finalists=1)
        if not any_fits(Context(problem, restrictions, problem.pool.n_devices)):
            return None
        found = self._plan(model, cluster, words)
        if found is None:
            return None
        done = Candidate(words, cluster, found, cluster.operations[0].price_per_device_hour)
        return done if done.ends_within(self.limits.days) else None

    def _plan(self, model: ModelInput, cluster: ClusterInput, words: str) -> Plan | None:
        command = SolveCommand(source_names(self.model, words)[0], words, self.request.overrides)
        execution = Execution(SerialExecutor(), progress=self.progress)
        extent = Extent(fewer_devices=False)
        options = replace(self.options, top=1)
        result = solve_inputs(model, cluster, options, execution, command, extent)
        return result.best if result.plans else None

    def answered(
        self, cluster: str, done: Sequence[Candidate], notes: tuple[str, ...]
    ) -> Recommendation:
        """Return the recommendation; its inputs are those of the first candidate."""
        groups, options, request = cluster_groups(cluster), self.options, self.request
        shown = done[0].words if done else groups[0][0]
        model, first = read_inputs(self.model, shown, request.overrides)
        names = source_names(self.model, shown)
        run_names = reference_name(request.reference)
        command = SolveCommand(*names, request.overrides, reference=run_names)
        days, prices = self.limits.days, sorted(self.limits.prices().items())
        within = f" and ends within {days:g} days" if days else ""
        priced = bool(done) and all(one.cost_usd is not None for one in done)
        order = "by cost" if priced else "by device time of a token (no prices, or no tokens)"
        scope = (
            f"{len(groups)} kinds of hardware, of each the fewest devices on which the job"
            f" fits{within}, {order}"
        )
        documents = (model.document, first.document, options.to_json())
        calibration = calibration_json(options.calibration)
        rows = [one.to_json() for one in done]
        return Recommendation(
            question="hardware",
            result_id=content_id("hardware", cluster, days, prices, *documents, calibration),
            inputs=inputs_json(model, first, options, names),
            calibration=calibration,
            answer={"clusters": rows, "refused": self.refused} if done else None,
            scope=scope,
            n_tried=self.n_tried,
            plan=done[0].plan if done else None,
            command=command.text(options, {}) if done else "",
            notes=notes + tuple(model.notes),
        )


def recommend_hardware(
    model: Source,
    cluster: str,
    request: SolveRequest,
    limits: HardwareLimits,
    progress: Progress = None,
) -> Recommendation:
    """Return which of some clusters does a job: the cheapest, else that of least device time.

    `cluster` lists clusters, parts, or is `any`. Of a part its sizes are tried upwards to the
    first on which the job fits and ends within `limits.days`. With a price for every candidate
    and the tokens of the run the order is by cost, else by device time of a token. Raises
    `SpecError` and `UsageError` for bad inputs.
    """
    limits.check()
    groups, done = cluster_groups(cluster), []
    read, _ = read_inputs(model, groups[0][0], request.overrides)
    request = request.over(SolveRequest.of_section(read.search).without_goals())
    options = request.options(default_top=1)
    check_options(options)
    options, notes = anchored_options(options, request.reference)
    search = HardwareSearch(model, request, options, limits)
    parts = pieces_of(whole_of(progress), len(groups))
    for part, group in zip(parts, groups, strict=True):
        search.progress = part
        try:
            if found := next(filter(None, map(search.candidate, group)), None):
                done.append(found)
        except (SearchError, SpecError) as error:
            if not cluster_words(group[0]):
                raise
            search.refused[group[0]] = str(error)
        if part is not None:
            part(1, 1)
    return search.answered(cluster, ordered(done), notes)


def ordered(done: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates by cost where all have one, else by device time of a token."""
    if all(one.cost_usd is not None for one in done):
        return sorted(done, key=lambda one: (one.cost_usd or 0.0, one.words))
    return sorted(done, key=lambda one: (one.device_s_per_token, one.words))
