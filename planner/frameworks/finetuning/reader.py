"""Configurations of tools that fine-tune, to runs of the engine that they start.

The file says batch sizes, lengths and adapters; how weights are sharded stands in it or in a file
of Accelerate or DeepSpeed beside it. The sizes of the model come from a model file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.readings import TunerReading, check_stage, reading_of
from planner.frameworks.finetuning.tuners import TUNERS
from planner.frameworks.fsdp2.reader import read_accelerate
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import FindFile
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import flattened, with_set
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
    model = file.query.model
    if model is None:
        fix = "name its sizes: " + option("model", "llama3-8b") + ", a YAML file or a config.json"
        raise SpecError(
            InputProblem("names a model by its path, not by its sizes", fix, file.name)
        )
    data = flattened(parse_yaml(file.text, file.name).data)
    own, others = _sorted_sets(data, file.query.sets)
    settings = with_set({**reading.defaults, **data, **file.query.script_arguments}, own)
    check_stage(reading, settings, file.name)
    arguments = _arguments(reading, settings, file.name)
    query = replace(file.query, sets=others, script_arguments=arguments)
    text, assumed = _launch_text(file, reading, settings)
    kind = f"{reading.title} {file.kind}"
    run = read_accelerate(text, file.name, query, file.find, kind)
    notes = _packing_notes(reading.packing(settings), model)
    return replace(
        run,
        job={**run.job, **_tuned_job(reading, settings, model, file.name)},
        assumed=(*run.assumed, *assumed),
        notes=(*run.notes, *notes),
        key_names=reading.key_names,
    )


def _sorted_sets(
    data: Mapping[str, Any], sets: tuple[tuple[str, object], ...]
) -> tuple[tuple[tuple[str, object], ...], tuple[tuple[str, object], ...]]:
    """Return the changes of a tool's own settings, and those of its engine's file."""
    sections = {key.partition(".")[0] for key in data}

    def is_own(key: str) -> bool:
        first, dot, _ = key.partition(".")
        return first in sections or (first not in TOP and not dot)

    return tuple(x for x in sets if is_own(x[0])), tuple(x for x in sets if not is_own(x[0]))


WHOLE_NUMBERS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "cutoff_len",
)


def _arguments(reading: TunerReading, settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the arguments of the Trainer; `SpecError` where a size is no whole number."""
    arguments = reading.arguments(settings)
    for name in WHOLE_NUMBERS:
        value = arguments.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            message = f"{name}: expected a whole number, got {value!r}"
            raise SpecError(InputProblem(message, "", source))
    if arguments.get("bf16") is None and not arguments.get("fp16"):
        arguments["bf16"] = True  # as all of the tools have it on devices that can
    return arguments


def _launch_text(
    file: TunedFile, reading: TunerReading, settings: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """Return the launch configuration, and what was taken where there is none."""
    own = reading.launch(settings)
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
    reading: TunerReading, settings: Mapping[str, Any], model: ModelInput, source: str
) -> dict[str, Any]:
    """Return the fields of `training:` that the tool's file states: task, adapters, packs."""
    lora = reading.lora(settings)
    fields: dict[str, Any] = {}
    if lora is not None:
        fields = {"task": "lora" if lora["base"] == "bf16" else "qlora", "lora": lora}
        for name in ("rank", "alpha", "dropout"):
            if isinstance(lora[name], bool) or not isinstance(lora[name], int | float):
                message = f"{name} of the adapters: expected a number, got {lora[name]!r}"
                raise SpecError(InputProblem(message, "", source))
    elif model.job.tuning is not None:
        fields = {"task": "sft", "lora": {}}
    data = model.document.get("training", {}).get("data")
    if isinstance(data, Mapping):
        fields["data"] = {**data, "packing": reading.packing(settings)}
    return fields


def _packing_notes(packing: str, model: ModelInput) -> list[str]:
    if packing == "none" or model.job.data is not None:
        return []
    return ["packing: how long samples are stands in no file; each is priced as one that fills"]
