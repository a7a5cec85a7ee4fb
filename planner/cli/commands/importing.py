"""The commands `planner import model` and `planner import cluster`."""

from typing import Annotated

import typer

from planner.cli.plugins import Subcommands

import_app = typer.Typer(
    cls=Subcommands,
    help="Write a model or cluster file from what another tool wrote.",
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
) -> None:
    """Write a model file: each field with where it came from, or that it was assumed."""
    from planner.cli.commands.imports import run_import_model

    run_import_model(file, out, name, as_)


@import_app.command("cluster")
def import_cluster_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Dumps of one cluster: sinfo, scontrol, kubectl -o json, nvidia-smi, rocm-smi,"
            " NCCL topology. - is standard input.",
        ),
    ],
    accelerator: Annotated[
        list[str],
        typer.Option(metavar="TYPE=NAME", help="What a type is: a100=a100-sxm-80gb, t4=none."),
    ] = [],
    nic: Annotated[str, typer.Option(metavar="NAME", help="Network port: ib-ndr-400.")] = "",
    nics: Annotated[int, typer.Option(metavar="N", help="Ports of a node for training.")] = 0,
    devices: Annotated[
        int, typer.Option(metavar="N", help="Devices of a node, where a dump shows one job.")
    ] = 0,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm partition only.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="HOSTLIST", help="These nodes only: n[001-016].")
    ] = None,
    selector: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Kubernetes nodes with this label only.")
    ] = [],
    tolerate: Annotated[
        list[str], typer.Option(metavar="KEY[=VALUE]", help="Taint that the job tolerates.")
    ] = [],
    all_: Annotated[
        bool, typer.Option("--all", help="All healthy nodes, whatever is in use now.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Use nodes in part where that uses more devices.")
    ] = False,
    most: Annotated[
        int, typer.Option(metavar="NODES", help="Use at most so many, the first in the network.")
    ] = 0,
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="File to write; without it, standard output.")
    ] = "",
) -> None:
    """Write the cluster file that dumps of a cluster describe."""
    from planner.cli.commands.imports import run_import_cluster

    run_import_cluster(
        files,
        accelerators=accelerator,
        nic=nic,
        nics=nics,
        devices=devices,
        partition=partition,
        nodes=nodes,
        selector=selector,
        tolerate=tolerate,
        everything=all_,
        partial=partial,
        most=most,
        name=name,
        out=out,
    )
