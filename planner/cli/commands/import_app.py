"""The commands `planner import model` and `planner import cluster`."""

from typing import Annotated

import typer

from planner.cli.command_arguments import ImportArguments
from planner.cli.plugins import Subcommands
from planner.cli.signatures import records_as_options

import_app = typer.Typer(
    cls=Subcommands,
    help="Write a model or cluster file of what another tool wrote.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@import_app.command("model")
def import_model_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A Hugging Face config.json, the folder with it, or Megatron-LM arguments.",
        ),
    ],
    out: Annotated[str, typer.Option(help="File to write; without it, standard output.")] = "",
    name: Annotated[str, typer.Option(help="Name of the model in tables and file names.")] = "",
    as_: Annotated[
        str, typer.Option("--as", metavar="TYPE", help="Read the layers as this model_type's.")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="A field: model.mtp_layers=0, or sequence, batch, precision, optimizer.",
        ),
    ] = None,
) -> None:
    """Write a model file: each field with where it came from, or that it was assumed."""
    from planner.cli.commands.import_run import run_import_model

    run_import_model(file, out, name, as_, set_ or ())


@import_app.command("cluster")
@records_as_options
def import_cluster_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Dumps of one cluster: sinfo, scontrol, kubectl -o json, nvidia-smi, rocm-smi,"
            " NCCL topology. - is standard input.",
        ),
    ],
    arguments: ImportArguments,
) -> None:
    """Write the cluster file that dumps of a cluster describe."""
    from planner.cli.commands.import_run import run_import_cluster

    run_import_cluster(files, arguments)
