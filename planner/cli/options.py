"""Options and arguments that several commands of the command line share."""

from typing import Annotated

import typer

from searches.frameworks.registry import ANY, BUILT_IN, DEFAULT

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model file, a Hugging Face config.json, Megatron-LM arguments, or the name of an"
        " example: llama3-70b.",
    ),
]
ClusterArg = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="Cluster file, a dump of Slurm, Kubernetes or a node, or the name of an example:"
        " h100-x512.",
    ),
]
PlanArg = Annotated[
    str, typer.Argument(metavar="PLAN", help="RESULT.json#RANK_OR_ID, or last#RANK_OR_ID.")
]
Pin = Annotated[
    list[str],
    typer.Option(
        "--pin",
        metavar="AXIS=V,...",
        help="Fix axes: tp=8,pp=4,devices=512; a wrong one lists them all.",
    ),
]
Only = Annotated[
    list[str], typer.Option("--only", metavar="AXIS=A,B", help="Allowed values: tp=4,8.")
]
Max = Annotated[list[str], typer.Option("--max", metavar="AXIS=N", help="Largest values: pp=16.")]
Allow = Annotated[
    list[str],
    typer.Option("--allow", help="tp-across-domains: accepted, always on; --max tp=8 closes it."),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: pools.0.nodes=16."),
]
FRAMEWORKS = ", ".join(BUILT_IN)
"""Frameworks as help names them: those of other packages would have to be looked for."""
Framework = Annotated[str, typer.Option(help=f"{DEFAULT}, {FRAMEWORKS}, or {ANY}.")]
Stack = Annotated[
    str, typer.Option(help="Software profile to price with; the framework's own by default.")
]
PoolName = Annotated[
    str, typer.Option("--pool", metavar="NAME", help="Plan for this pool of the cluster only.")
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="LIST|FILE", help="Hosts in network order: n[001-016], or a file."
    ),
]
Launcher = Annotated[str, typer.Option(metavar="L,...", help="torchrun,slurm,jobset,pytorchjob.")]
Objective = Annotated[
    str,
    typer.Option(
        metavar="X", help="step_time, tokens_per_s, cost, energy, devices, memory or goodput."
    ),
]
Deadline = Annotated[
    str, typer.Option(metavar="TIME", help="Longest run, failures included: 30d, 36h.")
]
StepLimit = Annotated[
    float | None,
    typer.Option("--step-limit", metavar="S", help="Longest step, seconds.", show_default=False),
]
Within = Annotated[
    float | None,
    typer.Option(
        metavar="F",
        help="--objective memory: at most F times the fastest (1.05).",
        show_default=False,
    ),
]
Pareto = Annotated[
    str,
    typer.Option(
        metavar="X,Y[,Z]",
        help="The front of two or three objectives instead, such as step_time,memory.",
    ),
]
Format = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]
CalibrationFile = Annotated[
    str,
    typer.Option(
        "--calibration", metavar="FILE", help="Numbers to price with; those that ship without it."
    ),
]
Reference = Annotated[
    str,
    typer.Option(
        "--reference", metavar="RUN.yaml", help="One to three measured steps that set the scale."
    ),
]
