"""The commands that set predictions beside measurements: validate, measure, calibrate."""

from typing import Annotated

import typer

from planner.cli.command_arguments import CalibrateArguments, ValidateArguments
from planner.cli.options import PoolName
from planner.cli.signatures import records_as_options


@records_as_options
def validate_command(
    points: Annotated[
        str,
        typer.Argument(
            metavar="[POINTS.csv]", help="Measured runs; the shipped ones if left out."
        ),
    ] = "",
    arguments: ValidateArguments = ValidateArguments(),
) -> None:
    """Compare predictions with measured training runs."""
    from planner.cli.commands.validate import run_validate, run_validate_recipes

    if arguments.recipes:
        raise typer.Exit(
            run_validate_recipes(points, arguments.models, arguments.form, arguments.calibration)
        )
    raise typer.Exit(
        run_validate(
            points,
            arguments.models,
            arguments.hardware,
            arguments.form,
            arguments.by,
            arguments.calibration,
        )
    )


def measure_command(
    cluster: Annotated[
        str,
        typer.Argument(metavar="[CLUSTER]", help="Says how to start the script there."),
    ] = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Script to write; - is stdout.")
    ] = "measure.py",
    nodes: Annotated[
        int, typer.Option(min=0, help="Nodes to measure on (2, or 1).", show_default=False)
    ] = 0,
    pool: PoolName = "",
) -> None:
    """Write the script that times your GPUs and links.

    It times products, attention, memory and collectives with torchrun.
    """
    from planner.cli.commands.benchmarks import run_measure

    raise typer.Exit(run_measure(cluster, out, nodes, pool))


@records_as_options
def calibrate_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUNS.csv | LOG...]",
            help="Measured runs, the shipped ones without; or more logs after --nccl-tests LOG.",
        ),
    ] = [],
    arguments: CalibrateArguments = CalibrateArguments(),
) -> None:
    """Fit the figures behind predictions to measured runs.

    Or to benchmarks of NCCL.
    """
    from planner.cli.commands.calibrate import run_calibrate, run_list

    if arguments.list_:
        raise typer.Exit(run_list(arguments.form))
    if arguments.reference:
        from planner.cli.commands.reference import run_calibrate_reference

        raise typer.Exit(run_calibrate_reference(files, arguments))
    if arguments.nccl_tests or arguments.measured:
        from planner.cli.commands.benchmarks import run_calibrate_measured

        raise typer.Exit(run_calibrate_measured(files, arguments))
    raise typer.Exit(run_calibrate(files, arguments))
