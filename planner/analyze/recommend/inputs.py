"""What the questions of `planner recommend` take of a model file beside its sizes."""

from planner.solver.request import SolveRequest
from planner.specs.inputs import ModelInput


def with_framework(request: SolveRequest, model: ModelInput) -> SolveRequest:
    """Return the request with the framework of the model's search, where it names none itself.

    A job that trains adapters has one: the usual framework trains all weights.
    """
    named = SolveRequest.of_section(model.search).framework
    if request.framework not in ("", "default") or not named:
        return request
    return request.model_copy(update={"framework": named})
