"""The `task` of a job and its adapters: from what a file says, and back."""

from typing import Any

from costmodels.shapes import ModelShape, TrainingJob
from costmodels.tuning.records import BASES, DPO, LORA, QLORA, TuningJob
from costmodels.tuning.targets import FUSED, known_targets, target_names
from planner.specs.schema import LoraSpec, SearchSpec, SpecFault, TrainingSpec

PREFERRING = (DPO, LORA, QLORA)
"""Tasks that may have a reference."""
ADAPTED = (LORA, QLORA)
"""Tasks that train adapters alone."""


def tuning_of(job: TrainingSpec, shape: ModelShape) -> TuningJob | None:
    """Return the adapters of a job; None where all weights are trained."""
    if job.task not in ADAPTED:
        return None
    lora = job.lora
    return TuningJob(
        lora.rank,
        target_names(lora.targets, shape),
        2.0 * lora.rank if lora.alpha is None else lora.alpha,
        lora.dropout,
        lora.base or ("nf4" if job.task == QLORA else "bf16"),
    )


def reference_place(job: TrainingSpec) -> str:
    """Return where the reference of a job is, one of `REFERENCES`; unsaid, of DPO in memory."""
    return job.reference or ("memory" if job.task == DPO else "none")


def tuning_faults(job: TrainingSpec, shape: ModelShape) -> list[SpecFault]:
    """Return what is wrong with the task of a job and its adapters."""
    path, tuning = ("training", "lora"), tuning_of(job, shape)
    if job.reference and job.task not in PREFERRING:
        message = f"stands with task {job.task}, which compares no answers"
        fix = f"one of the tasks {', '.join(PREFERRING)}, or leave it out"
        return [SpecFault(("training", "reference"), message, fix)]
    if tuning is None:
        if job.lora == LoraSpec():
            return []
        message = f"stands with task {job.task}, which has no adapters"
        return [SpecFault(path, message, "add `task: lora`, or leave it out")]
    known, faults = known_targets(shape), []
    if strange := [name for name in tuning.targets if name not in known]:
        message = f"{shape.name} has no linear layer {', '.join(strange)}"
        fix = f"allowed: all-linear, {', '.join(known)}"
        faults.append(SpecFault((*path, "targets"), message, fix))
    for name, parts in FUSED.items():
        twice = [part for part in parts if part in tuning.targets]
        if name in tuning.targets and twice:
            message = f"{name} holds {twice[0]} already"
            faults.append(SpecFault((*path, "targets"), message, "name one of the two"))
    if job.task == QLORA and not BASES[tuning.base].is_quantized:
        message = f"{tuning.base} is not quantized, which task qlora is"
        faults.append(SpecFault((*path, "base"), message, "nf4 or int8, or `task: lora`"))
    return faults


TUNING_FRAMEWORKS = {False: "bridge", True: "fsdp2"}
"""What a search for a job with adapters is for where nothing names a framework: plain ones, and
those beside quantized weights."""


def searched_section(search: SearchSpec | None, job: TrainingJob) -> SearchSpec | None:
    """Return the `search:` section with a framework that trains the adapters of a job.

    The usual ones train all weights. What the section or the command line names stays. A job that
    compares answers is for that of quantized weights.
    """
    tuning = job.tuning
    if (tuning is None and not job.compares_answers) or (search and search.framework):
        return search
    quantized = tuning is not None and tuning.storage.is_quantized
    framework = TUNING_FRAMEWORKS[quantized or job.compares_answers]
    return (search or SearchSpec()).model_copy(update={"framework": framework})


def tuning_document(job: TrainingJob) -> dict[str, Any]:
    """Return the fields of a `training:` section that say the task; none for pretraining."""
    fields: dict[str, Any] = {"task": job.task}
    if job.compares_answers:
        before = "precomputed" if job.has_precomputed_reference else "none"
        fields["reference"] = "memory" if job.has_reference else before
    if job.tuning is None:
        return fields
    x = job.tuning
    section = {"rank": x.rank, "alpha": x.alpha, "targets": list(x.targets)}
    return fields | {"lora": section | {"dropout": x.dropout, "base": x.base}}
