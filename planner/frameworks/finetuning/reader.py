"""Configurations of tools that fine-tune, to runs of the engine that they start.

The file says batch sizes, lengths and adapters; how weights are sharded stands in it or in a file
of Accelerate or DeepSpeed beside it. The sizes of the model come from a model file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.readings import reading_of
from planner.frameworks.finetuning.setting_kinds import typed_settings
from planner.frameworks.finetuning.settings.judgement import (
    check_optimizer,
    optimizer_notes,
    refuse_settings,
    setting_doubts,
    setting_notes,
)
from planner.frameworks.finetuning.settings.tuner_reading import (
    TunerReading,
    check_means,
    check_stage,
    check_training,
)
from planner.frameworks.finetuning.torchtune.recipes import overridden
from planner.frameworks.finetuning.tuners import TUNERS
from planner.frameworks.fsdp2.reader import read_accelerate
from planner.frameworks.runs.existing_run import PAIR_SEQUENCES, ExistingRun
from planner.frameworks.runs.format import FindFile
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import flattened, with_set
from planner.frameworks.runs.trainer_arguments import ACCUMULATION, BATCH
from planner.option_names import option
from planner.specs.inputs import ModelInput
from planner.specs.yaml.document import parse_yaml
from searches.frameworks.fsdp2 import TOP


@dataclass(frozen=True, slots=True)
class TunedFile:
    """A configuration of a tool: its text, and how it is reached."""

    text: str
    name: str
    """Path or name as the user gave it."""
    query: RunQuery
    find: FindFile
    launch: str = ""
    """Text of the launch configuration of Accelerate that a script names; empty: none."""
    kind: str = "configuration"
    changes: tuple[str, ...] = ()
    """Words behind the name of a recipe of torchtune, which change its configuration."""


def tuner_of(text: str, name: str) -> TunerReading | None:
    """Return whose configuration a text is; None where it is no mapping of YAML or no tool's."""
    try:
        data = parse_yaml(text, name).data
    except SpecError:
        return None
    return reading_of({str(key) for key in data}) if isinstance(data, dict) else None


def read_tuned(file: TunedFile) -> ExistingRun:
    """Return the run of a configuration; `SpecError` where a model file or a file is missing."""
    reading = tuner_of(file.text, file.name)
    assert reading is not None  # asked before it is read
    tree = overridden(parse_yaml(file.text, file.name).data, file.changes, file.name)
    check_training(reading, flattened(tree), file.name)
    model = file.query.model
    if model is None:
        fix = "name its sizes: " + option("model", "llama3-8b") + ", a YAML file or a config.json"
        raise SpecError(
            InputProblem("names a model by its path, not by its sizes", fix, file.name)
        )
    data = flattened(tree)
    own, others = _sorted_sets(data, file.query.sets)
    stated = with_set({**data, **file.query.script_arguments}, own)
    stated = typed_settings(stated, file.name, reading.sections)
    settings = {**reading.defaults, **stated}
    check_stage(reading, settings, file.name)
    refuse_settings(reading.name, stated, file.name)
    settings = _with_accumulation(reading, settings, file.query.n_devices)
    check_means(reading, settings, file.name)
    arguments = _arguments(reading, settings)
    check_optimizer(reading.title, arguments.get("optim"), file.name)
    reference = reading.reference(settings)
    query = replace(file.query, sets=others, script_arguments=arguments)
    query = _in_pairs(query, file.name) if reference else query
    text, assumed = _launch_text(file, reading, settings)
    kind = f"{reading.title} {file.kind}"
    run = read_accelerate(text, file.name, query, file.find, kind)
    notes = [
        *_packing_notes(reading.packing(settings), model),
        *reading.notes(settings),
        *optimizer_notes(arguments.get("optim"), run.framework),
        *setting_notes(reading.name, stated),
    ]
    run = _of_pairs(run) if reference else run
    return replace(
        run,
        job={**run.job, **_tuned_job(reading, settings, model)},
        assumed=(*run.assumed, *assumed),
        notes=(*run.notes, *notes),
        doubts=(*run.doubts, *setting_doubts(reading.name, stated)),
        key_names=reading.named_keys(settings),
        refused=(*run.refused, *reading.refused(settings)),
        held_values=reading.held_values(settings, run.n_devices or query.n_devices),
        has_named_keys_alone=TUNERS[reading.name].has_own_loop,
    )


def _with_accumulation(
    reading: TunerReading, settings: Mapping[str, Any], n_devices: int | None
) -> dict[str, Any]:
    """Return settings with the micro-batches that a tool takes where its file does not say."""
    samples, mbs = reading.batch_samples, settings.get(BATCH)
    is_stated = settings.get(ACCUMULATION) is not None
    if not samples or is_stated or not n_devices or not mbs:
        return dict(settings)
    return {**settings, ACCUMULATION: max(1, -(-samples // (mbs * n_devices)))}


def _in_pairs(query: RunQuery, source: str) -> RunQuery:
    """Return the query with a pinned micro-batch in pairs of answers, as the file counts."""
    pinned = query.pins.get("mbs")
    if not isinstance(pinned, int):
        return query
    if pinned % PAIR_SEQUENCES:
        message = f"mbs {pinned} parts the answers of a pair"
        raise SpecError(InputProblem(message, "pin an even mbs", source))
    return replace(query, pins={**query.pins, "mbs": pinned // PAIR_SEQUENCES})


def _of_pairs(run: ExistingRun) -> ExistingRun:
    """Return a run whose batches were read in pairs of answers, in sequences."""
    counts = {
        name: run.layout[name] * PAIR_SEQUENCES for name in ("mbs", "gbs") if name in run.layout
    }
    job = dict(run.job)
    if "global_batch" in job:
        job["global_batch"] *= PAIR_SEQUENCES
    return replace(run, layout={**run.layout, **counts}, job=job, sample_sequences=PAIR_SEQUENCES)


def _sorted_sets(
    data: Mapping[str, Any], sets: tuple[tuple[str, object], ...]
) -> tuple[tuple[tuple[str, object], ...], tuple[tuple[str, object], ...]]:
    """Return the changes of a tool's own settings, and those of its engine's file."""
    sections = {key.partition(".")[0] for key in data}

    def is_own(key: str) -> bool:
        first, dot, _ = key.partition(".")
        return first in sections or (first not in TOP and not dot)

    return tuple(x for x in sets if is_own(x[0])), tuple(x for x in sets if not is_own(x[0]))


def _arguments(reading: TunerReading, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the Trainer."""
    arguments = reading.arguments(settings)
    if arguments.get("bf16") is None and not arguments.get("fp16"):
        arguments["bf16"] = True  # as all of the tools have it on devices that can
    return arguments


def _launch_text(
    file: TunedFile, reading: TunerReading, settings: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """Return the launch configuration, and what was taken where there is none."""
    try:
        own = reading.launch(settings, file.find)
    except SpecError as error:
        named = (x if x.file else replace(x, file=file.name) for x in error.problems)
        raise SpecError(tuple(named)) from None
    if own is not None:
        return json.dumps(own), ()
    if file.launch:
        return file.launch, ()
    beside = file.find(TUNERS[reading.name].accelerate_file)
    if beside:
        return beside, ()
    text = "zero = 0: no file of Accelerate or DeepSpeed is named, every rank holds all weights"
    return json.dumps({"distributed_type": "MULTI_GPU"}), (text,)


def _tuned_job(
    reading: TunerReading, settings: Mapping[str, Any], model: ModelInput
) -> dict[str, Any]:
    """Return the fields of `training:` that the tool's file states: task, adapters, packs."""
    lora, reference = reading.lora(settings), reading.reference(settings)
    fields: dict[str, Any] = {}
    if lora is not None:
        fields = {"task": "lora" if lora["base"] == "bf16" else "qlora", "lora": lora}
    elif reference:
        fields = {"task": "dpo", "lora": {}}
    elif model.job.tuning is not None:
        fields = {"task": "sft", "lora": {}}
    if reference or model.job.compares_answers:
        fields = {"task": "sft", **fields, "reference": reference or None}
    data = model.document.get("training", {}).get("data")
    if isinstance(data, Mapping):
        fields["data"] = {**data, "packing": reading.packing(settings)}
    if precision := reading.precision(settings):
        fields["precision"] = precision
    return fields


def _packing_notes(packing: str, model: ModelInput) -> list[str]:
    if packing == "none" or model.job.data is not None:
        return []
    return ["packing: how long samples are stands in no file; each is priced as one that fills"]
