"""Options and arguments that several commands of the command line share."""

from typing import Annotated, Any

import typer

from planner.cli import completion
from planner.frameworks.finetuning.tuners import TUNERS
from planner.option_names import SEARCH_FIELDS
from searches.frameworks.registry import ANY, BUILT_IN, DEFAULT


def _option(keyword: str, **more: Any) -> Any:
    """Return an option of a search as `planner.option_names` describes it."""
    field = SEARCH_FIELDS[keyword]
    return typer.Option(
        f"--{field.option_name}", metavar=field.metavar or None, help=field.help, **more
    )


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model file, a Hugging Face config.json, Megatron-LM arguments, or the name of an"
        " example: llama3-70b.",
        autocompletion=completion.complete_models,
    ),
]
ClusterArg = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="Cluster file, words such as 64xh100, a dump of Slurm, Kubernetes or a node, or the"
        " name of an example: h100-x512.",
        autocompletion=completion.clusters,
    ),
]
PlanArg = Annotated[
    str,
    typer.Argument(
        metavar="PLAN",
        help="RESULT.json#RANK_OR_ID, or last#RANK_OR_ID.",
        autocompletion=completion.plans,
    ),
]
Pin = Annotated[list[str], _option("pins")]
Only = Annotated[list[str], _option("only")]
Max = Annotated[list[str], _option("at_most")]
Allow = Annotated[list[str], _option("allow")]
AsType = Annotated[
    str,
    typer.Option("--as", metavar="TYPE", help="Read a config.json as this model_type's layers."),
]
Task = Annotated[str, typer.Option(metavar="T", help="pretrain, sft, lora or qlora.")]
Rank = Annotated[str, typer.Option(metavar="R", help="Rank of the adapters (16).")]
SeqLen = Annotated[str, typer.Option("--seq", metavar="TOKENS", help="Tokens of a sequence.")]
Batch = Annotated[str, typer.Option(metavar="N", help="Sequences per step, over all devices.")]
Tokens = Annotated[str, typer.Option(metavar="N", help="Tokens of the whole run: 15T.")]
Precision = Annotated[str, typer.Option(metavar="P", help="Numeric recipe: bf16, fp8.")]
SetOption = Annotated[list[str], _option("overrides")]
FRAMEWORKS = ", ".join(BUILT_IN)
"""Frameworks as help names them: those of other packages would have to be looked for."""
TARGETS = f"{FRAMEWORKS}, {', '.join(TUNERS)}"
"""What files are written for, as help names it."""
Framework = Annotated[
    str,
    typer.Option(
        help=f"{DEFAULT}, {FRAMEWORKS}, or {ANY}.", autocompletion=completion.complete_frameworks
    ),
]
Stack = Annotated[str, _option("stack")]
PoolName = Annotated[str, _option("pool")]
PoolsMode = Annotated[str, _option("pools")]
Objective = Annotated[str, _option("objective", autocompletion=completion.objectives)]
Deadline = Annotated[str, _option("deadline")]
Budget = Annotated[str, _option("budget")]
StepLimit = Annotated[float | None, _option("step_limit_s", show_default=False)]
Within = Annotated[float | None, _option("within", show_default=False)]
MemoryMargin = Annotated[float | None, _option("memory_margin", show_default=False)]
Pareto = Annotated[str, _option("pareto")]
TimeLimit = Annotated[float | None, _option("time_limit_s", show_default=False)]
Top = Annotated[int | None, _option("top")]
AllVariants = Annotated[bool, _option("all_variants")]
CalibrationFile = Annotated[str, _option("calibration")]
Reference = Annotated[str, _option("reference")]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="LIST|FILE", help="Hosts in network order: n[001-016], or a file."
    ),
]
Launcher = Annotated[str, typer.Option(metavar="L,...", help="torchrun,slurm,jobset,pytorchjob.")]
Format = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="With counts, rejections and what columns mean."),
]
Columns = Annotated[
    str,
    typer.Option(
        metavar="C,...",
        help="Columns of the table: tp,pp,step,mem; or all.",
        autocompletion=completion.columns,
    ),
]
TableOrJson = Annotated[str, typer.Option("--format", help="table or json.")]
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep the result for last#...")]
