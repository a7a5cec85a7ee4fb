#!/usr/bin/env python3
"""Submit a Slurm job whose size and layout a planning service chooses.

    slurm_submit.py train.sbatch [OPTION of sbatch ...]

A line of the script says what is asked: fields of /v1/plans:solve, paths in the files, pins:

    #PLAN model=llama3-70b cluster=h100-x512 pools.0.nodes=32 framework=megatron pins.tp=8

In place of it, and of lines such as `#SBATCH --nodes=2`, come those of the best plan, and all of
its layout as variables for the commands below: PLAN_TP, PLAN_STAGE_LAYERS, ... With a framework
PLAN_FILES is a folder beside the script that holds what runs the plan, such as megatron.sh.
Where nothing fits the job is not submitted, and the reasons are printed (exit code 3).
PLANNER_SERVER and PLANNER_TOKEN name the service.
"""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from planner.client import Client
from planner.errors import PlannerError

MARK = "#PLAN "
SET = re.compile(r"#SBATCH\s+(--(nodes|ntasks|gpus|gres|comment)|-[Nn]\b)")


def question(line: str) -> dict[str, Any]:
    """Return the request that a line of the script makes."""
    words = [word.partition("=")[::2] for word in line.removeprefix(MARK).split()]
    pins = {name[5:]: value for name, value in words if name.startswith("pins.")}
    paths = {k: v for k, v in words if "." in k and not k.startswith("pins.")}
    return {k: v for k, v in words if "." not in k} | {"top": 1, "set": paths, "pins": pins}


def filled(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the lines of the first plan: what sbatch reads, and its layout as variables."""
    plan, layout = answer["plans"][0], answer["plans"][0]["layout"]
    exported = {"id": plan["plan_id"], **layout, "precision": plan["precision"]}
    pools = {pool["name"]: pool for pool in answer["inputs"]["cluster"]["pools"]}
    per_node = min(pools[plan["pool"]]["accelerators_per_node"], layout["n_devices"])
    return [
        f"# plan {plan['plan_id']}: {plan['step_time_s']:.3f} s a step predicted",
        f"#SBATCH --nodes={math.ceil(layout['n_devices'] / per_node)}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        f"#SBATCH --comment=planner:{plan['plan_id']}",
    ], [f'export PLAN_{axis.upper()}="{text(x)}"' for axis, x in exported.items()]


def text(value: Any) -> str:
    """Return a value of the layout as a shell reads it: `true`, `8`, `20,20,20,20`."""
    listed = value if isinstance(value, list) else [value]
    return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in listed)


def written(answer: dict[str, Any], framework: str, service: Client, script: str) -> list[str]:
    """Write what runs the first plan beside the script; return the line that names its folder."""
    folder = Path(script).resolve().parent / f"plan-{answer['plans'][0]['plan_id']}"
    folder.mkdir(exist_ok=True)
    for name, content in service.emit(answer, frameworks=[framework])["files"].items():
        (folder / Path(name).name).write_text(content, encoding="utf-8")
    return [f'export PLAN_FILES="{folder}"']


def main(script: str, options: list[str]) -> int:
    """Fill a script, submit it, and return the exit code of sbatch."""
    lines = [x for x in Path(script).read_text("utf-8").splitlines() if not SET.match(x)]
    at = next((i for i, line in enumerate(lines) if line.startswith(MARK)), None)
    if at is None:
        sys.stderr.write(f"{script}: no line `{MARK}model=... cluster=...`\n")
        return 2
    with Client.from_environment() as service:
        asked = question(lines[at])
        answer = service.solve(**asked)
        runs = asked.get("framework", "any") not in ("any", "default") and answer["plans"]
        files = written(answer, asked["framework"], service, script) if runs else []
    if not answer["plans"]:
        sys.stderr.write("nothing fits; what would help:\n")
        sys.stderr.writelines(f"  {change['change']}\n" for change in answer["relaxations"])
        return 3
    wanted, variables = filled(answer)
    # sbatch reads its lines up to the first command: variables come after all of them.
    last = max([at, *(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))])
    head = [*lines[:at], *wanted, *lines[at + 1 : last + 1]]
    batch = "\n".join([*head, *variables, *files, *lines[last + 1 :], ""])
    return subprocess.run(["sbatch", *options], input=batch, text=True).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except (PlannerError, OSError) as error:
        sys.exit(f"error: {error}")
