"""The inverse questions: what does this job need, and what is the most that this cluster takes?

Whether something fits is searched over the whole space of layouts (`searches.feasibility`). It
is not monotone in the number of devices, in the size of the model or in the micro-batch, because
heads, layers and batches must divide. There, one candidate after the other is searched, from a
bound that is monotone. In the sequence length it is monotone on a grid that leaves the layouts
the same; there bisection is exact. So it is where waiting only shrinks with the bandwidth.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from costmodels.breakdown import Breakdown, break_down
from costmodels.documentation.terms import COMPUTE_TERMS
from costmodels.parameters import total_params
from costmodels.plans import Layout
from costmodels.problem import Problem
from hardware.parts import Pool
from planner.analyze.recommend.answer import Recommendation
from planner.analyze.recommend.hardware import HardwareLimits, cluster_list, recommend_hardware
from planner.errors import SearchError, SpecError, UsageError
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_parts import calibration_json, inputs_json
from planner.solver.calibration.reference import reference_name
from planner.solver.execution import Execution
from planner.solver.keywords import RestrictKeywords, request_of_keywords
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.problem import make_problem
from planner.solver.recipes import one_recipe
from planner.solver.request import SolveRequest, anchored_options
from planner.solver.solve import Extent, solve_inputs
from planner.solver.sources import Source, read_inputs, source_names
from planner.solver.unsupported import check_options
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.progress import Progress
from searches.executors.executor import SerialExecutor
from searches.feasibility import any_fits, largest_true, least_true, states_can_fit
from searches.options import TOKENS_PER_CP
from searches.rules import Context
from searches.space.shape_space import divisors, largest_named, legal_degrees

QUESTIONS = (
    "devices",
    "hardware",
    "size",
    "sequence",
    "micro-batch",
    "rank",
    "bandwidth",
    "layout",
)
"""What can be asked."""
FAMILIES = ("both", "width", "depth")
"""How a model grows: `both` in proportion, or one of them."""

MAX_NODES = 1024
"""Most nodes tried unless told otherwise."""
MAX_SCALE = 64
"""Largest multiple of a model's width or depth that is tried."""
SCALE_PARTS = 8
"""A family grows in steps of one part of so many, or of as many as divide its widths."""
MAX_LAYERS, MAX_HEADS = 10_000, 100_000
"""Most that a model file may state."""
MAX_RANK = 4096
"""Largest rank of adapters that is tried."""
MAX_SEQ_LEN = 10_000_000
"""Longest sequence that a model file may state."""
SEQUENCE_STEP = 1024
TOLERANCE_FRAC = 0.02
"""Waiting that counts as hidden, as a share of the compute time."""
BANDWIDTH_STEP = 1.05
"""Ratio of neighbouring bandwidths: finer than the model is right."""
BANDWIDTH_STEPS = 142
"""Steps tried up and down from the present bandwidth: a factor of a thousand."""


@dataclass(slots=True)
class _Question:
    """One question: the inputs, and the searches made for it."""

    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    command: SolveCommand
    n_tried: int = 0
    fields: dict[str, object] = field(default_factory=dict)
    """Changed fields of the two files at the answer, by path."""
    notes: tuple[str, ...] = ()
    """Notes on the measured runs that anchor the calibration."""
    progress: Progress = None
    """Told how many problems were tried, of an open number, then how far the last search is."""

    def problem(self) -> Problem:
        """Return the problem as asked; `SearchError` for what is not modelled."""
        return make_problem(self.model, self.cluster, self.options)

    def context(self, problem: Problem) -> Context:
        """Return the search for any plan of a problem."""
        restrictions = replace(self.options.search_options(problem), n_finalists=1)
        return Context(problem, restrictions, problem.pool.n_devices)

    def fits(self, problem: Problem) -> bool:
        """Tell whether any plan of a problem fits."""
        self.n_tried += 1
        if self.progress is not None:
            self.progress(self.n_tried, 0)
        return any_fits(self.context(problem))

    def best(self, **fields: object) -> tuple["_Question", Result]:
        """Return the question with some fields changed, and what `solve` says to it."""
        model_fields = {
            p: v for p, v in fields.items() if p.split(".")[0] in ("model", "training")
        }
        cluster_fields = {p: v for p, v in fields.items() if p not in model_fields}
        model = model_from_dict(self.model.document, list(model_fields.items()))
        changed = replace(
            self,
            model=replace(model, notes=self.model.notes),
            cluster=cluster_from_dict(self.cluster.document, list(cluster_fields.items())),
            fields={**self.fields, **fields},
        )
        result = solve_inputs(
            changed.model,
            changed.cluster,
            replace(self.options, top=1),
            Execution(SerialExecutor(), progress=self.progress),
            self.command,
            Extent(fewer_devices=False),
        )
        return changed, result

    def answered(
        self, name: str, answer: Mapping[str, Any] | None, scope: str, plan: Plan | None
    ) -> Recommendation:
        """Return the recommendation with its identity and its command."""
        inputs = (self.model, self.cluster, self.options)
        command = self.command.text(self.options, self.fields) if plan else ""
        return Recommendation(
            question=name,
            result_id=content_id(
                name,
                scope,
                self.model.document,
                self.cluster.document,
                self.options.to_json(),
                calibration_json(self.options.calibration),
            ),
            inputs=inputs_json(*inputs, (self.command.model, self.command.cluster)),
            calibration=calibration_json(self.options.calibration),
            answer=answer,
            scope=scope,
            n_tried=self.n_tried,
            plan=plan,
            command=command,
            notes=self.notes
            + tuple(
                note
                for note in self.model.notes
                if not any(note.startswith(f"assumed {path} = ") for path in self.fields)
            ),
        )


class RecommendKeywords(RestrictKeywords, total=False):
    """Keywords of `planner.recommend`: those of its questions, then those of `planner.solve`."""

    most: int
    by: str
    step: int
    tolerance_frac: float
    days: float
    usd_per_device_hour: Mapping[str, float]
    progress: Progress


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """How far the questions look, each one's own; 0 and "" are its default."""

    n_nodes: int = 0
    """`devices`: most nodes tried."""
    family: str = ""
    """`size`: one of `FAMILIES`."""
    step_tokens: int = 0
    """`sequence`: lengths are multiples of it."""
    tolerance_frac: float = 0.0
    """`bandwidth`: waiting that counts as hidden, as a share of the compute time."""
    hardware: HardwareLimits = field(default_factory=HardwareLimits)
    """`hardware`: when the run must end, and prices."""

    def check(self, question: str) -> None:
        """Raise `UsageError` for an option of another question, or out of range."""
        for name, value, owner in (
            ("--most", self.n_nodes, "devices"),
            ("--by", self.family, "size"),
            ("--step", self.step_tokens, "sequence"),
            ("--tolerance", self.tolerance_frac, "bandwidth"),
            ("--days", self.hardware.days, "hardware"),
            ("--price", self.hardware.usd_per_device_hour, "hardware"),
        ):
            if value and question != owner:
                raise UsageError(
                    f"{name} belongs to the question {owner}, not to {question}",
                    "drop it",
                    code="belongs-to",
                )
        if self.family and self.family not in FAMILIES:
            raise UsageError(
                f"--by: unknown {self.family!r}",
                f"one of {', '.join(FAMILIES)}",
                code="unknown-name",
            )
        if not 0 <= self.n_nodes <= 1_000_000:
            raise UsageError(
                f"--most must be 1 to 1000000 nodes, not {self.n_nodes}",
                "--most 256",
                code="out-of-range",
            )
        if not 0 <= self.step_tokens <= MAX_SEQ_LEN:
            raise UsageError(
                f"--step must be 1 to {MAX_SEQ_LEN} tokens, not {self.step_tokens}",
                "--step 1024",
                code="out-of-range",
            )
        if not 0 <= self.tolerance_frac < 1:
            raise UsageError(
                f"--tolerance must be above 0 and below 1, not {self.tolerance_frac:g}",
                "a share of the compute time: --tolerance 0.02",
                code="out-of-range",
            )


def recommend(
    question: str,
    model: Source,
    cluster: Source,
    request: SolveRequest | None = None,
    **keywords: Unpack[RecommendKeywords],
) -> Recommendation:
    """Return the answer to one of `QUESTIONS` about a job on a cluster.

    `devices`: the fewest on which the job fits, up to `most` nodes. `size`: the largest model of
    the family of `model`, grown `by` width, depth or both. `sequence`: the longest that fits, in
    multiples of `step` tokens. `micro-batch`, `rank` (of adapters): the largest that fits.
    `hardware`: which of several clusters is the cheapest (`recommend_hardware`). `bandwidth`: for
    each axis the least on its link at which the first plan waits at most `tolerance_frac` of its
    compute time. `layout`: the decision walked axis by axis, and where that ends. `progress` is
    told (done, total), a total of 0 where it is open. The other
    keywords are those of `solve`, or one `request` of them. Raises `SpecError` for a bad input and
    `UsageError` for a bad option.
    """
    if question not in QUESTIONS:
        raise UsageError(f"unknown question {question!r}", f"one of {', '.join(QUESTIONS)}")
    limits = QuestionLimits(
        keywords.get("most", 0),
        keywords.get("by", ""),
        keywords.get("step", 0),
        keywords.get("tolerance_frac", 0.0),
        HardwareLimits(keywords.get("days", 0.0), keywords.get("usd_per_device_hour", {})),
    )
    limits.check(question)
    request = request_of_keywords(RecommendKeywords, request, keywords)
    if question == "hardware":
        clusters, told = cluster_list(cluster), keywords.get("progress")
        return recommend_hardware(model, clusters, request, limits.hardware, told)
    read = read_inputs(model, cluster, request.overrides)
    request = request.over(SolveRequest.of_section(read[0].search).without_goals())
    options = request.options(default_top=1)
    check_options(options)
    options, notes = anchored_options(options, request.reference)
    inputs = one_recipe(read[0], options, "this question is answered for one recipe"), read[1]
    names, run_names = source_names(model, cluster), reference_name(request.reference)
    command = SolveCommand(*names, request.overrides, reference=run_names)
    told = keywords.get("progress")
    requested = _Question(*inputs, options, command, notes=notes, progress=told)
    if question == "devices":
        return _fewest_devices(requested, limits.n_nodes or MAX_NODES)
    if question == "size":
        return _largest_model(requested, limits.family or FAMILIES[0])
    if question == "sequence":
        return _longest_sequence(requested, limits.step_tokens or SEQUENCE_STEP)
    if question == "micro-batch":
        return _largest_micro_batch(requested)
    if question == "rank":
        return _largest_rank(requested)
    if question == "layout":
        return _walked(requested)
    return _least_bandwidth(requested, limits.tolerance_frac or TOLERANCE_FRAC)


def node_counts(pool: Pool, most_nodes: int) -> Iterator[tuple[int, int]]:
    """Yield (nodes, devices per node) from one device upwards: parts of a node, then whole ones.

    Parts of a node are its divisors; a scale-up domain over several nodes has no parts.
    """
    if pool.scale_up_domain <= pool.devices_per_node:
        yield from ((1, d) for d in divisors(pool.devices_per_node)[:-1])
    yield from ((n, pool.devices_per_node) for n in range(1, most_nodes + 1))


def _fewest_devices(question: _Question, most_nodes: int) -> Recommendation:
    """Return the fewest devices: counts are searched upwards from the least that holds the states.

    The bound is monotone, so that it is found by passing over counts below it unsearched; whether
    a plan fits is not, so that every count from there on is searched.
    """
    problem = question.problem()
    pool, full = problem.pool, problem.pool.devices_per_node
    scope = f"every number of devices from 1 to {most_nodes} node(s), parts of a node by divisors"
    for nodes, per_node in node_counts(pool, most_nodes):
        if not states_can_fit(problem, nodes * per_node):
            continue
        fields: dict[str, object] = {"pools.0.nodes": nodes}
        if per_node != full:
            domain = math.gcd(pool.scale_up_domain, per_node)
            nics = max(1, pool.nics_per_node * per_node // full)
            fields["pools.0.accelerators_per_node"] = per_node
            fields["pools.0.scale_up_domain"] = domain
            fields["pools.0.nics_per_node"] = nics
        elif full < nodes * per_node < pool.scale_up_domain:
            fields["pools.0.scale_up_domain"] = nodes * per_node  # part of a rack
        try:
            changed = cluster_from_dict(question.cluster.document, list(fields.items()))
        except SpecError:  # a count that a scale-up domain over several nodes does not divide
            continue
        if question.fits(make_problem(question.model, changed, question.options)):
            changed_question, result = question.best(**fields)
            answer = {"nodes": nodes, "n_devices": nodes * per_node}
            return changed_question.answered("devices", answer, scope, result.best)
    return question.answered("devices", None, scope, None)


def family_parts(problem: Problem) -> int:
    """Return into how many equal parts the widths of a model can be cut, at most `SCALE_PARTS`.

    A part has its share of hidden, heads, KV heads (unless there is one for all) and ffn.
    """
    shape = problem.shape
    kv = shape.kv_heads if shape.kv_heads > 1 else 0
    return math.gcd(shape.hidden, shape.heads, shape.ffn, kv, SCALE_PARTS)


def member(problem: Problem, by: str, k: int, parts: int) -> dict[str, int]:
    """Return layers and widths of the family's member of scale k / parts.

    Width: hidden, heads, kv_heads (unless 1) and ffn times k / parts, head_dim as it is. Depth:
    layers times k / parts, rounded, at least 1.
    """
    shape = problem.shape
    wide, deep = (k if by != "depth" else parts), (k if by != "width" else parts)
    return {
        "layers": max(1, round(shape.layers * deep / parts)),
        "hidden": shape.hidden * wide // parts,
        "heads": shape.heads * wide // parts,
        "kv_heads": shape.kv_heads * wide // parts if shape.kv_heads > 1 else 1,
        "head_dim": shape.head_dim,
        "ffn": shape.ffn * wide // parts,
    }


def _largest_model(question: _Question, by: str) -> Recommendation:
    """Return the largest member: searched downwards from the largest whose states can fit.

    Parameters grow with the scale, so that this bound is found by bisection; whether heads and
    layers divide does not, so that every member below it is searched.
    """
    problem = question.problem()
    shape = problem.shape
    own = {
        "moe": shape.n_experts,
        "mla": shape.latent,
        "variants": shape.variants,
        "per_layer": shape.per_layer,
    }
    if what := next((name for name, stated in own.items() if stated), ""):
        raise UsageError(
            f"model.{what}: the family of a model with it is not defined in this version",
            f"ask for a model file without {what}, or search sizes of your own with --set",
        )
    parts = SCALE_PARTS if by == "depth" else family_parts(problem)

    def scaled(k: int) -> Problem:
        sizes: dict[str, Any] = member(problem, by, k, parts)
        return replace(problem, shape=replace(problem.shape, **sizes))

    def possible(k: int) -> bool:
        sizes = member(problem, by, k, parts)
        loadable = sizes["layers"] <= MAX_LAYERS and sizes["heads"] <= MAX_HEADS
        return loadable and states_can_fit(scaled(k), problem.pool.n_devices)

    top = largest_true(possible, 1, MAX_SCALE * parts)
    grown = {"both": "width and depth", "width": "width", "depth": "depth"}[by]
    scope = (
        f"members of 1/{parts}, 2/{parts}, ... of the {grown}, head_dim, vocabulary and batch as "
        f"they are, down from {top}/{parts}: more parameters than that exceed the memory of all "
        "devices"
    )
    for k in range(top, 0, -1):
        if question.fits(scaled(k)):
            sizes = member(problem, by, k, parts)
            changed_question, result = question.best(
                **{f"model.{name}": v for name, v in sizes.items()}
            )
            answer = {
                "by": grown,
                "scale": k / parts,
                "params": round(total_params(scaled(k).shape, problem.job.seq_len)),
                **sizes,
            }
            return changed_question.answered("size", answer, scope, result.best)
    return question.answered("size", None, scope, None)


def _lengths(
    question: _Question, problem: Problem, step: int, max_seq_len: int
) -> list[tuple[int, int, int]]:
    """Return (least, most, grid) of the lengths for which the search tries the same cp, tokens."""
    context = question.context(problem)
    degrees = [d for d in divisors(context.n_devices) if context.options.allows("cp", d)]
    starts = [0]
    if not largest_named(context, "cp"):
        starts = [
            0,
            *(d * TOKENS_PER_CP for d in degrees if 1 < d <= max_seq_len // TOKENS_PER_CP),
        ]
    results = []
    for least, end in zip(starts, [*(s - 1 for s in starts[1:]), max_seq_len], strict=True):
        tried = degrees if len(starts) == 1 else [d for d in degrees if d * TOKENS_PER_CP <= least]
        twice = 2 * math.lcm(*tried) if max(tried, default=1) > 1 else 1
        tp = math.lcm(*legal_degrees(context, "tp"))
        grid = math.lcm(step, tp * twice)
        if -(-max(least, 1) // grid) * grid <= end:
            results.append((least, end, grid))
    return results


def _longest_sequence(question: _Question, step: int) -> Recommendation:
    """Return the longest sequence, by bisection over grids on which fitting is monotone.

    Lengths are parted where the search begins to try a larger cp. Within a part, the grid is
    multiples of every tp times twice every cp: on it all lengths have the same layouts, and the
    memory of each grows with the length. The part of the longest sequences of which the shortest
    fits holds the answer.
    """
    problem = question.problem()
    maximum = MAX_SEQ_LEN
    if problem.shape.positions == "learned" and problem.shape.max_positions:
        maximum = min(maximum, problem.shape.max_positions)
    grid, k = step, 0
    for least, end, grid in reversed(_lengths(question, problem, step, maximum)):

        def fits(k: int, grid: int = grid) -> bool:
            return question.fits(replace(problem, job=replace(problem.job, seq_len=k * grid)))

        first = max(1, -(-least // grid))
        k = largest_true(fits, first, end // grid) if fits(first) else 0
        if k:
            break
    scope = (
        f"multiples of {grid} tokens up to {maximum}, {problem.job.global_batch} "
        f"sequences a step: "
        "lengths with the same layouts, and each layout's memory grows with the length"
    )
    if k == 0:
        return question.answered("sequence", None, scope, None)
    fields: dict[str, object] = {"training.seq_len": k * grid}
    if 0 < problem.job.tokens < k * grid * problem.job.global_batch:
        fields["training.tokens"] = "null"  # less than one step of this length
    changed_question, result = question.best(**fields)
    return changed_question.answered("sequence", {"seq_len": k * grid}, scope, result.best)


def _largest_micro_batch(question: _Question) -> Recommendation:
    """Return the largest micro-batch: all divisors of the global batch, from the largest down."""
    options = question.options
    if {"mbs"} & {*options.pins, *options.only, *options.at_most}:
        raise UsageError(
            "mbs is what is asked for and cannot be restricted", "drop mbs", code="bad-value"
        )
    problem = question.problem()
    sizes = divisors(problem.job.global_batch)
    scope = f"every divisor of the global batch of {problem.job.global_batch}, the largest first"
    for mbs in reversed(sizes):
        pinned = replace(question, options=replace(options, pins={**options.pins, "mbs": mbs}))
        fits = pinned.fits(problem)
        question.n_tried = pinned.n_tried
        if fits:
            changed_question, result = pinned.best()
            return changed_question.answered("micro-batch", {"mbs": mbs}, scope, result.best)
    return question.answered("micro-batch", None, scope, None)


def _largest_rank(question: _Question) -> Recommendation:
    """Return the largest rank of adapters, of powers of two: memory grows with the rank."""
    problem = question.problem()
    tuning = problem.job.tuning
    if tuning is None:
        raise UsageError(
            f"rank: task {problem.job.task} trains no adapters",
            "ask for one that does: --task lora or --task qlora",
            code="belongs-to",
        )

    def fits(power: int) -> bool:
        ranked = replace(problem.job, tuning=replace(tuning, rank=2**power))
        return question.fits(replace(problem, job=ranked))

    most = math.floor(math.log2(min(MAX_RANK, problem.shape.hidden)))
    scope = f"powers of two up to {2**most}: the memory of each layout grows with the rank"
    power = largest_true(fits, 0, most)
    if power < 0:
        return question.answered("rank", None, scope, None)
    changed_question, result = question.best(**{"training.lora.rank": 2**power})
    return changed_question.answered("rank", {"rank": 2**power}, scope, result.best)


def _walked(question: _Question) -> Recommendation:
    """Return the walk to a layout, and the best plan."""
    from planner.analyze.recommend.walk import walk_to_layout

    _, result = question.best()
    scope = (
        "every value searched with what was decided before, later degrees at 1, on all devices; "
        "beside it the best plan of the whole space"
    )
    if not result.plans:
        return question.answered("layout", None, scope, None)
    inputs = question.model, question.cluster, question.options
    outcome = walk_to_layout(*inputs, result, question.progress)
    question.n_tried += outcome.n_tried
    return question.answered("layout", outcome.to_json(), scope, result.best)


def with_bandwidth(problem: Problem, link: str, ratio: float) -> Problem:
    """Return the problem with the bandwidth of one link times `ratio`, latencies as they are.

    `scale-up` moves what the part reaches inside its domain, `scale-out` the network ports.
    """
    pool = problem.pool
    if link == "scale-out":
        nic = replace(pool.nic, bytes_per_s=pool.nic.bytes_per_s * ratio)
        return replace(problem, pool=replace(pool, nic=nic))
    part = pool.accelerator
    faster = replace(
        part,
        scale_up_bytes_per_s=part.scale_up_bytes_per_s * ratio,
        ring_bytes_per_s=part.ring_bytes_per_s * ratio,
        in_switch_all_reduce_bytes_per_s=part.in_switch_all_reduce_bytes_per_s * ratio,
    )
    return replace(problem, pool=replace(pool, accelerator=faster))


def waited_compute_s(breakdown: Breakdown) -> float:
    """Return the time that a plan computes, seconds per step: what communication can hide in."""
    return sum(breakdown.time_s.get(term, 0.0) for term in (*COMPUTE_TERMS, "recompute"))


def least_bandwidth_ratio(
    problem: Problem, layout: Layout, axis: str, link: str, allowed_s: float, monotone: bool
) -> float | None:
    """Return the least multiple of a link's bandwidth from which an axis waits within `allowed_s`.

    Multiples are powers of `BANDWIDTH_STEP`. None when even the largest does not do. With
    `monotone`, waiting never grows with the bandwidth and bisection finds the multiple; otherwise
    all are priced, and it must do from there on.
    """

    def hides(step: int) -> bool:
        changed = with_bandwidth(problem, link, BANDWIDTH_STEP**step)
        return break_down(changed, layout).time_s[axis] <= allowed_s

    low, high = -BANDWIDTH_STEPS, BANDWIDTH_STEPS
    if monotone:
        step = least_true(hides, low, high)
    else:
        step = high + 1
        while step > low and hides(step - 1):
            step -= 1
    return BANDWIDTH_STEP**step if step <= high else None


def _links(breakdown: Breakdown) -> dict[str, str]:
    """Return the slowest link that each axis of a plan crosses."""
    links: dict[str, str] = {}
    for transfer in breakdown.transfers:
        if transfer.tier == "host":
            continue
        if transfer.tier != "scale-up":
            links[transfer.axis] = "scale-out"
        links.setdefault(transfer.axis, "scale-up")
    return links


def _least_bandwidth(question: _Question, tolerance_frac: float) -> Recommendation:
    """Return, for each axis of the first plan, the least bandwidth at which it hides.

    The plan stays the same. Every collective takes the fastest of algorithms whose times fall
    with the bandwidth, so that the wait of tp falls with that of its link, and the wait of pp with
    that of a link that tp does not use. Otherwise layers get shorter too, and with them what other
    traffic hides behind; and dp hides behind the rank that suffers most, which may change. Those
    are priced at every step instead of bisected.
    """
    problem = question.problem()
    _, result = question.best()
    scope = (
        f"the plan below at bandwidths in steps of {BANDWIDTH_STEP - 1:.0%}, one link at a time, "
        "latencies as they are"
    )
    if not result.plans:
        raise SearchError(
            "nothing fits, so there is no plan whose traffic could hide",
            f"see {question.command.text(question.options, {})}",
        )
    plan = result.best
    present, allowed_s = plan.breakdown, tolerance_frac * waited_compute_s(plan.breakdown)
    links, rows = _links(present), []
    for axis, link in links.items():
        monotone = axis == "tp" or (axis == "pp" and links.get("tp") != link)
        ratio = least_bandwidth_ratio(problem, plan.layout, axis, link, allowed_s, monotone)
        fastest = with_bandwidth(problem, link, BANDWIDTH_STEP**BANDWIDTH_STEPS)
        now = link_bytes_per_s(problem.pool, link)
        rows.append(
            {
                "axis": axis,
                "link": link,
                "bytes_per_s": now,
                "least_bytes_per_s": None if ratio is None else now * ratio,
                "wait_s": present.time_s[axis],
                "allowed_s": allowed_s,
                "floor_s": break_down(fastest, plan.layout).time_s[axis],
            }
        )
    question.n_tried += 1
    answer = {
        "tolerance_frac": tolerance_frac,
        "compute_s": waited_compute_s(present),
        "axes": rows,
    }
    return question.answered("bandwidth", answer, scope, plan)


def link_bytes_per_s(pool: Pool, link: str) -> float:
    """Return the data-sheet bandwidth, one-way: of a device inside its domain, or of one port."""
    return pool.nic.bytes_per_s if link == "scale-out" else pool.accelerator.scale_up_bytes_per_s
