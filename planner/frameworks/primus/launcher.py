"""Scripts that start an experiment of Primus: `primus-cli`, or `run_pretrain.sh` with EXP."""

import re
from dataclasses import replace

from planner.errors import InputProblem, SpecError
from planner.frameworks.primus.options import option_table
from planner.frameworks.primus.reader import looks_like_primus, read_primus
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import RunFile

_STARTS = re.compile(r"\bprimus-cli\b|\brun_(?:slurm_)?pretrain(?:_cli)?\.sh\b")
_EXPERIMENT = re.compile(r"""(?:--(?:config|exp)[= ]|\bEXP=)["']?([^\s"']+\.ya?ml)""")
_NODES = re.compile(
    r"""\bNNODES=["']?(?:\$\{NNODES:[-=])?(\d+)|\bslurm\b[^\n]*?\s-N[ =]?(\d+)""", re.MULTILINE
)
_PER_NODE = re.compile(r"""\bGPUS_PER_NODE=["']?(?:\$\{GPUS_PER_NODE:[-=])?(\d+)""")
_VARIABLE = re.compile(r"""(?:^export\s+|--env\s+)([A-Z][A-Z0-9_]*)=["']?([^\s"'$]+)""", re.M)
_KEY = re.compile(r"""(?<=\s)["']?(?:--)?([a-z][a-z0-9_]+)=([^\s"'\\]+)""")
PER_NODE = 8
"""Processes of a node where a script does not say (runner/helpers/envs/base_env.sh)."""


def starts_primus(text: str) -> bool:
    """Tell whether a text is a script that starts an experiment of Primus."""
    return bool(_STARTS.search(_without_comments(text)))


def read_launcher(file: RunFile) -> ExistingRun:
    """Return the run of a script: that of its experiment, with the nodes and keys it is given.

    `SpecError` where the experiment does not lie beside the script.
    """
    plain = _without_comments(file.text).replace("\\\n", " ")
    match = _EXPERIMENT.search(plain)
    if match is None:
        fix = "name it: --config exp.yaml, or EXP=exp.yaml"
        raise SpecError(InputProblem("starts Primus without an experiment", fix, file.name))
    name = match[1]
    short = name.rsplit("}", 1)[-1].lstrip("/")
    text = file.find(short)
    if text is None or not looks_like_primus(text):
        fix = f"put it beside {file.name}, or check that file itself"
        raise SpecError(InputProblem(f"starts {name}, which cannot be read", fix, file.name))
    n_nodes, per_node = _number(_NODES, plain), _number(_PER_NODE, plain)
    total = n_nodes * (per_node or PER_NODE) if n_nodes else None
    after = plain[match.end() :]
    sets = tuple((key, value) for key, value in _KEY.findall(after) if key in option_table()[1])
    env = dict(_VARIABLE.findall(plain))
    query = replace(
        file.query.with_sets(*sets),
        n_devices=total or file.query.n_devices,
        env={**env, **(file.query.env or {})},
    )
    run = read_primus(replace(file, text=text, name=short, query=query))
    return replace(
        run,
        source=file.name,
        n_devices=total,
        n_nodes=n_nodes,
        per_node=per_node or (PER_NODE if n_nodes else None),
        env={**run.env, **env},
    )


def _without_comments(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return "\n".join(lines) + "\n"


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(next(x for x in match.groups() if x)) if match else None
