"""All that one plan shows, as plain data: what the page, the HTML file and notebooks draw."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from costmodels.problem import Problem
from planner.analyze.bottleneck_levers import bound_of
from planner.analyze.plan_files import FileTargets, plan_files
from planner.analyze.trace.chrome_trace import trace_json
from planner.frameworks.emit import refusal_file
from planner.render.card.sentences import layout_words
from planner.render.plan_view.cards import (
    Amount,
    CardNumber,
    Deck,
    Derivation,
    Label,
    NumberTable,
    Words,
)
from planner.render.plan_view.figures import ViewFigure
from planner.render.plan_view.memory_figures import memory_by_stage, memory_over_step
from planner.render.plan_view.methods import Method, methods
from planner.render.plan_view.opened.bottleneck import Binding, binding
from planner.render.plan_view.opened.headline import Fact, add_headline
from planner.render.plan_view.opened.memory import add_memory_cards
from planner.render.plan_view.opened.time import add_time_cards
from planner.render.plan_view.rank_map import RankMap, rank_map
from planner.render.plan_view.rooflines import communication_roofline, compute_roofline
from planner.render.plan_view.sensitivities import elasticity_figure, next_steps
from planner.render.plan_view.sources import compute_figures, network_figures
from planner.render.plan_view.step_drawing import drawn_timeline
from planner.render.plan_view.step_figures import reached_rates, waterfall
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import Opened
from planner.solver.calibration.file import Calibration, load_calibration
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_names, framework_rules

TRACE_BLOCKS, TRACE_MICRO_BATCHES = 20_000, 32
"""Blocks of the trace that is downloaded, about 10 MB; micro-batches of that of a longer step."""


@dataclass(frozen=True, slots=True)
class FrameworkFiles:
    """What a framework needs to run the plan, or why it cannot."""

    name: str
    title: str
    files: tuple[tuple[str, str], ...]
    runs: bool


@dataclass(frozen=True)
class PlanView:
    """One plan, opened."""

    plan_id: str
    model: str
    cluster: str
    layout: str
    words: str
    """The layout as the card says it."""
    tiles: tuple[tuple[str, CardNumber], ...]
    """The numbers that come first, each with what it is."""
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]
    binding: Binding
    """What binds the plan, what relaxes it and what comes next."""
    warnings: tuple[tuple[str, CardNumber], ...]
    """Code of a warning and its text, which opens what it rests on."""
    waterfall: ViewFigure
    memory: ViewFigure
    memory_course: ViewFigure
    timeline: ViewFigure
    ranks: RankMap | None
    reached: ViewFigure
    rooflines: tuple[ViewFigure, ...]
    elasticities: ViewFigure
    next_words: Words
    next_table: NumberTable | None
    frameworks: tuple[FrameworkFiles, ...]
    commands: tuple[tuple[str, str], ...]
    """What a command does, and the command."""
    basis: tuple[tuple[str, str], ...]
    """Figures of the hardware and the calibration, with their sources."""
    methods: tuple[Method, ...]
    deck: Deck

    @property
    def figures(self) -> tuple[ViewFigure, ...]:
        """All figures in the order of the page."""
        return (
            self.waterfall,
            self.memory,
            self.memory_course,
            self.timeline,
            self.reached,
            *self.rooflines,
            self.elasticities,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain data: figures as Plotly JSON, words, tables, cards."""
        return {
            "plan_id": self.plan_id,
            "model": self.model,
            "cluster": self.cluster,
            "layout": self.layout,
            "words": self.words,
            "tiles": [{"name": name, **asdict(number)} for name, number in self.tiles],
            "facts": [
                {
                    "title": title,
                    "facts": [{"name": f.name, "words": words_json(f.sentence)} for f in facts],
                }
                for title, facts in self.facts
            ],
            "binding": {
                "says": words_json(self.binding.says),
                "compute": words_json(self.binding.compute),
                "relaxing": [words_json(sentence) for sentence in self.binding.relaxing],
                "next": words_json(self.binding.next),
                "others": [words_json(sentence) for sentence in self.binding.others],
                "memory": words_json(self.binding.memory),
            },
            "warnings": [
                {"code": code, "number": asdict(number)} for code, number in self.warnings
            ],
            "figures": [figure_data(one) for one in self.figures],
            "ranks": self.ranks
            and {
                "axes": list(self.ranks.axes),
                "units": [asdict(unit) for unit in self.ranks.units],
                "says": words_json(self.ranks.says),
                "table": table_json(self.ranks.table),
            },
            "next": {
                "words": words_json(self.next_words),
                "table": self.next_table and table_json(self.next_table),
            },
            "frameworks": [
                {"name": f.name, "title": f.title, "runs": f.runs, "files": dict(f.files)}
                for f in self.frameworks
            ],
            "commands": [list(pair) for pair in self.commands],
            "basis": [list(pair) for pair in self.basis],
            "methods": [asdict(method) for method in self.methods],
            "cards": {key: card.to_json() for key, card in self.deck.cards.items()},
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plan."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def words_json(sentence: Words) -> list[Any]:
    """Return a sentence as plain data: texts, names, numbers with the key of their card."""
    return [_part_json(part) for part in sentence]


def _part_json(part: Any) -> Any:
    if isinstance(part, CardNumber):
        return {"number": part.key, "text": part.text}
    return {"name": part.text} if isinstance(part, Label) else part


def table_json(table: NumberTable) -> dict[str, Any]:
    """Return a table as plain data."""
    rows = [[_part_json(cell) for cell in row] for row in table.rows]
    return {"heads": list(table.heads), "rows": rows, "marked": list(table.marked)}


def figure_data(one: ViewFigure) -> dict[str, Any]:
    """Return a figure as plain data."""
    data = one.chart.figure.to_plotly_json()
    data["layout"].pop("template", None)
    return {
        "key": one.chart.key,
        "title": one.chart.title,
        "says": one.chart.says,
        "caption": words_json(one.caption),
        "notes": list(one.chart.notes),
        "table": table_json(one.table),
        "figure": data,
    }


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a plan came about, as far as its view tells it."""

    calibration: Calibration | None = None
    """What priced it; the shipped one without it."""
    reference: str = ""
    """How the commands on the view name the plan: `RESULT.json#ID`, without it `last#ID`, the last
    result of `solve_command`."""
    framework: str = "any"
    """What the nearest other plans must run on."""
    solve_command: str = ""


def plan_view(
    model: ModelInput,
    cluster: ClusterInput,
    problem: Problem,
    plan: Plan,
    options: ViewOptions = ViewOptions(),
) -> PlanView:
    """Return the view of one plan; the first arguments are those of `result_store.open_plan`."""
    calibration = options.calibration or load_calibration()
    reference = options.reference or f"last#{plan.plan_id}"
    deck = Deck()
    times = add_time_cards(deck, problem, plan)
    memory = add_memory_cards(deck, problem, plan)
    facts = add_headline(deck, problem, plan, cluster.operations[0], calibration)
    wire = communication_roofline(deck, problem, plan)
    rooflines = (compute_roofline(deck, problem, plan), *((wire,) if wire else ()))
    bound = bound_of(problem, plan, options.framework, is_brief=True)
    next_words, table = next_steps(deck, problem, plan, bound)
    view = PlanView(
        plan_id=plan.plan_id,
        model=problem.shape.name,
        cluster=cluster.cluster.name,
        layout=shown_layout(plan.layout),
        words=layout_words(plan.layout, problem.pool.accelerator.noun),
        tiles=_tiles(deck, problem, plan),
        facts=facts,
        binding=binding(deck, problem, bound),
        warnings=_warnings(deck, plan),
        waterfall=waterfall(deck, problem, plan, times),
        memory=memory_by_stage(deck, problem, plan, memory),
        memory_course=memory_over_step(deck, problem, plan, memory),
        timeline=drawn_timeline(deck, problem, plan),
        ranks=rank_map(deck, problem, plan, cluster),
        reached=reached_rates(deck, problem, plan),
        rooflines=rooflines,
        elasticities=elasticity_figure(deck, problem, plan),
        next_words=next_words,
        next_table=table,
        frameworks=framework_files(
            (model, cluster, problem, plan), calibration, options.framework
        ),
        commands=commands(reference, plan, options.solve_command),
        basis=(
            *compute_figures(problem),
            *network_figures(problem),
            ("calibration", f"{calibration.name}, {calibration.content_hash[:12]}"),
        ),
        methods=methods({card.derivation.method for card in deck.cards.values()}),
        deck=deck,
    )
    return view


def _tiles(deck: Deck, problem: Problem, plan: Plan) -> tuple[tuple[str, CardNumber], ...]:
    """Return the numbers that come first."""
    names = {
        "step-time": "step time",
        "tokens-per-s": "throughput",
        "mfu": "MFU",
        "hfu": "HFU",
        f"memory-{plan.breakdown.peak_stage}-peak": "peak memory",
        "devices": "devices",
        "gpu-hours": f"{problem.pool.accelerator.noun.one}-hours of the run",
        "cost": "price of the run",
    }
    return tuple((name, deck.see(key)) for key, name in names.items() if key in deck.cards)


def _warnings(deck: Deck, plan: Plan) -> tuple[tuple[str, CardNumber], ...]:
    """Return the warnings of a plan; the text of each opens the figure that it goes by."""
    result, out = plan.breakdown, []
    causes: Mapping[str, str] = {
        "MEM": "headroom-share",
        "BUB101": "bubble-share",
        "BUB102": "micro-batches",
        "COM101": "network-share",
        "COM102": "layout-tp",
        "HOST": "time-host",
        "DIM": "layout-tp",
        "MOE": "layout-ep",
    }
    for warning in plan.warnings:
        cause = next(key for code, key in causes.items() if warning.code.startswith(code))
        card = deck.cards[cause]
        number = deck.add(
            f"warning-{warning.code.lower()}",
            f"warning {warning.code}",
            Amount(card.value, "", text=warning.text),
            Derivation(
                f"{card.name}: {card.derivation.formula}",
                card.derivation.substituted,
                f"planner.solver.answer.advice.plan_warnings; {card.derivation.source}",
                inputs=(("pipeline rank of the terms", str(result.critical_stage)),),
            ),
        )
        out.append((warning.code, number))
    return tuple(out)


def framework_files(
    opened: Opened, calibration: Calibration, framework: str
) -> tuple[FrameworkFiles, ...]:
    """Return the files of every framework that runs the plan, and why the others cannot.

    Those of the framework whose release `framework` names are for that release. Frameworks for
    other accelerators alone are left out.
    """
    out = []
    vendor = opened[2].pool.accelerator.vendor
    names = [x for x in framework_names() if vendor in framework_rules(x).vendors]
    for name in names or framework_names():
        targets = FileTargets([name], hosts=(), framework=framework)
        files = plan_files(opened, calibration, targets)
        runs = refusal_file(name) not in files
        out.append(FrameworkFiles(name, framework_rules(name).title, tuple(files.items()), runs))
    return tuple(sorted(out, key=lambda f: (not f.runs, framework_names().index(f.name))))


def commands(reference: str, plan: Plan, solve_command: str = "") -> tuple[tuple[str, str], ...]:
    """Return the commands that go on from here, each with what it does."""
    named = shlex.quote(reference)
    runs = plan.runs_on[0] if plan.runs_on else "megatron"
    first = [("the question; the other commands take its answer", solve_command)]
    return (
        *(first if solve_command else ()),
        ("all figures of the plan", f"planner show {named}"),
        (
            "why it is as it is, or one term down to its formula",
            f"planner explain {named} --term linear",
        ),
        ("this view as one HTML file", f"planner show {named} --html plan.html"),
        ("the files of a framework", f"planner emit {named} --for {runs} --out run"),
        ("where every rank runs", f"planner place {named}"),
        ("one step as a trace for Perfetto", f"planner trace {named} --out step.json"),
    )


def trace_file(problem: Problem, plan: Plan) -> str:
    """Return the trace of one step: whole, or of a long one its first and last micro-batches."""
    x = plan.layout
    blocks = sum(len(x.stages_of(r)) for r in range(x.pp))
    blocks *= 3 if x.schedule.startswith(("zb", "dual")) else 2
    cut = 0
    if blocks * x.n_passes > TRACE_BLOCKS:
        cut = max(1, min(TRACE_MICRO_BATCHES, TRACE_BLOCKS // blocks))
    return trace_json(problem, plan, cut)
