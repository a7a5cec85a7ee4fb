"""What a file of the planner repeats in a comment, for the fields that no flag carries."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.layers.kinds import KIND_ALIASES
from planner.frameworks.megatron.core_details import AUX_LOSS
from planner.frameworks.megatron.layer_kinds import kind_runs, kinds_of_runs
from planner.frameworks.runs.existing_run import ExistingRun
from planner.specs.inputs import ModelInput

FACTS = "# layout: "
"""Comment line of files that the planner wrote: the plan as JSON."""
TRIAL_STEPS = 10
"""Steps that the planner writes for a job without `tokens`."""


def written_facts(text: str) -> dict[str, Any]:
    """Return the plan that a file of the planner repeats in a comment; {} in other files."""
    for line in text.splitlines()[:40]:
        if line.startswith(FACTS):
            try:
                data = json.loads(line.removeprefix(FACTS))
            except json.JSONDecodeError:
                return {}
            return data if isinstance(data, dict) else {}
    return {}


def with_unsaid(run: ExistingRun, text: str, own: ModelInput | None) -> ExistingRun:
    """Return the run with the fields that its settings round or leave out.

    Tokens are those of the user's model file, or of the facts, where they make the same number of
    steps; everything else comes from the facts, and only where the file itself says the model.
    """
    unsaid = written_facts(text).get("unsaid")
    unsaid = unsaid if isinstance(unsaid, dict) else {}
    document = {k: dict(v) for k, v in run.model.document.items()} if run.model else {}
    job = dict(run.job)
    if own is not None:
        _set_tokens(job, document, own.job.tokens or None)
    elif "tokens" in unsaid:
        _set_tokens(job, document, unsaid["tokens"])
    if run.model is None:
        return replace(run, job=job)
    if own is None:
        _complete(document["model"], unsaid)
    return replace(run, job=job, model=replace(run.model, document=document))


def _set_tokens(job: dict[str, Any], document: Mapping[str, Any], wanted: object) -> None:
    """Put `wanted` for the tokens of a job where they make as many steps."""
    places = [place for place in (job, document.get("training")) if place and "tokens" in place]
    training = {**document.get("training", {}), **job}
    now, step = (
        training.get("tokens"),
        training.get("seq_len", 0) * training.get("global_batch", 0),
    )
    if not now or not step:
        return
    if wanted is None and now == TRIAL_STEPS * step:
        for place in places:
            del place["tokens"]
    elif isinstance(wanted, (int, float)) and now == -(-wanted // step) * step:
        for place in places:
            place["tokens"] = float(wanted)


def _complete(model: dict[str, Any], unsaid: Mapping[str, Any]) -> None:
    for key in ("max_positions", "padded_vocab", "vocab_multiple"):
        if isinstance(unsaid.get(key), int):
            model[key] = unsaid[key]
    imbalance = unsaid.get("imbalance")
    if "moe" in model and isinstance(imbalance, (int, float)):
        model["moe"] = {**model["moe"], "imbalance": float(imbalance)}
    details = unsaid.get("details")
    if isinstance(details, dict) and details.get("window"):
        _without_windows(model)
    _merge_details(model, details)


def _without_windows(model: dict[str, Any]) -> None:
    """Take the kinds of layers with a window back: the plan had the window as a detail."""
    runs = model.pop("layer_kinds", None)
    model.pop("window", None)
    if runs is not None:
        kinds = [kind.replace("window+", "attention+") for kind in kinds_of_runs(runs)]
        model["layer_kinds"] = kind_runs([KIND_ALIASES.get(kind, kind) for kind in kinds])


def _merge_details(section: dict[str, Any], unsaid: Any) -> None:
    """Add the details that no flag says; flags win, but for what every plan is written with."""
    result = dict(section.pop("details", {}))
    # Without details in the model file a plan still has a loss that balances experts.
    rest = unsaid if isinstance(unsaid, dict) else {"aux_loss": None}
    for name, value in rest.items():
        if value is not None:
            result.setdefault(name, value)
        elif result.get(name) == AUX_LOSS:
            del result[name]
    if result:
        section["details"] = result


def with_constants(run: ExistingRun, text: str) -> ExistingRun:
    """Return the run of a recipe with the details that the planner wrote; its constants win."""
    details = written_facts(text).get("unsaid", {}).get("details")
    if run.model is None or not isinstance(details, dict):
        return run
    result = dict(details)
    for name in details:
        line = re.search(rf"^{name.upper()} = (.+)$", text, re.M)
        # QK_NORM and WINDOW have other values than the fields of these names.
        if line and name not in ("qk_norm", "window"):
            try:
                result[name] = ast.literal_eval(line[1])
            except (ValueError, SyntaxError):
                continue
    section = {**run.model.document["model"], "details": result}
    return replace(
        run, model=replace(run.model, document={**run.model.document, "model": section})
    )
