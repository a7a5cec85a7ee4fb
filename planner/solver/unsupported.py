"""What this version does not model, refused by name instead of being priced wrongly."""

from collections.abc import Iterator

from costmodels.layers.kinds import present_kinds
from costmodels.optimizers.groups import kinds_without_matrices, needs_groups
from costmodels.precision import numerics_fault
from costmodels.problem import Problem
from costmodels.tuning.targets import ADAPTED_MIXERS
from hardware.parts import Pool
from hardware.torus import Torus, slice_shape
from planner.errors import SearchError, UsageError
from planner.option_names import command, joined, option
from planner.solver.options import SolveOptions
from searches.frameworks.registry import framework_names
from searches.frameworks.table import schedule_runs
from searches.options import TEXT_AXES

NO_FRAMEWORK = {
    "Google": "how the chips of this part are joined is not known",
    "AWS": "Trainium runs the Neuron SDK; no stack profile and no emitter knows it, and the "
    "latency of NeuronLink is not published",
    "Intel": "Gaudi runs SynapseAI; no stack profile and no emitter knows it",
}
"""Vendors whose parts are in the catalogue without what a plan needs, and what is missing; their
parts with a known torus are modelled."""

UNEVEN_LINKS = {"xgmi3": "the two dies of a module have more links between them than to others"}
"""Links, by catalogue name, that join a domain with neither a switch nor equal ones between all
devices: those of MI250X. MI210, of the same generation, is one die on PCIe."""

SCALED_BLOCKS = ("blackwell", "blackwell-ultra", "rubin", "cdna4", "cdna5")
"""Generations whose matrix units take a scale per 32 elements, which mxfp8 needs (Transformer
Engine, transformer_engine/pytorch/quantization.py, check_mxfp8_support)."""
FOUR_BITS = ("blackwell", "blackwell-ultra", "blackwell-rtx", "rubin")
"""Generations on which Transformer Engine has nvfp4: SM 10 and later (check_nvfp4_support)."""
WITHOUT_BLOCKS = ("ada",)
"""Generations with fp8 that have no scale per block of 128 in its products: SM below 9.0
(check_fp8_block_scaling_support)."""


def check_options(options: SolveOptions) -> None:
    """Raise `UsageError` for an option that `solve` does not search."""
    requested = {options.pins.get("schedule"), *options.only.get("schedule", ())}
    names = [TEXT_AXES["schedule"][code] for code in sorted(requested - {None})]
    for name in names if options.framework != "any" else ():
        if name != "none" and not schedule_runs(options.framework, name):
            able = [named for named in framework_names() if schedule_runs(named, name)]
            raise UsageError(
                f"schedule {name} is not searched: no configuration for it can be written"
                + (" with " + option("framework", options.framework) if able else ""),
                "add "
                + joined(" or ", [option("framework", x) for x in (*able, "any")])
                + ", or leave schedule open",
            )


def is_modelled(problem: Problem) -> bool:
    """Tell whether `check_problem` has nothing to say."""
    try:
        check_problem(problem)
    except SearchError:
        return False
    return True


def _tuning_faults(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what of a job with adapters is not priced, and what to change."""
    shape, job = problem.shape, problem.job
    if job.tuning is None:
        return
    kinds = [kind for kind, _ in present_kinds(shape)]
    strange = [kind.name for kind in kinds if kind.mixer not in ADAPTED_MIXERS]
    parts = {
        "a vision tower": shape.vision,
        "an encoder": shape.encoder,
        "multi-token prediction": shape.mtp_layers,
        "a layer before the head": shape.head_transform,
        "latents": shape.diffusion,
        "embeddings of each layer": shape.per_layer,
        "layers of unlike widths": shape.variants,
        "several residual streams": shape.residual_streams,
    }
    whole = option("set", "training.task=sft")
    if strange:
        yield f"adapters beside layers of kind {', '.join(strange)} are not priced", whole
    for name, has_it in parts.items():
        if has_it:
            fix = option("set", "model.mtp_layers=0") if name.startswith("multi-token") else whole
            yield f"adapters beside {name} are not priced", fix
    if needs_groups(job.recipe.optimizer):
        yield (
            f"optimizer {job.optimizer} of adapters is not priced: it treats a matrix as one",
            option("set", "training.optimizer=adam"),
        )
    if job.recipe.linear_precision and job.tuning.storage.is_quantized:
        yield (
            f"precision {job.precision} beside a base in {job.tuning.base}: it is widened to 16"
            " bits, not to fp8",
            option("set", "training.precision=bf16"),
        )


def _check_torus(pool: Pool, torus: Torus) -> None:
    """Raise `SearchError` for a slice that does not exist."""
    part, n_dies = pool.accelerator, torus.devices_per_chip
    if not pool.slice_shape:
        known = [n for n in range(1, pool.n_devices + 1) if slice_shape(torus, n)]
        sizes = [n for n in known if pool.n_devices % n == 0]
        what = "chips" if n_dies == 1 else f"devices ({n_dies} a chip)"
        raise SearchError(
            f"{part.name}: no slice has {pool.scale_up_domain} {what}",
            f"set scale_up_domain to {what} of a slice, such as {sizes[-1]}, or use"
            f" {known[-1]} {what} in one",
            "cluster",
            code="not-modelled",
        )


def check_problem(problem: Problem) -> None:
    """Raise `SearchError` for hardware or a recipe that this version does not model."""
    part, job = problem.pool.accelerator, problem.job
    if part.torus:
        _check_torus(problem.pool, part.torus)
    elif part.vendor in NO_FRAMEWORK:
        raise SearchError(
            f"{part.name}: {part.vendor} parts are not modelled in this version: "
            f"{NO_FRAMEWORK[part.vendor]}",
            "use an NVIDIA or AMD accelerator; " + command("catalog list") + " shows them",
            "cluster",
            code="not-modelled",
        )
    if part.scale_up_link in UNEVEN_LINKS:
        raise SearchError(
            f"{part.name}: its links are not modelled in this version: "
            f"{UNEVEN_LINKS[part.scale_up_link]}",
            "use a part with equal links between all devices, such as mi300x-192gb",
            "cluster",
            code="not-modelled",
        )
    fault = numerics_fault(job.numerics)
    if fault:
        raise SearchError(fault, "change one of the two, or leave it out", code="not-modelled")
    for message, fix in _tuning_faults(problem):
        raise SearchError(message, fix, code="not-modelled")
    unknown = kinds_without_matrices(problem.shape) if needs_groups(job.recipe.optimizer) else ()
    if unknown:
        raise SearchError(
            f"optimizer {job.optimizer} with layers of kind {', '.join(unknown)}: their matrices"
            " are not listed, and it treats a matrix as one",
            option("set", "training.optimizer=adam"),
            code="not-modelled",
        )
    if job.recipe.optimizer.has_preconditioners and "fp32" not in part.peak_flops_per_s:
        raise SearchError(
            f"{part.name}: no rate of fp32 products is known, which optimizer {job.optimizer}"
            " multiplies its preconditioners at",
            option("set", "training.optimizer=adam"),
            code="not-modelled",
        )
    precision, peaks = job.recipe.linear, part.peak_flops_per_s
    if precision not in peaks:
        raise SearchError(
            f"{part.name} has no {precision} matrix units, needed by precision {job.precision!r}",
            f"its precisions: {', '.join(sorted(peaks))}; for example "
            + option("set", "training.precision=fp16"),
            code="not-modelled",
        )
    if job.recipe.fp8_recipe == "mxfp8" and part.generation not in SCALED_BLOCKS:
        raise SearchError(
            f"{part.name} has no matrix units with a scale per 32 elements, needed by precision"
            f" {job.precision!r}",
            "use an accelerator that has them (Blackwell, CDNA 4), or "
            + option("set", "training.precision=fp8-tensorwise"),
            code="not-modelled",
        )
    if job.recipe.fp4_recipe and part.generation not in FOUR_BITS:
        raise SearchError(
            f"{part.name} has no products of {job.precision}, which Transformer Engine has from"
            " Blackwell (SM 10) on",
            option("set", "training.precision=fp8-tensorwise"),
            code="not-modelled",
        )
    if job.recipe.fp8_recipe == "blockwise" and part.generation in WITHOUT_BLOCKS:
        raise SearchError(
            f"{part.name} has no products with a scale per block of 128, needed by precision"
            f" {job.precision!r}: Transformer Engine has them from Hopper (SM 9.0) on",
            option("set", "training.precision=fp8-tensorwise"),
            code="not-modelled",
        )
    if job.precision == "fp32":
        raise SearchError(
            "precision fp32: memory-bound operators in fp32 are not modelled in this version",
            "use bf16 or fp16: " + option("set", "training.precision=bf16"),
            code="not-modelled",
        )
    kernels = set(part.efficiency.attention_frac) - {"unfused"}
    if problem.shape.flash_attention and not kernels:
        raise SearchError(
            f"{part.name} has no flash attention kernel",
            option("set", "model.flash_attention=false"),
            code="not-modelled",
        )
