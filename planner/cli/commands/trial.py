"""The command `planner trial`: a shortlist and its scripts, and the logs read back."""

import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from planner.analyze.plan_files import header_lines
from planner.cli.arguments import check_format
from planner.cli.command_arguments import TrialArguments
from planner.cli.files import write_files
from planner.cli.progress import TerminalProgress
from planner.errors import EmitError, FileError, SearchError, UsageError
from planner.frameworks.emit import refusal_file
from planner.frameworks.emitted_text import nodes
from planner.frameworks.launchers.files import parse_launchers
from planner.frameworks.registry import default_stack, named_framework
from planner.measure.trial.logs import MAX_BYTES, read_log
from planner.measure.trial.rerank import (
    Reranked,
    Trialled,
    merged,
    mismatch,
    rerank,
    trial_runs_of,
    without_absurd,
)
from planner.measure.trial.scripts import STEPS, ShortRuns, readme, trial_files
from planner.measure.trial.shortlist import (
    N_RANKED,
    NEAR_FRAC,
    Shortlist,
    distinct_layouts,
    shortlist,
)
from planner.render.answers.inputs import calibration_parts
from planner.render.answers.plan_table import plan_grid
from planner.render.answers.result import heading_parts
from planner.render.document import text_of
from planner.render.nouns import noun_of
from planner.render.terminal import lines_of, terminal_width
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_parts import calibration_json
from planner.solver.answer.result_store import open_plan, read_options, save_result
from planner.solver.calibration.reference import reference_json
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.recipes import with_numerics
from planner.solver.solve import solve
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.text_lines import WIDTH, wrapped
from planner.units import GIB
from searches.executors.executor import ExecutorError, make_executor
from searches.frameworks.registry import framework_names, framework_rules

RESULT, TRIAL, REFERENCE = "result.json", "trial.json", "reference.yaml"
"""Files of a trial's folder: the ranking, the shortlist, the measured runs."""
MODEL, CLUSTER = "model.yaml", "cluster.yaml"
_LOG_ENDINGS = (".log", ".txt", ".out")
MIN_STEPS_ASKED, MAX_STEPS = 10, 10_000
SHOWN = 10
"""Plans of the ranking after a trial that are printed."""


def run_trial(model: str, cluster: str, arguments: TrialArguments, typed: Sequence[str]) -> int:
    """Run `planner trial MODEL CLUSTER`; return the exit code.

    `typed` is the command as the user wrote it.
    """
    form, out = arguments.form, arguments.out
    steps = STEPS if arguments.steps is None else arguments.steps
    check_format(form)
    if not model or not cluster:
        fix = "planner trial MODEL CLUSTER --out DIR; planner trial --read DIR reads the logs"
        raise UsageError("trial needs MODEL and CLUSTER, or --read DIR", fix)
    if arguments.log:
        raise UsageError("--log belongs to --read DIR", "drop it")
    framework = named_framework(arguments.framework or "megatron")
    if not MIN_STEPS_ASKED <= steps <= MAX_STEPS:
        message = f"--steps must be {MIN_STEPS_ASKED} to {MAX_STEPS}, not {steps}"
        raise UsageError(message, f"--steps {STEPS}")
    launchers = parse_launchers(arguments.launcher or "torchrun")
    request = arguments.request().model_copy(
        update={
            "framework": framework,
            "top": N_RANKED,
            "objective": "step_time",
            "all_variants": True,
        }
    )
    result = solve(model, cluster, request, progress=TerminalProgress())
    save_result(result)
    candidates = _runnable(result, framework)
    if result.plans and not candidates:
        message = f"{framework} runs none of the {len(result.plans)} plans"
        raise SearchError(message, "name another --framework")
    if not candidates:
        sys.stdout.write(result.dumps() if form == "json" else text_of(result, terminal_width()))
        return result.exit_code
    candidates = [candidates[i] for i in distinct_layouts([plan.layout for plan in candidates])]
    outcome = shortlist(
        [plan.breakdown.time_s for plan in candidates], [plan.layout for plan in candidates]
    )
    chosen = [candidates[i] for i in outcome.chosen]
    trial = _Trial(result, chosen, outcome, framework, steps)
    written: list[str] = []
    if out:
        question = shlex.join(["planner", *typed])
        written = _write(Path(out), trial, launchers, question)
    if form == "json":
        sys.stdout.write(json.dumps(trial.to_json(), indent=1) + "\n")
    else:
        sys.stdout.write(_trial_text(trial, out, written))
    return result.exit_code


@dataclass(frozen=True, slots=True)
class _Trial:
    """Plans worth timing, and how they are run."""

    result: Result
    plans: Sequence[Plan]
    shortlist: Shortlist
    framework: str
    steps: int

    def to_json(self) -> dict[str, Any]:
        """Return what trial.json holds."""
        return {
            "schema_version": "1.0",
            "result_id": self.result.result_id,
            "framework": self.framework,
            "steps": self.steps,
            "shortlist": self.shortlist.to_json(),
            "plans": [
                {
                    "plan_id": plan.plan_id,
                    "rank": plan.rank,
                    "folder": _folder(plan),
                    "predicted_s": plan.step_time_s,
                }
                for plan in self.plans
            ],
        }


def _runnable(result: Result, framework: str) -> list[Plan]:
    """Return the plans that a framework runs on whole nodes."""
    cluster = cluster_from_dict(result.inputs["cluster"])
    pools = {pool.name: pool for pool in cluster.cluster.pools}
    return [
        plan
        for plan in result.plans
        if framework in plan.runs_on and nodes(plan.layout, pools[plan.pool]) != (0, 0)
    ]


def _folder(plan: Plan) -> str:
    return f"{plan.rank}-{plan.plan_id}"


def promise(choice: Shortlist) -> list[str]:
    """Return what a shortlist promises, in sentences."""
    n = len(choice.chosen)
    if n == choice.n_candidates:
        return [f"These are all {n} plans that run."]
    return [
        f"One of these {n} of {choice.n_candidates} is the fastest, or within {NEAR_FRAC:.0%} of "
        f"it, with probability {choice.probability:.2f}; the first alone with "
        f"{choice.probability_of_first:.2f}.",
        f"Expected regret: {choice.expected_regret:.1%} after timing all {n}, "
        f"{choice.regret_of_first:.1%} with the first alone.",
    ]


def _write(folder: Path, trial: _Trial, launchers: tuple[str, ...], question: str) -> list[str]:
    """Write the folder of a trial; return the names of what is in it."""
    result = trial.result
    model = model_from_dict(result.inputs["model"])
    cluster = cluster_from_dict(result.inputs["cluster"])
    short_runs = ShortRuns(trial.framework, trial.steps, launchers)
    runs = []
    for plan in trial.plans:
        own, pool = with_numerics(model, plan.words), cluster.pool(plan.pool)
        header = header_lines((own, pool), plan, plan.breakdown, result.result_id)
        files = trial_files(own, pool, plan, header, short_runs)
        write_files(folder / _folder(plan), files)
        runs.append((_folder(plan), plan))
    remarks = promise(trial.shortlist)
    top = {
        "README.md": readme(runs, trial.framework, trial.steps, question, remarks),
        RESULT: result.dumps(),
        TRIAL: json.dumps(trial.to_json(), indent=1) + "\n",
        MODEL: _yaml(result.inputs["model"]),
        CLUSTER: _yaml(result.inputs["cluster"]),
    }
    write_files(folder, top)
    return ["README.md", *(name for name, _ in runs)]


def _yaml(data: Any) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _trial_text(trial: _Trial, out: str, written: Sequence[str]) -> str:
    lines = [*lines_of(heading_parts(trial.result)), ""]
    lines += [
        f"worth timing with {framework_rules(trial.framework).title}:",
        *lines_of([plan_grid(trial.plans, noun=noun_of(trial.result))]),
        "",
    ]
    for sentence in promise(trial.shortlist):
        lines += wrapped("", sentence)
    if out:
        lines += wrapped("wrote", f"{out}: {', '.join(written)}")
        lines.append(f"next: run them as {out}/README.md says, then planner trial --read {out}")
    else:
        lines.append("next: the same with --out DIR writes their short runs")
    return "\n".join(lines) + "\n"


def run_trial_read(model: str, cluster: str, arguments: TrialArguments) -> int:
    """Run `planner trial --read DIR`; return the exit code (3 where no log says anything)."""
    folder, form = arguments.read, arguments.form
    check_format(form)
    for name, value in _options_of_search(model, cluster, arguments).items():
        if value:
            raise UsageError(f"{name} does not go with --read", "the folder holds the question")
    place = Path(folder)
    data, result = _read_trial(place)
    options = read_options(result["inputs"]["options"])
    named = _named_logs(arguments.log, [one["plan_id"] for one in data["plans"]])
    n_steps = int(data.get("steps", 0))
    trialled = [_trialled(place, one, named, n_steps) for one in data["plans"]]
    software = data["framework"], _own_stack(options.stack, data["framework"])
    trialled = without_absurd(trialled, *software, options.calibration)
    runs = trial_runs_of(trialled, *software)
    before = {plan["plan_id"]: plan["rank"] for plan in result["plans"]}
    try:
        executor = make_executor("automatic", None)
        outcome = rerank(trialled, runs, result["inputs"], options, before, executor)
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error
    if runs:
        texts = [reference_json(run, MODEL, CLUSTER) for run in runs]
        write_files(place, {REFERENCE: _yaml(texts)})
    if form == "json":
        sys.stdout.write(json.dumps(outcome.to_json(), indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.write(
            reranked_text(outcome, folder, data["framework"], replace(options, stack=software[1]))
        )
    return 0 if runs else 3


def _options_of_search(model: str, cluster: str, arguments: TrialArguments) -> dict[str, object]:
    """Return what the other form of the command takes: with --read it has no meaning."""
    return {
        "MODEL": model,
        "CLUSTER": cluster,
        "--pin": arguments.pin,
        "--only": arguments.only,
        "--max": arguments.max_,
        "--set": arguments.set_,
        "--framework": arguments.framework,
        "--stack": arguments.stack,
        "--pool": arguments.pool,
        "--out": arguments.out,
        "--calibration": arguments.calibration,
        "--reference": arguments.reference,
        "--allow": arguments.allow,
        "--steps": arguments.steps is not None,
        "--launcher": arguments.launcher,
        "--time-limit": arguments.time_limit is not None,
    }


def _own_stack(stack: str, framework: str) -> str:
    """Return the stack that was chosen by hand; empty where it is the framework's."""
    return "" if stack == default_stack(framework) else stack


def _read_trial(place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of trial.json and result.json of a folder."""
    fix = "name the folder that planner trial --out DIR wrote"
    results = []
    for name, keys in ((TRIAL, ("framework", "plans")), (RESULT, ("inputs", "plans"))):
        try:
            data = json.loads((place / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"--read: {place / name}: {error.strerror}", fix) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise FileError(f"--read: {place / name} is not as written: {error}", fix) from None
        if not isinstance(data, dict) or any(key not in data for key in keys):
            raise UsageError(f"--read: {place / name} is not as planner trial writes it", fix)
        results.append(data)
    return results[0], results[1]


def _named_logs(logs: Sequence[str], plan_ids: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of `--log PLAN=FILE` by plan id."""
    arguments: dict[str, list[Path]] = {}
    for item in logs:
        plan, equals, file = item.partition("=")
        matches = [name for name in plan_ids if plan and name.startswith(plan)]
        if not equals or len(matches) != 1:
            raise UsageError(
                f"--log: {item!r} names no plan of the trial",
                f"--log PLAN=FILE with one of {', '.join(plan_ids)}",
            )
        arguments.setdefault(matches[0], []).append(Path(file))
    return arguments


def _trialled(
    place: Path, one: dict[str, Any], logs_by_plan: dict[str, list[Path]], n_steps: int
) -> Trialled:
    """Return a plan of the shortlist with what its logs say."""
    model, cluster, problem, plan = open_plan(f"{place / RESULT}#{one['plan_id']}")
    files = logs_by_plan.get(one["plan_id"])
    if files is None:
        files = _logs_in(place / str(one["folder"]))
    if not files:
        why = f"no log: none in {place / str(one['folder'])}, and none given with --log"
        return Trialled(plan, model, cluster, None, why)
    layout, job = plan.layout, problem.job
    reading = merged(
        [
            read_log(_tail(file), job.tokens_per_step, layout.gbs, layout.n_devices)
            for file in files
        ],
        n_steps,
    )
    assert reading is not None  # there are files
    why = mismatch(reading, layout, model)
    if not why and reading.step_s is None and not reading.ran_out:
        why = reading.notes[0] if reading.notes else "no step time"
    return Trialled(plan, model, cluster, reading, why)


def _logs_in(folder: Path) -> list[Path]:
    """Return the logs in a plan's folder, in the order of their names."""
    if not folder.is_dir():
        return []
    no_logs = {*map(refusal_file, framework_names()), "torchtitan-toml.txt"}
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in _LOG_ENDINGS and path.name not in no_logs
    )


def _tail(file: Path) -> str:
    """Return the text of a log, of a very long one its end."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - MAX_BYTES))
            return stream.read().decode("utf-8", errors="replace")
    except OSError as error:
        raise EmitError(f"cannot read {file}: {error.strerror}", "--log PLAN=FILE") from None


def reranked_text(reranked: Reranked, folder: str, framework: str, options: SolveOptions) -> str:
    """Return the answer of `planner trial --read` as text of at most 100 columns, commands apart.

    `options` are those of the trial, to write the command that asks the same again.
    """
    lines = [f"trial in {folder} with {framework_rules(framework).title}", ""]
    lines += _log_rows(reranked.trialled)
    for one in reranked.trialled:
        message = [one.refused] * bool(one.refused)
        message += [
            note for note in (one.reading.notes if one.reading else ()) if note not in message
        ]
        for text in message:
            lines += wrapped(f"  {one.plan.plan_id}:", text)
    lines.append("")
    if reranked.anchored is None:
        lines += wrapped(
            "", "No log gives a step time or says that memory ran out: nothing to go by."
        )
        return "\n".join(lines) + "\n"
    used = calibration_json(reranked.anchored.calibration)
    lines += lines_of(calibration_parts({"calibration": True}, used, reranked.anchored.notes))
    lines += ["", *_ranking_rows(reranked)]
    if any(row.measured for row in reranked.rows):
        lines += wrapped(
            "",
            f"better: probability that it beats the best measured by {NEAR_FRAC:.0%}; predictions "
            "carry what measured plans like them were off by",
        )
    lines += ["", *_changes(reranked)]
    best = next((row for row in reranked.rows if row.measured), None)
    if best:
        plan = best.plan.plan_id
        lines.append(f"next: planner emit {folder}/{RESULT}#{plan} --for {framework} --out DIR")
    command = SolveCommand(
        f"{folder}/{MODEL}", f"{folder}/{CLUSTER}", reference=f"{folder}/{REFERENCE}"
    )
    lines.append(f"      {command.text(options, {})}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Return aligned lines; the columns of `left` are words."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        cells = [
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return ("  " + "  ".join(cells)).rstrip()

    return [line(titles), *map(line, rows)]


def _log_rows(trialled: Sequence[Trialled]) -> list[str]:
    def row(one: Trialled) -> list[str]:
        read = one.reading
        if read is None or one.refused:
            state = "no log" if read is None else "not used"
            return [
                one.plan.plan_id,
                "-",
                "-",
                state,
                "-",
                f"{one.plan.step_time_s:.3f}",
                "-",
                "-",
            ]
        peak = f"{read.peak[0] / GIB:.1f} {read.peak[1]}" if read.peak else "-"
        step = one.step_s
        return [
            one.plan.plan_id,
            str(len(read.steps_s)),
            str(read.n_warm_up),
            f"{step:.3f}" if step else "out of memory",
            f"{read.spread:.1%}" if step else "-",
            f"{one.plan.step_time_s:.3f}",
            f"{step / one.plan.step_time_s:.2f}" if step else "-",
            peak,
        ]

    titles = ["plan", "steps", "warm-up", "step s", "spread", "predicted", "ratio", "peak GiB"]
    return _table(titles, [row(one) for one in trialled], (0, 7))


def _ranking_rows(reranked: Reranked) -> list[str]:
    last = max((i for i, row in enumerate(reranked.rows) if row.measured), default=0)
    shown = [
        (rank, row)
        for rank, row in enumerate(reranked.rows, start=1)
        if rank <= SHOWN or (row.measured and rank <= last + 1)
    ]
    rows = [
        [
            str(rank),
            str(row.rank_before) if row.rank_before else "-",
            row.plan.plan_id,
            f"{row.step_s:.3f}",
            "measured" if row.measured else "predicted",
            "-" if row.better is None else f"{row.better:.2f}",
            shown_layout(row.plan.layout),
        ]
        for rank, row in shown
    ]
    titles = ["now", "was", "plan", "step s", "", "better", "layout"]
    lines = _table(titles, rows, (2, 4, 6))
    indent = " " * lines[0].index("layout")
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line,
            WIDTH,
            subsequent_indent=indent,
            drop_whitespace=True,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _changes(reranked: Reranked) -> list[str]:
    """Return what the trial changed, in sentences."""
    lines: list[str] = []
    for plan in reranked.out:
        lines += wrapped(
            "out:",
            f"{plan.plan_id} ran out of memory; {plan.breakdown.peak_bytes / GIB:.1f} of "
            f"{plan.usable_bytes / GIB:.1f} GiB were predicted",
        )
    if not reranked.rows:
        return [*lines, "Nothing fits any more."]
    first = reranked.rows[0]
    best = next((row for row in reranked.rows if row.measured), None)
    if first.plan.plan_id == reranked.first_before:
        lines.append(f"{reranked.first_before} stays first.")
    else:
        lines.append(f"{first.plan.plan_id} is first now; {reranked.first_before} was.")
    if best is None:
        lines += wrapped("", "No plan has a measured time: all times above are predictions.")
    elif not first.measured:
        gain = best.step_s / first.step_s - 1.0
        lines += wrapped(
            "",
            f"It has not been timed: {gain:.1%} ahead of {best.plan.plan_id}, the best that has, "
            f"and better with probability {first.better or 0.0:.2f}. Time it too, or take "
            f"{best.plan.plan_id}.",
        )
    else:
        rivals = [row for row in reranked.rows if row.measured and row is not best]
        if rivals:
            lead = rivals[0].step_s / best.step_s - 1.0
            lines.append(
                f"It is the fastest that was timed, {lead:.1%} ahead of {rivals[0].plan.plan_id}."
            )
    return lines
