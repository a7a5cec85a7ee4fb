"""The commands that set predictions beside measurements: validate, measure, calibrate."""

from typing import Annotated

import typer

from planner.cli.command_arguments import CalibrateArguments
from planner.cli.options import CalibrationFile, PoolName
from planner.cli.signatures import records_as_options


def validate_command(
    points: Annotated[
        str,
        typer.Argument(
            metavar="[POINTS.csv]", help="Measured runs; the shipped ones if left out."
        ),
    ] = "",
    models: Annotated[str, typer.Option(help="Models by the names in POINTS.csv.")] = "",
    hardware: Annotated[str, typer.Option(help="Hardware by the names in POINTS.csv.")] = "",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    by: Annotated[
        str, typer.Option(help="source, sweep or row; or search, each sweep searched (minutes).")
    ] = "source",
    calibration: CalibrationFile = "",
) -> None:
    """Compare predictions with measured training runs, source by source."""
    from planner.cli.commands.validate import run_validate

    raise typer.Exit(run_validate(points, models, hardware, form, by, calibration))


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
    """Write the script that times products, attention, memory and collectives on your machines."""
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
    """Fit the numbers behind every prediction to measured runs, or to benchmarks."""
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
