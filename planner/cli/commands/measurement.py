"""The commands that set predictions beside measurements: validate, measure, calibrate."""

from typing import Annotated

import typer

from planner.cli.options import CalibrationFile, PoolName


def validate(
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


def measure(
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


def calibrate(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUNS.csv | LOG...]",
            help="Measured runs, the shipped ones without; or more logs after --nccl-tests LOG.",
        ),
    ] = [],
    nccl_tests: Annotated[
        list[str],
        typer.Option(
            "--nccl-tests", metavar="LOG...", help="Fit links to what all_reduce_perf, ... print."
        ),
    ] = [],
    measured: Annotated[
        list[str],
        typer.Option(
            "--measured", metavar="FILE", help="Fit rates to what the script of `measure` wrote."
        ),
    ] = [],
    cluster: Annotated[
        str,
        typer.Option(
            metavar="CLUSTER", help="Where benchmarks ran; without it told from the devices."
        ),
    ] = "",
    pool: PoolName = "",
    link: Annotated[
        str, typer.Option(metavar="NAME", help="Network of benchmarks, without a cluster file.")
    ] = "",
    models: Annotated[str, typer.Option(help="Models by the names in RUNS.csv.")] = "",
    hardware: Annotated[str, typer.Option(help="Hardware by the names in RUNS.csv.")] = "",
    fit: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Numbers to fit, or beginnings: generation,stack.nanotron; all without it.",
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Calibration that the fit begins at."),
    ] = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Calibration file to write.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of the calibration; the file's without it.")
    ] = "",
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate/--no-cross-validate", help="Also fit without each family and model."
        ),
    ] = True,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes to fit with (1); the answer is the same."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List every number with its range and meaning.")
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="RUN.yaml",
            help="Anchor on one to three measured steps instead.",
        ),
    ] = "",
    form: Annotated[
        str, typer.Option("--format", help="table or json; of benchmarks also full, every size.")
    ] = "table",
) -> None:
    """Fit the numbers behind every prediction to measured runs, or to benchmarks."""
    from planner.cli.commands.calibrate import one_runs_file, run_calibrate, run_list

    if list_:
        raise typer.Exit(run_list(form))
    of_fit = {
        "--processes": "" if processes is None else str(processes),
        "--no-cross-validate": "" if cross_validate else "off",
    }
    if reference:
        from planner.cli.commands.reference import run_calibrate_reference

        others = {
            "[RUNS.csv]": " ".join(given),
            "--fit": fit,
            "--models": models,
            "--hardware": hardware,
            "--nccl-tests": " ".join(nccl_tests),
            "--measured": " ".join(measured),
            "--cluster": cluster,
            "--pool": pool,
            "--link": link,
            **of_fit,
        }
        raise typer.Exit(run_calibrate_reference(reference, start, out, name, form, others))
    if nccl_tests or measured:
        from planner.cli.commands.benchmarks import run_calibrate_measured

        raise typer.Exit(
            run_calibrate_measured(
                nccl_tests,
                measured,
                given,
                cluster=cluster,
                pool=pool,
                link=link,
                start=start,
                out=out,
                name=name,
                form=form,
                only_runs={"--models": models, "--hardware": hardware, "--fit": fit, **of_fit},
            )
        )
    points = one_runs_file(given, {"--cluster": cluster, "--pool": pool, "--link": link})
    raise typer.Exit(
        run_calibrate(
            points,
            models=models,
            hardware=hardware,
            fit=fit,
            start=start,
            out=out,
            name=name,
            cross_validate=cross_validate,
            form=form,
            processes=1 if processes is None else processes,
        )
    )
