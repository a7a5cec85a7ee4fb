"""What the framework of a run makes of it: the model that it describes, the rules it breaks."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodels.axes import switch_axes
from hardware.parts import Accelerator
from planner.errors import SpecError
from planner.frameworks.deepspeed.reader import MICRO, STEPS, TOTAL
from planner.frameworks.releases import known_releases, lacking_words, option_tables
from planner.frameworks.runs.existing_run import ExistingRun
from planner.solver.sources import Overrides
from planner.specs.importers.imported import Imported
from planner.specs.inputs import ModelInput
from planner.specs.loader import model_from_dict
from planner.specs.model import sizes_as_stated
from searches.frameworks.case import LAYOUT_FIELDS, Case
from searches.frameworks.rule import Broken, FrameworkRule
from searches.frameworks.table import broken_rules


class Verdict(NamedTuple):
    """The rules of its framework that a run breaks, in the order of the table."""

    refused: tuple[Broken, ...]
    """What the framework refuses."""
    ignored: tuple[Broken, ...]
    """Settings that it passes over in silence."""
    unwritten: tuple[Broken, ...]
    """What it runs and we write no configuration for."""


def describe(
    run: ExistingRun, own: ModelInput | None, overrides: Overrides = ()
) -> tuple[ModelInput | None, SpecError | None]:
    """Return the model and job of the run, or the error that its sizes make.

    `overrides` win over what the run and the model file `own` say.
    """
    try:
        result = model_from_dict(_document(run, own), overrides)
    except SpecError as error:
        return None, error
    name = own.path if own else run.source
    return dataclasses.replace(result, path=name), None


def _document(run: ExistingRun, own: ModelInput | None) -> dict[str, Any]:
    """Return what the run, and the model file beside it, say of the model and the job."""
    imported: Imported | None = run.model
    document = own.document if own else imported.document if imported else {}
    job = {k: v for k, v in run.job.items() if v is not None}
    training = {**document.get("training", {}), **job}
    section = {"name": _name_of(run.source), **document.get("model", {})}
    return {"model": section, "training": at_least_a_step(training)}


def at_least_a_step(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without its tokens where they are fewer than those of one step."""
    tokens = training.get("tokens")
    step = training.get("seq_len", 0) * training.get("global_batch", 0)
    return {**training, "tokens": None} if tokens is not None and tokens < step else {**training}


def _name_of(source: str) -> str:
    """Return a model's name from the file that describes it."""
    stem = os.path.basename(source).rsplit(".", 1)[0]
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-._+")
    return plain[:64] or "model"


def judge(
    run: ExistingRun,
    model: ModelInput | None,
    accelerator: Accelerator,
    release: str,
    own: ModelInput | None = None,
    *,
    asserted: bool = False,
) -> Verdict:
    """Return what the framework refuses, what it passes over, and what only we do not write.

    Where the sizes go together in no `model`, rules see them as the run states them; `own` is the
    model file beside it. Unless the user says which release runs (`asserted`), a flag of
    Megatron-LM that is not known may be a fork's, and of a fork only the rules on layouts hold.
    """
    megatron = run.framework == "megatron" and not asserted
    forked = bool(run.fork) and not asserted
    sizes = (model.shape, model.job) if model else sizes_as_stated(_document(run, own))
    layout = {k: v for k, v in run.layout.items() if k in CASE_FIELDS}
    settings = run.settings
    if run.fork.endswith("Megatron-DeepSpeed"):  # its batch is for replicas: a rule on layouts
        settings = {k: v for k, v in settings.items() if k not in (TOTAL, STEPS)}
        settings[MICRO] = run.layout.get("mbs", 1)
    case = Case.of_run(
        settings,
        env=run.env,
        layout=layout,
        model=sizes[0] if sizes else None,
        job=sizes[1] if sizes else None,
        generation=accelerator.generation,
        vendor=accelerator.vendor,
    )
    lacking = lacking_there(run, release) if asserted else ()
    case = dataclasses.replace(
        case,
        release=release,
        unknown=() if megatron else unknown_there(run, release, lacking),
        lacking=lacking,
        refused=() if forked else tuple(run.refused),
    )
    broken = broken_rules(run.framework, case, version=release)
    if forked:
        broken = tuple(b for b in broken if _holds_for_forks(b.rule))
    ignored = tuple(b for b in broken if b.rule.when == "ignored")
    unwritten = tuple(b for b in broken if b.rule.when == "planner")
    refused = tuple(b for b in broken if b.rule.when not in ("ignored", "planner"))
    return Verdict(refused, ignored, unwritten)


def unknown_there(
    run: ExistingRun, release: str, lacking: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the flags that neither the reader of a run nor any known release knows."""
    known = option_tables("megatron")[0].get(release, {}) if run.framework == "megatron" else {}
    others = {words for words, _ in lacking}
    return tuple(flag for flag in run.unknown if flag not in known and flag not in others)


def lacking_there(run: ExistingRun, release: str) -> tuple[tuple[str, str], ...]:
    """Return the flags of a run that another release has, each with what to do instead."""
    if run.framework != "megatron" or release not in known_releases("megatron"):
        return ()
    words = [word for text in (*run.written.values(), *run.unknown) for word in text.split()]
    lacking = lacking_words(f"megatron@{release}", words)
    return tuple((one.words, one.instead) for one in lacking if one.instead)


def _holds_for_forks(rule: FrameworkRule) -> bool:
    """Tell whether a rule of Megatron-LM is one of sizes: degrees, batch, stages."""
    return rule.level == "layout" or rule.code.startswith("MLM2")


CASE_FIELDS = frozenset((*LAYOUT_FIELDS, *(axis.name for axis in switch_axes()), "counts"))
"""Fields of a run's layout that framework rules read."""
