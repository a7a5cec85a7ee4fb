"""What commands about plans do: call the library, print, write files, return exit codes."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.analyze.catalogue import rules_json
from planner.analyze.joined_files import joined_files
from planner.analyze.plan_files import FileTargets, chosen_targets, plan_files
from planner.cli.arguments import check_format, overrides_of, positive, size
from planner.cli.command_arguments import (
    CheckArguments,
    EvaluateArguments,
    RecommendArguments,
    ReplanArguments,
    SolveArguments,
)
from planner.cli.commands.joined import joined_explanation, joined_opened
from planner.cli.files import write_files
from planner.cli.progress import TerminalProgress
from planner.errors import EmitError, PlannerError, UsageError
from planner.frameworks.emit import refusal_file
from planner.frameworks.finetuning.tuners import ENGINES, TUNERS, target_title
from planner.frameworks.launchers.files import parse_launchers
from planner.frameworks.launchers.hosts import read_hosts
from planner.frameworks.programs import is_program
from planner.frameworks.registry import named_framework
from planner.render.answer_text import TextView, answer_text, result_markdown
from planner.render.answers.plan_table import named_columns, plans_csv
from planner.render.card.answer import card_of_saved
from planner.render.card.joined import joined_card_of
from planner.render.card.text import card_lines
from planner.render.document import text_of
from planner.render.style import style_of
from planner.render.terminal import fitted_text, terminal_width
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_store import (
    joined_plan_of,
    opened_plan,
    options_of,
    plan_named,
    read_options,
    read_plan_reference,
    save_result,
)
from planner.solver.execution import Execution
from planner.solver.options import axis_pins
from planner.solver.problem import make_problem
from planner.solver.recipes import with_numerics
from planner.solver.solve import evaluate, solve
from planner.solver.together.records import JoinedPlan
from planner.specs.inputs import Content
from planner.specs.loader import (
    cluster_from_dict,
    is_sweep_file,
    load_cluster,
    load_spec,
    model_from_dict,
)
from planner.specs.summary import spec_json
from planner.text_lines import wrapped
from searches.frameworks.registry import framework_names, framework_rules

if TYPE_CHECKING:
    from planner.analyze.joined.replan import JoinedReplan
    from planner.analyze.replan.replan import Replan

FORMATS: Mapping[str, Callable[[Result, Sequence[str]], str]] = {
    "json": lambda result, _: result.dumps(),
    "csv": plans_csv,
    "md": result_markdown,
}
"""What an answer is written in besides text, some columns of its plans where they are named."""


def formatter(form: str, columns: str = "", verbose: bool = False) -> Callable[[Result], str]:
    """Return what writes an answer; `UsageError` for an unknown form or column."""
    check_format(form, ["table", *FORMATS])
    names = named_columns(columns)
    if names and form == "json":
        raise UsageError("--columns is for tables; JSON has every field", "leave --columns out")
    if form in FORMATS:
        return lambda result: FORMATS[form](result, names)

    def text(result: Result) -> str:
        view = TextView(terminal_width(), style_of(), is_verbose=verbose, columns=names)
        return answer_text(result, view)

    return text


def printed(answer: Any, form: str) -> str:
    """Return an answer as it is printed: `table` for people, else JSON."""
    return str(answer.dumps()) if form == "json" else text_of(answer, terminal_width())


def run_solve(model: str, cluster: str, arguments: SolveArguments) -> int:
    """Run `planner solve`; return the exit code."""
    arguments, show = solve_output(arguments, cluster)
    result = solve(
        model,
        cluster,
        arguments.request(),
        executor=arguments.executor,
        ray_address=arguments.ray_address,
        progress=TerminalProgress(),
    )
    return show(result)


def implied_framework(framework: str, emit: str) -> str:
    """Return the framework whose plans are asked for: of files for one alone, that one.

    A plan that it cannot run is then never first. A framework that is named stays.
    """
    targets = chosen_targets(emit)
    if framework or len(targets) != 1:
        return framework
    return ENGINES[0] if targets[0] in TUNERS else targets[0]


def implied_values(arguments: SolveArguments, framework: str, cluster: str) -> list[str]:
    """Return what `--only` is to hold so that a tool's files can say every plan.

    Of files for one tool alone, and of axes that no option names. A pool of several is not asked
    for its devices, nor one that cannot be read: that error is told where it is searched.
    """
    targets = chosen_targets(arguments.emit)
    if len(targets) != 1 or targets[0] not in TUNERS:
        return []
    named = {item.partition("=")[0] for item in (*arguments.pin, *arguments.only, *arguments.max_)}
    of_pools = [item for item in arguments.set_ if item.startswith("pools.")]
    try:
        pools = load_cluster(cluster, overrides_of(of_pools)).cluster.pools
    except PlannerError:
        pools = ()
    n_devices = pools[0].n_devices if len(pools) == 1 else 0
    values = TUNERS[targets[0]].layout_values(framework, n_devices)
    return [f"{axis}={text}" for axis, text in values.items() if axis not in named]


def solve_output(
    arguments: SolveArguments, cluster: str
) -> tuple[SolveArguments, Callable[[Result], int]]:
    """Return what `planner solve` does with an answer: keep it, print it, write files for it.

    It returns the exit code. The arguments come back with the framework that is meant, and with
    what files of a tool can say. Raises `UsageError` for options that do not go together.
    """
    emit, out, launcher = arguments.emit, arguments.out, arguments.launcher
    framework = implied_framework(arguments.framework, emit)
    text = formatter(arguments.form, arguments.columns, arguments.verbose)
    targets = chosen_targets(emit)
    launchers = parse_launchers(launcher)
    if bool(targets) != bool(out):
        raise UsageError("--emit and --out go together", "--emit megatron --out DIR")
    if not targets and set(launchers) - {"torchrun"}:
        fix = f"--emit megatron --launcher {launcher} --out DIR"
        raise UsageError("--launcher starts what --emit writes, and nothing is emitted", fix)
    if out:
        _make_folder(Path(out))

    def show(result: Result) -> int:
        if arguments.cache:
            save_result(result)
        sys.stdout.write(text(result))
        sys.stdout.flush()
        if targets and result.together:
            for joined in result.together.plans:
                files = joined_files(result.to_json(), joined, targets, launchers)
                write_files(_joined_folder(out, joined), files)
        if targets and result.plans:
            _emit_plans(result, targets, launchers, out)
        return result.exit_code

    only = [*arguments.only, *implied_values(arguments, framework, cluster)]
    return replace(arguments, framework=framework, only=only), show


def _emit_plans(result: Result, targets: list[str], launchers: tuple[str, ...], out: str) -> None:
    """Write the files of every plan of a result into a folder of its own."""
    # As solved: of the nodes in a dump plans may use the first ones only.
    read_model = model_from_dict(result.inputs["model"])
    read_cluster = cluster_from_dict(result.inputs["cluster"])
    refused: Counter[str] = Counter()
    options = read_options(result.inputs["options"])
    searched = options.framework
    file_targets = FileTargets(targets, launchers, None, result.result_id, searched)
    for plan in result.plans:
        inputs = with_numerics(read_model, plan.words), read_cluster.pool(plan.pool)
        problem = make_problem(*inputs, options, plan.layout.n_devices)
        files = plan_files((*inputs, problem, plan), options.calibration, file_targets)
        write_files(_plan_folder(out, plan), files)
        refused.update(target for target in targets if refusal_file(target) in files)
    n = len(result.plans)
    sys.stderr.write(f"wrote {n} plan{'s' * (n > 1)} to {out}\n")
    for target, times in refused.items():
        title = target_title(target)
        why = f"nothing for {title} from {times} of {n}: {refusal_file(target)} says why"
        is_searched = searched == file_targets.releases[target] or target in TUNERS
        fix = f"; --framework {target} ranks what it runs" * (not is_searched)
        sys.stderr.write(f"{why}{fix}\n")


def _make_folder(folder: Path) -> None:
    """Make the output folder before anything is computed for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "name another folder with --out"
        raise EmitError(f"cannot write to {folder}: {error.strerror}", fix) from None


def run_evaluate(model: str, cluster: str, arguments: EvaluateArguments) -> int:
    """Run `planner evaluate`; return the exit code (3 when the plan does not fit)."""
    formatter(arguments.form)
    result = evaluate(model, cluster, arguments.request())
    return show_evaluated(result, arguments)


def show_evaluated(result: Result, arguments: EvaluateArguments) -> int:
    """Keep and print the result of `planner evaluate`; return the exit code."""
    text = formatter(arguments.form, verbose=arguments.verbose)
    if arguments.cache:
        save_result(result)
    sys.stdout.write(text(result))
    return 0 if result.plans[0].headroom_frac >= 0 else 3


def prices(items: Sequence[str]) -> dict[str, float]:
    """Return USD an hour of a device by the name of its part; `UsageError` for other text."""
    stated: dict[str, float] = {}
    for item in items:
        name, _, text = item.partition("=")
        try:
            stated[name.strip()] = float(text)
        except ValueError:
            raise UsageError(
                f"--price: {item!r} is no part and its price", "--price 4090=0.4", code="bad-value"
            ) from None
    return stated


def run_recommend(question: str, model: str, cluster: str, arguments: RecommendArguments) -> int:
    """Run `planner recommend`; return the exit code (3 when there is no answer)."""
    from planner.analyze.recommend.questions import recommend

    most_nodes, step = size(arguments.most_nodes, "--most"), size(arguments.step, "--step")
    check_format(arguments.form)
    shown = TerminalProgress()
    try:
        result = recommend(
            question,
            model,
            cluster,
            arguments.request(),
            most=most_nodes,
            by=arguments.by,
            step=step,
            tolerance_frac=arguments.tolerance,
            days=arguments.days,
            usd_per_device_hour=prices(arguments.price),
            progress=shown,
        )
    finally:
        shown.close()
    sys.stdout.write(printed(result, arguments.form))
    return result.exit_code


def run_check(file: str, cluster: str, command: list[str], arguments: CheckArguments) -> int:
    """Run `planner check`; return the exit code (3 when it is refused or does not fit)."""
    from planner.analyze.check.check import check

    overrides, framework = overrides_of(arguments.set_), arguments.framework
    check_format(arguments.form)
    if framework:
        named_framework(framework)
    variables = check_variables(arguments.env)
    checked, files = (file, None) if not command else command_line([cluster, *command])
    report = check(
        checked,
        file if command else cluster,
        files=files,
        model=arguments.model or None,
        framework=framework,
        version=arguments.version,
        env=variables,
        pins=axis_pins(arguments.pin),
        overrides=overrides,
        pool=arguments.pool,
        calibration=arguments.calibration,
    )
    sys.stdout.write(printed(report, arguments.form))
    return report.exit_code


def command_line(arguments: list[str]) -> tuple[Content, dict[str, str]]:
    """Return a command line as a script of one line, and the files that it names."""
    from planner.frameworks.runs.companions import files_beside

    text = f"#!/bin/bash\n{shlex.join(arguments)}\n"
    return Content(text, "command line"), files_beside("command", text)


def check_variables(items: list[str]) -> dict[str, str]:
    """Return the variables of `--env NAME=VALUE`; `UsageError` for another form."""
    variables = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--env: {item!r} is not of the form NAME=VALUE", "--env TP=8")
        variables[name] = value
    return variables


def joined_plan(reference: str) -> JoinedPlan | None:
    """Return the plan over several pools that a PLAN argument names; None for another."""
    data, which = read_plan_reference(reference)
    return joined_plan_of(data, which)


def run_show(reference: str, form: str) -> None:
    """Run `planner show`."""
    check_format(form)
    if joined := joined_plan(reference):
        if form == "json":
            sys.stdout.write(json.dumps(joined.to_json(), indent=1) + "\n")
            return
        data, _ = read_plan_reference(reference)
        card = joined_card_of(data, joined, plan_named(reference)[0])
        lines = card_lines(card, terminal_width(), style_of(), is_whole=True)
        sys.stdout.write("\n".join([*lines, "", printed(joined, form)]))
        return
    _, _, _, plan = opened_plan(reference)
    if form == "json":
        sys.stdout.write(json.dumps(plan.to_json(), indent=1) + "\n")
        return
    data, _ = read_plan_reference(reference)
    card = card_of_saved(data, plan.plan_id, plan_named(reference)[0])
    lines = card_lines(card, terminal_width(), style_of(), is_whole=True)
    sys.stdout.write("\n".join([*lines, "", printed(plan, form)]))


def run_explain(reference: str, term: str, form: str = "table") -> None:
    """Run `planner explain`."""
    check_format(form)
    from planner.analyze.explain import explain
    from planner.render.answers.explanation import explanation_json

    if joined := joined_opened(reference):
        show_explained(joined_explanation(joined, term, terminal_width()), form)
        return
    _, _, problem, plan = opened_plan(reference)
    explanation = explain(problem, plan, options_of(reference), term)
    show_explained(explanation_json(explanation, terminal_width()), form)


def show_explained(answer: dict[str, Any], form: str) -> None:
    """Print an explanation: its data, or the text of it."""
    if form == "json":
        sys.stdout.write(json.dumps(answer, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.write(answer["text"])


def _plan_folder(out: str, plan: Plan) -> Path:
    return Path(out) / f"{plan.rank}-{plan.plan_id}"


def _joined_folder(out: str, plan: JoinedPlan) -> Path:
    return Path(out) / f"t{plan.rank}-{plan.plan_id}"


def run_emit(reference: str, for_: str, out: str, launcher: str, hosts: str | None = None) -> None:
    """Run `planner emit`: write the files, or print them when no folder is named."""
    targets, launchers = chosen_targets(for_), parse_launchers(launcher)
    if hosts is not None:
        read_hosts(hosts)  # a list that is none is an error also where no file needs it
    if not targets:
        fix = f"one of {', '.join((*framework_names(), *TUNERS))}"
        raise UsageError("--for names no framework", fix)
    if joined := joined_plan(reference):
        data, _ = read_plan_reference(reference)
        files = joined_files(data, joined, targets, launchers)
        show_files(files, targets, _joined_folder(out, joined) if out else None)
        return
    opened, options = opened_plan(reference), options_of(reference)
    file_targets = FileTargets(targets, launchers, hosts, framework=options.framework)
    files = plan_files(opened, options.calibration, file_targets)
    show_files(files, targets, _plan_folder(out, opened[3]) if out else None)


def show_files(files: dict[str, str], targets: list[str], folder: Path | None) -> None:
    """Write the files of one plan, or print them, but for programs, where no folder is named."""
    if folder:
        write_files(folder, files)
        sys.stderr.write(f"wrote {folder}\n")
        for target in targets:
            if (reason := refusal_file(target)) in files:
                text = f"nothing for {target_title(target)}: {reason} says why"
                sys.stderr.write(f"{text}\n")
        return
    shown = {name: text for name, text in files.items() if not is_program(name)}
    for name, text in shown.items():
        sys.stdout.write(f"# ---- {name}\n{text}" if len(shown) > 1 else text)


def run_replan(reference: str, arguments: ReplanArguments) -> int:
    """Run `planner replan`; return the exit code (3 when nothing fits)."""
    from planner.analyze.replan.gained import gained_of_text
    from planner.analyze.replan.replan import lost_of_text, replan
    from searches.executors.executor import make_executor

    limit_s = positive(arguments.time_limit, "--time-limit", "2.5")
    check_replan(arguments)
    gained = gained_of_text(arguments.gained)
    start = time.monotonic()
    execution = Execution(
        make_executor("automatic", None),
        (lambda: time.monotonic() - start > limit_s) if limit_s else None,
        TerminalProgress(),
    )
    via: Literal["network", "checkpoint"] = (
        "network" if arguments.via == "network" else "checkpoint"
    )
    result: Replan | JoinedReplan
    if joined := joined_opened(reference):
        from planner.analyze.joined.nodes import lost_texts
        from planner.analyze.joined.replan import replan_joined

        lost = lost_texts(arguments.lost)
        result = replan_joined(joined, execution, lost=lost, gained=gained, via=via)
    else:
        result = replan(
            opened_plan(reference),
            options_of(reference),
            execution,
            lost=lost_of_text(arguments.lost),
            gained=gained,
            via=via,
        )
    if arguments.cache:
        save_result(result.result)
    sys.stdout.write(printed(result, arguments.form))
    return result.exit_code


def check_replan(arguments: ReplanArguments) -> None:
    """Raise `UsageError` for a form or a way to move the state that does not exist."""
    check_format(arguments.form)
    if arguments.via not in ("checkpoint", "network"):
        raise UsageError(f"--via: unknown {arguments.via!r}", "checkpoint or network")


_WHEN = {
    "parse": "{} says so when it reads its configuration.",
    "start": "{} says so when it builds its groups and the model.",
    "first step": "{} fails in the first step.",
    "ignored": "{} never says so: it passes over the setting and runs.",
    "planner": "No configuration of {} is written for it.",
}
"""When a rule of a framework is met, in words."""


def rules_list(rules: Sequence[Mapping[str, str]]) -> str:
    """Return rules, as `planner.analyze.catalogue.rules_json` has them, a line each."""
    return "".join(f"{rule['code']}  {rule['title']}\n" for rule in rules)


def rule_text(rule: Mapping[str, str]) -> str:
    """Return one rule with its reason, what lifts it and its source."""
    lines, change = [f"{rule['code']}: {rule['title']}"], "  to change:"
    if rule["framework"]:
        name = f"{framework_rules(rule['framework']).title} {rule['versions']}".strip()
        lines += wrapped("  ", _WHEN[rule["when"]].format(name))
        change = "  closest:"
    else:
        lines += wrapped("  ", rule["why"])
    if rule["to_change"]:
        lines += wrapped(change, rule["to_change"])
    return "\n".join([*lines, *wrapped("  source:", rule["source"])]) + "\n"


def run_rule(code: str) -> None:
    """Run `planner rule`."""
    rules = rules_json(code)["rules"]
    text = rule_text(rules[0]) if code else rules_list(rules)
    sys.stdout.write(fitted_text(text, terminal_width()))


def run_check_spec(file: str, form: str) -> None:
    """Run `planner check-spec`."""
    from planner.cli.spec_check import check_spec  # 80 ms: it knows sweeps

    if form not in ("table", "json"):
        raise UsageError(f"--format: unknown {form!r}", "one of table, json")
    if form == "table":
        sys.stdout.write(check_spec(file).rstrip("\n") + "\n")
    elif is_sweep_file(file):
        raise UsageError("--format json says what a model or a cluster is", "leave it out")
    else:
        sys.stdout.write(json.dumps(spec_json(load_spec(file)), indent=1) + "\n")
