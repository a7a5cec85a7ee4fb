"""The numbers of a job that a search may choose between, where they are left open or named."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from costmodels.precision import PRECISIONS, SIXTEEN_BIT
from costmodels.shapes import TrainingJob
from planner.errors import UsageError
from planner.option_names import option
from planner.solver.options import SolveOptions
from planner.specs.inputs import ModelInput
from planner.specs.model import named_job, training_document
from planner.specs.search.axis_values import NUMERICS, PRECISION

Words = Mapping[str, str]
"""Value by axis of `NUMERICS`, as it is written."""


def numerics_of(job: TrainingJob) -> dict[str, str]:
    """Return the value of every axis of a job's numbers."""
    words = {axis: str(getattr(job, axis)) for axis, values in NUMERICS.items() if values}
    narrow = job.base_precision in ("bf16-grads", "bf16-true")
    words["grad_dtype"] = job.grad_dtype or ("bf16" if narrow else "fp32")
    switches = ("fp8_param_gather", "fp8_attention", "fp8_output")
    return words | {axis: "on" if getattr(job, axis) else "off" for axis in switches}


def job_with(job: TrainingJob, words: Words) -> TrainingJob:
    """Return a job with other numbers; `numerics_fault` says whether there are such."""
    fields: dict[str, Any] = {
        axis: word == "on" if NUMERICS[axis] == ("off", "on") else word
        for axis, word in words.items()
    }
    precision, grads = fields.get(PRECISION, job.precision), fields.get("grad_dtype")
    if precision == "bf16-grads" and grads:
        fields |= {PRECISION: "bf16" if grads == "fp32" else precision, "grad_dtype": ""}
    elif grads and (precision == "bf16-true" or (grads == "fp32" and precision in SIXTEEN_BIT)):
        fields["grad_dtype"] = ""
    return replace(job, **fields)


def with_numerics(model: ModelInput, words: Words) -> ModelInput:
    """Return the model with its job in other numbers; what is not named is the file's own.

    A plan of it has the id that it has where the file says so itself.
    """
    job = job_with(model.job, words)
    if job == model.job:
        return model
    before, after = numerics_of(model.job), numerics_of(job)
    changed = dict(model.changed) | {a: w for a, w in after.items() if before[a] != w}
    stated = model.document["training"]
    kept = {name: stated[name] for name in ("tokens", "data") if name in stated}
    own = training_document(named_job(job)) | kept
    document = {**model.document, "training": own}
    return replace(model, job=job, document=document, changed=tuple(changed.items()))


def asked_numerics(model: ModelInput, options: SolveOptions) -> tuple[Words, ...]:
    """Return the numbers that are searched: every combination of what is named or left open.

    What the options name counts, else the recipes that the file lists; in the order of `NUMERICS`.
    """
    named = options.restricted()
    choices = {
        axis: tuple(words[i] for i in sorted(named[axis]))
        for axis, words in NUMERICS.items()
        if axis in named
    }
    if PRECISION not in choices:
        choices = {PRECISION: model.precisions, **choices}
    return tuple(dict(zip(choices, row, strict=True)) for row in product(*choices.values()))


def asked_recipes(model: ModelInput, options: SolveOptions) -> tuple[str, ...]:
    """Return the recipes that are searched, in the order of `PRECISIONS`."""
    return tuple(dict.fromkeys(words[PRECISION] for words in asked_numerics(model, options)))


def asked_models(model: ModelInput, options: SolveOptions) -> list[ModelInput]:
    """Return the model in each of the numbers that are searched."""
    return [with_numerics(model, words) for words in asked_numerics(model, options)]


def with_asked_recipes(model: ModelInput, options: SolveOptions) -> ModelInput:
    """Return the model with the recipes that are searched as those that its file leaves open."""
    names = asked_recipes(model, options)
    return replace(model, listed=names if len(names) > 1 else ())


def with_open_recipes(model: ModelInput, options: SolveOptions) -> SolveOptions:
    """Return the options with the recipes that the file lists, where they name none."""
    if len(model.precisions) == 1 or PRECISION in options.restricted():
        return options
    listed = frozenset(PRECISIONS.index(name) for name in model.precisions)
    return replace(options, only={**options.only, PRECISION: listed})


def pinned_to(options: SolveOptions, words: Words) -> SolveOptions:
    """Return options that choose between numbers with one of each pinned; others as they are."""
    named = [axis for axis in words if axis in options.restricted()]
    if not named:
        return options
    only = {axis: values for axis, values in options.only.items() if axis not in named}
    pins = {**options.pins, **{axis: NUMERICS[axis].index(words[axis]) for axis in named}}
    return replace(options, pins=pins, only=only)


def one_recipe(model: ModelInput, options: SolveOptions, what: str) -> ModelInput:
    """Return the model in the one recipe that is asked for; `UsageError` where several are."""
    asked = asked_numerics(model, options)
    if len(asked) > 1:
        axis = next(a for a in asked[0] if len({words[a] for words in asked}) > 1)
        names = list(dict.fromkeys(words[axis] for words in asked))
        subject = "the precision" if axis == PRECISION else axis
        raise UsageError(
            f"{subject} is left open ({', '.join(names)}), and {what}",
            "name one recipe: " + option("pin", f"{axis}={names[0]}"),
            code="several",
        )
    return with_numerics(model, asked[0])
