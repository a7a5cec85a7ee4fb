"""Where formulas and figures come from, as the cards say it."""

from costmodels.problem import Problem
from hardware.parts import Provenance
from planner.render.plan_view.cards import Inputs
from planner.render.plan_view.quantities import quantity_text
from planner.solver.calibration.file import Calibration


def _figure(name: str, text: str, provenance: Provenance | None) -> tuple[str, str]:
    if provenance is None:
        return name, text
    mark = f", {provenance.status}" if provenance.status != "confirmed" else ""
    return name, f"{text} ({provenance.source}, {provenance.date}{mark})"


def compute_figures(problem: Problem) -> Inputs:
    """Return the rates of the device that compute goes by, with their sources."""
    part, precision = problem.pool.accelerator, problem.job.recipe.linear
    eff, provenance = part.efficiency, part.provenance
    return (
        _figure(
            f"P, dense {precision} peak",
            quantity_text(part.peak_flops_per_s[precision], "FLOP/s"),
            provenance.get(f"peak_flops_per_s.{precision}") or provenance.get("peak_flops_per_s"),
        ),
        ("eta, sustained share of large products", f"{eff.gemm_frac:.3f} (calibration)"),
        _figure(
            "B, HBM bandwidth",
            quantity_text(part.hbm_bytes_per_s, "B/s"),
            provenance.get("hbm_bytes_per_s"),
        ),
        ("sustained share of it", f"{eff.hbm_frac:.3f} (calibration)"),
    )


def network_figures(problem: Problem) -> Inputs:
    """Return the bandwidths of the networks, with their sources."""
    pool = problem.pool
    part, nic = pool.accelerator, pool.nic
    return (
        _figure(
            "ring bandwidth inside the scale-up domain",
            quantity_text(part.ring_bytes_per_s, "B/s"),
            part.provenance.get("ring_bytes_per_s"),
        ),
        _figure(
            "scale-out bandwidth of a port",
            quantity_text(nic.bytes_per_s, "B/s"),
            nic.provenance.get("bytes_per_s"),
        ),
        (
            "share that a library reaches, ports of a device",
            f"{nic.efficiency:.3f}, {pool.nics_per_node / pool.devices_per_node:g}",
        ),
    )


def calibration_words(calibration: Calibration) -> str:
    """Return the name of what fitted the model's constants."""
    return f"calibration {calibration.name} ({calibration.content_hash[:12]})"
