"""The parts of a result besides its plans: what was asked, counts, the certificate, notes."""

import os
from collections import Counter
from typing import Any

import planner
from costmodels.problem import Problem
from planner.solver.answer.result import Certificate, Counts, Miss, Rejection, UnevenTried
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import ANCHORS
from planner.solver.options import SolveOptions
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput, ModelInput
from searches.pricing.candidates import Candidate
from searches.pricing.outcome import Outcome


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return which numbers priced the plans."""
    from hardware.catalogue import load_catalogue

    return {
        "name": calibration.name,
        "hash": calibration.content_hash,
        "anchored": calibration.anchored,
        "anchored_by": list(calibration.anchored_by),
        "anchors": {name.partition(".")[2]: calibration.value(name) for name in ANCHORS}
        if calibration.anchored
        else None,
        "catalogue": load_catalogue().content_hash[:12],
        "version": planner.__version__,
        "interval": "learnt from measured runs by regime, see interval_regime of a plan",
    }


def result_id(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, command: str
) -> str:
    """Return the id of an answer: what was asked, of which inputs, at which prices."""
    priced = calibration_json(options.calibration)
    return content_id(command, model.document, cluster.document, options.to_json(), priced)


def inputs_json(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, names: tuple[str, str]
) -> dict[str, Any]:
    """Return what was asked, with every default filled in."""
    return {
        "model_source": os.path.basename(names[0]),
        "cluster_source": os.path.basename(names[1]),
        "model": model.document,
        "cluster": cluster.document,
        "options": options.to_json(),
    }


def result_counts(outcomes: list[Outcome]) -> Counts:
    """Return how the spaces of all searches came down to the answer."""
    n_legal, n_fit = sum(x.n_legal for x in outcomes), sum(x.n_fit for x in outcomes)
    n_excluded = sum(x.n_excluded for x in outcomes)
    return Counts(
        candidate_shapes=sum(x.n_candidate_shapes for x in outcomes),
        shapes=sum(x.n_shapes for x in outcomes),
        space=n_legal,
        pruned=n_legal - n_fit - n_excluded,
        fit=n_fit,
        priced=n_fit,
        excluded=n_excluded,
    )


def certificate(outcomes: list[Outcome]) -> Certificate | None:
    """Return what is proven about the fastest plan of all pools; None where none fits."""
    results = [x for x in outcomes if x.finalists]
    if not results:
        return None
    fastest_s = min(x.finalists[0].step_s for x in results)
    bound_s = min(x.bound_s for x in outcomes)
    uneven = [shape for x in results for shape in x.split_shapes]
    only_uneven = all(not x.n_fit for x in results)
    return Certificate(
        fastest_s=fastest_s,
        simulated=sum(len(x.finalists) for x in results),
        bound_s=bound_s if bound_s < float("inf") else None,
        proven=all(x.complete for x in outcomes) and not only_uneven,
        only_uneven=only_uneven,
        uneven_shapes=len(uneven),
        uneven_proven=sum(x.proven for x in uneven),
        uneven_gap_frac=max((x.gap_frac for x in uneven if not x.proven), default=0.0),
    )


def rejections(outcomes: list[Outcome]) -> tuple[Rejection, ...]:
    """Return the rejections of shapes, then of plans, the most frequent first."""
    shapes: Counter[str] = Counter()
    plans: Counter[str] = Counter()
    for outcome in outcomes:
        shapes.update(outcome.rejected_shapes)
        plans.update(outcome.rejected_plans)
    results = [Rejection(code, n, "shapes") for code, n in shapes.items()]
    results += [Rejection(code, n, "plans") for code, n in plans.items()]
    return tuple(sorted(results, key=lambda r: (r.of != "shapes", -r.n, r.code)))


def uneven_tried(outcomes: list[Outcome]) -> UnevenTried | None:
    """Return what was tried with uneven splits where nothing fits; None where nothing was."""
    shapes = sum(x.n_misses for x in outcomes)
    return UnevenTried(shapes, sum(x.n_hopeless for x in outcomes)) if shapes else None


def closest_miss_of(closest: Candidate | None, problem: Problem) -> Miss | None:
    """Return the plan that comes closest to fitting, as results hold it."""
    if closest is None:
        return None
    return Miss(closest.layout, closest.peak_bytes, problem.pool.usable_bytes)


def segment_notes(cluster: ClusterInput, names: set[str]) -> tuple[str, ...]:
    """Return a note on each pool among some whose jobs use a part of every scale-up domain."""
    results = []
    for i, pool in enumerate(cluster.cluster.pools):
        if pool.name not in names or not pool.domain_nodes:
            continue
        used, value = pool.scale_up_domain // pool.devices_per_node, cluster.only(i).n_given
        idle = value - pool.n_devices
        left = f"; {idle} of {value} devices stay idle" if idle else ""
        results.append(
            f"pool {pool.name}: jobs use {used} of the {pool.domain_nodes} nodes of every scale-up"
            f" domain, so that groups whose size divides {pool.scale_up_domain} stay inside{left}"
        )
    return tuple(results)


def input_notes(model: ModelInput, cluster: ClusterInput) -> tuple[str, ...]:
    """Return the notes on two inputs: what was assumed, and what has no second source."""
    notes = (*model.notes, *cluster.notes)
    if cluster.announced:
        names = ", ".join(cluster.announced)
        notes = (*notes, f"assumed every figure of {names} (announced, not measured)")
    if not cluster.assumed:
        return notes
    return (
        *notes,
        f"{len(cluster.assumed)} catalogue figures in use have no second source: "
        + ", ".join(cluster.assumed),
    )
