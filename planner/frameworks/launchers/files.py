"""The launch files of one plan, by launcher: torchrun, Slurm, JobSet, PyTorchJob."""

from collections.abc import Callable, Mapping, Sequence

from hardware.parts import Fabric, used_tiers
from planner.errors import UsageError
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.launchers.kubernetes import jobset_yaml, pytorchjob_yaml
from planner.frameworks.launchers.launch import Launch, block_of, job_name
from planner.frameworks.launchers.placement import Placement
from planner.frameworks.launchers.slurm import slurm_script
from planner.frameworks.registry import frameworks


def parse_launchers(text: str) -> tuple[str, ...]:
    """Return launchers from text such as `torchrun,slurm`; `UsageError` for unknown ones."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in LAUNCHERS:
            fix = f"one of {', '.join(LAUNCHERS)}"
            raise UsageError(f"unknown launcher {name!r}", fix, "launcher")
    return names


def launcher_files(
    launchers: Sequence[str],
    files: Mapping[str, str],
    request: EmitRequest,
    placement: Placement,
    fabric: Fabric,
    plan_id: str,
) -> dict[str, str]:
    """Return the launch files for the files that one framework wrote of a request: name to text.

    None for a framework that cannot run the plan (its files hold no script), and none for
    `torchrun`, which the script itself calls. The job is called after model, framework and plan.
    """
    scripts = [file for file in files if file.endswith(".sh")]
    if not scripts:
        return {}
    smoke_only = {name for one in frameworks() for name in one.smoke_programs}
    launch = Launch(
        script=scripts[0],
        files={name: text for name, text in files.items() if name not in smoke_only},
        name=job_name(f"{request.shape.name}-{scripts[0].removesuffix('.sh')}-{plan_id}"),
        header=request.header,
        placement=placement,
        pool=request.pool,
        block=block_of(placement, used_tiers(fabric, request.pool)),
    )
    entries: dict[str, str] = {}
    for launcher in launchers:
        entries |= LAUNCHERS[launcher](launch)
    return entries


def _torchrun(launch: Launch) -> dict[str, str]:
    return {}


def _slurm(launch: Launch) -> dict[str, str]:
    return {f"slurm-{launch.framework}.sbatch": slurm_script(launch)}


def _jobset(launch: Launch) -> dict[str, str]:
    return {f"jobset-{launch.framework}.yaml": jobset_yaml(launch)}


def _pytorchjob(launch: Launch) -> dict[str, str]:
    return {f"pytorchjob-{launch.framework}.yaml": pytorchjob_yaml(launch)}


LAUNCHERS: Mapping[str, Callable[[Launch], dict[str, str]]] = {
    "torchrun": _torchrun,
    "slurm": _slurm,
    "jobset": _jobset,
    "pytorchjob": _pytorchjob,
}
"""By name, what writes its files."""
