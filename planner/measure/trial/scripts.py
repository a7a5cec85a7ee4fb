"""The files of a trial: a short run of every plan of the shortlist, and how to time them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.shapes import TrainingJob
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import accepted
from planner.frameworks.launchers.files import launcher_files
from planner.frameworks.launchers.hosts import chosen_hosts
from planner.frameworks.launchers.placement import place_plan
from planner.frameworks.registry import framework as framework_record
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.specs.inputs import ClusterInput, ModelInput

STEPS = 25
"""Steps of a run: enough after the warm-up for a median."""
LOG = "log.txt"
"""What the commands call the log of a plan."""


def short_job(job: TrainingJob, steps: int = STEPS) -> TrainingJob:
    """Return the job that ends after so many steps."""
    return replace(job, tokens=float(steps * job.tokens_per_step))


@dataclass(frozen=True, slots=True)
class ShortRuns:
    """How the short runs of a trial are written."""

    framework: str
    steps: int = STEPS
    launchers: tuple[str, ...] = ("torchrun",)


def trial_files(
    model: ModelInput, cluster: ClusterInput, plan: Plan, header: Sequence[str], runs: ShortRuns
) -> dict[str, str]:
    """Return the files of the short run of one plan, by name.

    No checkpoints are written, every step is logged.
    """
    pool = cluster.cluster.pools[0].first_devices(plan.layout.n_devices)
    shape, job = model.shape, short_job(model.job, runs.steps)
    lines = [
        *header,
        f"a trial of {runs.steps} steps; keep what it prints as {LOG} in this folder",
    ]
    request = EmitRequest(plan.layout, shape, job, pool, lines, model.details)
    files = emit_plan(runs.framework, request)
    # No figure depends on the parts that a framework leaves out.
    files = {name: accepted(text) for name, text in files.items()}
    if set(runs.launchers) - {"torchrun"}:
        fabric = cluster.cluster.fabric
        placed = place_plan(plan.layout, shape, pool, fabric, chosen_hosts(None, cluster))
        files |= launcher_files(runs.launchers, files, request, placed, fabric, plan.plan_id)
    return files


def readme(
    folders: Sequence[tuple[str, Plan]],
    framework: str,
    steps: int,
    question: str,
    remarks: Sequence[str],
) -> str:
    """Return the README of a trial: what to run, and what to do with the logs.

    `folders` are the plans by the name of their folder, `remarks` what the shortlist promises.
    """
    record = framework_record(framework)
    start = record.start_command
    lines = [
        f"# Trial of {len(folders)} plans with {record.title}",
        "",
        f"Written by `{question}`.",
        "",
        *remarks,
        "",
        f"1. Run each for {steps} steps, one after another, on the same nodes, with nothing else",
        "   on them; on several nodes start it on each of them as its script says.",
        "",
        "   ```",
        *(
            f"   bash {folder}/{start} 2>&1 | tee {folder}/{LOG}   # {shown_layout(plan.layout)}"
            for folder, plan in folders
        ),
        "   ```",
        "",
        f"   {record.log_note}",
        "   A run out of memory is an answer too: keep its log.",
        "2. Read the logs, anchor the predictions on them and rank again:",
        "",
        "   ```",
        "   planner trial --read .",
        "   ```",
        "",
        "   Logs of several ranks or nodes may lie in a plan's folder side by side, named *.txt,",
        "   *.log or *.out; a log elsewhere is given with --log PLAN=FILE.",
        "",
    ]
    return "\n".join(lines)
