"""What requests hold, as the library takes it and within the limits: inputs, searches, designs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import PlannerError
from planner.solver.request import SolveRequest, override_pairs
from service.handlers import schemas
from service.handlers.documents import calibration_in, content_of, reference_in
from service.handlers.limits import (
    RequestLimits,
    check_cluster,
    check_input_limits,
    check_model,
    too_much,
)
from service.handlers.problems import Refusal, problem_of


def contents_of(request: schemas.Priced, settings: RequestLimits) -> tuple[Any, Any]:
    """Return model and cluster as the library takes them, within the limits of documents."""
    model = content_of(request.model, "model", "model", settings)
    return model, content_of(request.cluster, "cluster", "cluster", settings)


def limited_inputs(request: schemas.Priced, settings: RequestLimits) -> tuple[Any, Any]:
    """Return both inputs, within the limits."""
    from planner.solver.sources import read_inputs

    contents = contents_of(request, settings)
    fields = dict(request)
    inputs = read_inputs(*contents, override_pairs(fields["set"]), fields["pool"])
    check_input_limits(*inputs, settings)
    return inputs


@contextmanager
def errors_inside(field: str) -> Iterator[None]:
    """Place what is wrong in a field of a request there; nothing where it is empty."""
    try:
        yield
    except PlannerError as error:
        raise problem_of(error).inside(field) if field else error from None
    except Refusal as problem:
        raise problem.inside(field) if field else problem from None


def search_of(request: schemas.Priced, settings: RequestLimits | None = None) -> SolveRequest:
    """Return what a request searches for; without its documents where there are no settings."""
    fields = dict(request)
    del fields["calibration"], fields["reference"]
    if settings is not None:
        fields["calibration"] = calibration_in(request.calibration, settings)
        fields["reference"] = reference_in(request.reference, request.files, settings)
    return SolveRequest.of_json(fields)


def limited_curve(request: schemas.ScaleBody, settings: RequestLimits) -> Any:
    """Return the curve of a request, within the limits, checked and not computed."""
    from planner.sweeps.scaling.curve import scale_task
    from planner.sweeps.scaling.sizes import SizeRange

    if request.points > settings.sizes:
        what, fix = "sizes", "ask for fewer points"
        raise too_much(what, request.points, settings.sizes, "points", fix)
    if request.over == "devices" and max(request.to, request.from_) > settings.devices:
        maximum = settings.devices
        raise too_much("devices", max(request.to, request.from_), maximum, "to", "name fewer")
    model, cluster = contents_of(request, settings)
    sizes = SizeRange(request.over, request.scaling, request.from_, request.to, request.points)
    return scale_task(model, cluster, sizes, search_of(request, settings))


def limited_batch(request: schemas.BatchSolveBody, settings: RequestLimits) -> Any:
    """Return the cells of a batch, within the limits, read and not computed."""
    from planner.sweeps.scaling.batch import batch_cells
    from planner.sweeps.scaling.batch_places import named

    n_cells = len(request.jobs) * len(request.clusters) * len(request.counts)
    if n_cells > settings.points:
        fix = "send several batches"
        raise too_much("questions of a batch", n_cells, settings.points, "jobs", fix)
    if max(request.counts, default=0) > settings.devices:
        fix = "name fewer"
        raise too_much("devices", max(request.counts), settings.devices, "counts", fix)
    jobs, clusters = {}, {}
    for name, each in request.jobs.items():
        with named(f"jobs.{name}"):
            jobs[name] = content_of(each, "model", f"jobs.{name}", settings)
    for name, each in request.clusters.items():
        with named(f"clusters.{name}"):
            clusters[name] = content_of(each, "cluster", f"clusters.{name}", settings)
    search = SolveRequest(framework=request.framework)
    cells = batch_cells(jobs, clusters, request.counts, search)
    for cell in cells:
        check_cluster(cell.task.job.cluster, settings, f"clusters.{cell.cluster}")
        with errors_inside(f"jobs.{cell.job}"):
            check_model(cell.task.job.model, settings)
    return cells


def limited_sweep(request: schemas.SweepBody, settings: RequestLimits) -> Any:
    """Return the sweep of a request, within the limits; its points are not looked at."""
    from planner.sweeps.spec.spec import sweep_from_dict

    sweep = sweep_from_dict(
        request.spec,
        open_files=False,
        calibration=calibration_in(request.calibration, settings),
        reference=reference_in(request.reference, request.files, settings),
    )
    if sweep.n_points > settings.points:
        fix = "vary fewer values, or send several sweeps"
        raise too_much("points", sweep.n_points, settings.points, "spec", fix)
    top = sweep.search.top if sweep.search else None
    if top and top > settings.top:
        raise too_much("plans of a point", top, settings.top, "spec.search.top", "leave it out")
    return sweep
