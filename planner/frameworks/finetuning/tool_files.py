"""Texts that the files of all tools share: YAML, its head, the launcher."""

import json
from collections.abc import Mapping, Sequence

from planner.frameworks.emitted_text import (
    WORDS,
    carried_by_config,
    fact_lines,
    head,
    shown_details,
    stated_or_none,
    yaml_scalar,
)
from planner.frameworks.finetuning.trainer_settings import (
    accelerate_settings,
    deepspeed_settings,
    plan_nodes,
)
from planner.frameworks.finetuning.tuned_plan import TunedPlan
from planner.frameworks.hf_config import config_file
from searches.frameworks.registry import framework_rules


def yaml_lines(settings: Mapping[str, object], indent: int = 0) -> list[str]:
    """Return settings as lines of YAML: sections in blocks, lists and texts as in JSON.

    >>> yaml_lines({"a": True, "b": {"c": ["q_proj"]}, "d": "no"})
    ['a: true', 'b:', '  c: ["q_proj"]', 'd: "no"']
    """
    space, lines = " " * indent, []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += [f"{space}{key}:", *yaml_lines(value, indent + 2)]
        else:
            lines.append(f"{space}{key}: {yaml_scalar(value, WORDS)}")
    return lines


def headed(plan: TunedPlan, title: str) -> list[str]:
    """Return the first lines of a script: title, plan, facts."""
    request = plan.request
    return head(title, request.header, fact_lines(request, stated_or_none(request.details)))


def config_text(
    plan: TunedPlan, settings: Mapping[str, object], yours: Mapping[str, object]
) -> str:
    """Return the configuration of a tool; `yours`: placeholders of what no plan can say."""
    title = (
        f"{plan.tuner.title} configuration; keys as of {plan.tuner.title} {plan.tuner.release}."
    )
    details = plan.request.details
    comments = [*plan_notes(plan), *shown_details(details), *carried_by_config(details)]
    lines = [
        *headed(plan, title)[1:],
        "#",
        *(f"# {line}" for line in comments),
        "",
        "# ---- YOURS: model, data, where to save; names below are placeholders ----",
        *yaml_lines(yours),
        "# ------------------------------------------------------------------------",
        "",
        *yaml_lines(settings),
    ]
    return "\n".join(lines) + "\n"


def plan_notes(plan: TunedPlan) -> list[str]:
    """Return what a configuration says of its plan in words."""
    x, engine = plan.sample_layout, framework_rules(plan.engine)
    unit = " pairs" if plan.compares_answers else ""
    title = "PyTorch's FSDP2" if plan.tuner.has_own_loop else f"{engine.title} {engine.release}"
    notes = [
        f"{x.n_devices} processes on {title}; the global batch is"
        f" {x.gbs}{unit} = {x.mbs} x {x.n_micro} x {x.dp}.",
        "The learning rate does not change the cost and is yours too.",
    ]
    if plan.tuner.has_own_loop and plan.tuning is not None:
        notes += ["Adapters and their states are in bf16 here; the plan prices them in fp32."]
    data = plan.job.data
    if data is None:
        notes += [f"Every sample is taken to fill its {plan.job.seq_len} tokens."]
    return notes


def engine_files(plan: TunedPlan, *, with_accelerate: bool = True) -> dict[str, str]:
    """Return the files of the engine beside a tool's own, and the config.json of the model."""
    request, tuner = plan.request, plan.tuner
    files = dict(config_file(request.shape, request.job, request.details)[0])
    if with_accelerate:
        title = f"Accelerate launch configuration for {tuner.title}."
        lines = [*headed(plan, title)[1:], *yaml_lines(accelerate_settings(plan))]
        files[tuner.accelerate_file] = "\n".join(lines) + "\n"
    if plan.on_deepspeed:
        files[tuner.deepspeed_file] = json.dumps(deepspeed_settings(plan), indent=2) + "\n"
    return files


def launcher_text(plan: TunedPlan, command: Sequence[str]) -> str:
    """Return the script that runs a command, its words on lines, on every node."""
    n_nodes, per_node = plan_nodes(plan)
    tuner = plan.tuner
    title = f"{tuner.title} launcher; {tuner.config_file} says what is trained."
    settings = _SETTINGS.format(n_nodes=n_nodes, per_node=per_node).splitlines()
    words = [*(f"{line} \\" for line in command), '  "$@"']
    return "\n".join([*headed(plan, title), *settings, *words]) + "\n"


def accelerate_command(plan: TunedPlan, module: str, words: Sequence[str]) -> list[str]:
    """Return the lines of a command that starts a module by Accelerate's launcher."""
    tuner = plan.tuner
    return [
        f'accelerate launch --config_file "${{HERE}}/{tuner.accelerate_file}"',
        '  --machine_rank "${NODE_RANK}"',
        '  --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}"',
        f"  -m {module} {' '.join(words)}".rstrip(),
    ]


def torchrun_command(plan: TunedPlan, module: str, words: Sequence[str]) -> list[str]:
    """Return the lines of a command that starts a module by torchrun."""
    n_nodes, per_node = plan_nodes(plan)
    return [
        f"torchrun --nnodes {n_nodes} --nproc-per-node {per_node}",
        '  --node-rank "${NODE_RANK}" --master-addr "${MASTER_ADDR}"'
        ' --master-port "${MASTER_PORT}"',
        f"  -m {module} {' '.join(words)}".rstrip(),
    ]


_SETTINGS = """#
# Run it once on each of the {n_nodes} node(s), {per_node} process(es) each, with NODE_RANK and
# MASTER_ADDR set (Slurm: one task per node). Further options go on to the tool.
set -euo pipefail

HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
cd "${{HERE}}"
MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

"""
