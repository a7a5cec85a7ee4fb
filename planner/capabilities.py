"""What this version does not model, refused by name instead of being priced wrongly."""

from costmodels.problem import Problem
from planner.errors import SearchError, UsageError
from planner.options import SolveOptions
from searches.options import TEXT_AXES

LARGEST_DOMAIN = 16
"""Scale-up domains of one node are modelled (16: DGX-2); racks are not."""


def check_options(options: SolveOptions) -> None:
    """Raise `UsageError` for an option that `solve` does not search."""
    gpipe = TEXT_AXES["schedule"].index("gpipe")
    asked = {options.pins.get("schedule"), *options.only.get("schedule", ())}
    if gpipe in asked:
        raise UsageError(
            "schedule gpipe is not searched: no framework here runs it",
            "price one layout with planner evaluate --pin schedule=gpipe, or leave schedule open",
        )


def check_problem(problem: Problem) -> None:
    """Raise `SearchError` for hardware or a recipe that this version does not model."""
    part, pool, job = problem.pool.accelerator, problem.pool, problem.job
    if part.vendor != "NVIDIA":
        raise SearchError(
            f"{part.name}: the links of {part.vendor} parts are not modelled in this version",
            "use an NVIDIA accelerator; planner catalog list shows them",
        )
    if max(part.scale_up_domain, pool.scale_up_domain) > LARGEST_DOMAIN:
        raise SearchError(
            f"{part.name}: scale-up domains beyond one node (racks of "
            f"{max(part.scale_up_domain, pool.scale_up_domain)}) are not modelled in this version",
            "use the HGX part of the generation, such as b200-sxm-180gb",
        )
    precision, peaks = job.recipe.linear, part.peak_flops_per_s
    if precision not in peaks:
        raise SearchError(
            f"{part.name} has no {precision} matrix units, needed by precision {job.precision!r}",
            f"its precisions: {', '.join(sorted(peaks))}; "
            "for example --set training.precision=fp16",
        )
    if job.precision == "fp32":
        raise SearchError(
            "precision fp32: activations and messages in fp32 are not modelled in this version",
            "use bf16 or fp16: --set training.precision=bf16",
        )
    kernels = set(part.efficiency.attention_frac) - {"unfused"}
    if problem.shape.flash_attention and not kernels:
        raise SearchError(
            f"{part.name} has no flash attention kernel",
            "--set model.flash_attention=false",
        )
