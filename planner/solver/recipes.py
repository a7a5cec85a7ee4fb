"""Numeric recipes that a search may choose between, where the job leaves its precision open."""

from dataclasses import replace

from costmodels.precision import PRECISIONS
from planner.errors import UsageError
from planner.option_names import option
from planner.solver.options import SolveOptions
from planner.specs.inputs import ModelInput
from planner.specs.search.axis_values import PRECISION


def with_recipe(model: ModelInput, precision: str) -> ModelInput:
    """Return the model with its job in one recipe, the file's own for "".

    A plan of it has the id that it has where the file names this recipe alone.
    """
    if precision in ("", model.job.precision):
        return model
    training = {**model.document["training"], "precision": precision}
    return replace(
        model,
        job=replace(model.job, precision=precision),
        document={**model.document, "training": training},
    )


def asked_recipes(model: ModelInput, options: SolveOptions) -> tuple[str, ...]:
    """Return the recipes that are searched, in the order of `PRECISIONS`.

    What the options name counts, else what the file lists.
    """
    named = options.restricted().get(PRECISION)
    return model.precisions if named is None else tuple(PRECISIONS[i] for i in sorted(named))


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


def pinned_to(options: SolveOptions, precision: str) -> SolveOptions:
    """Return options that choose between recipes with one of them pinned; others as they are."""
    if PRECISION not in options.restricted():
        return options
    only = {axis: values for axis, values in options.only.items() if axis != PRECISION}
    pins = {**options.pins, PRECISION: PRECISIONS.index(precision)}
    return replace(options, pins=pins, only=only)


def one_recipe(model: ModelInput, options: SolveOptions, what: str) -> ModelInput:
    """Return the model in the one recipe that is asked for; `UsageError` where several are."""
    names = asked_recipes(model, options)
    if len(names) > 1:
        raise UsageError(
            f"the precision is left open ({', '.join(names)}), and {what}",
            "name one recipe: " + option("pin", f"{PRECISION}={names[0]}"),
            code="several",
        )
    return with_recipe(model, names[0])
