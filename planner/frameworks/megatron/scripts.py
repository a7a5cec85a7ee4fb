"""Launch scripts around Megatron-LM and what is made of it: forks, Megatron-DeepSpeed, swift."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.deepspeed.reader import pipeline_stages
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import Parsed, parse_flags, set_flags
from planner.frameworks.megatron.forks import Understood, line_in, understood
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.format import LaunchedRun
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import with_layers
from planner.frameworks.runs.settings import flattened
from planner.frameworks.runs.trainer_arguments import trainer_arguments
from planner.frameworks.runs.written_facts import written_facts
from planner.frameworks.shell.marks import unmarked
from planner.option_names import option


def has_megatron_flags(launch: LaunchCommand, tokens: Sequence[str]) -> bool:
    """Tell whether a command is for Megatron-LM, also where it lacks one of the needed flags."""
    values = {word.partition("=")[0].replace("_", "-") for word in tokens}
    sizes = {"--num-layers", "--hidden-size", "--num-attention-heads"} & values
    return "--num-layers" in sizes or (len(sizes) > 1 and "pretrain_" in launch.script)


def script_around_megatron(script: LaunchedRun) -> ExistingRun:
    """Return the run of Megatron-LM, or of a fork that its flags tell."""
    text, launch, query = script.file.text, script.launch, script.query
    if query.version:
        reading = Understood(parse_flags(launch.argv), "", (), (), "")
    else:
        reading = understood(launch.argv, line_in(text), "")
    title, facts = reading.fork or "Megatron-LM", written_facts(text)
    run = megatron_run(
        set_flags(reading.parsed, query.sets),
        launch,
        script.file.name,
        with_layers(query, facts),
        f"{title} launch script" if launch.script else f"{title} flags",
        str(facts.get("model", "")),
    )
    return _with_doubts(run, reading)


def _with_doubts(run: ExistingRun, reading: Understood) -> ExistingRun:
    return replace(
        run,
        fork=reading.fork,
        doubts=(*run.doubts, *reading.doubts),
        notes=(*run.notes, *reading.notes),
        overestimated=reading.saves_memory,
    )


def _json_object(text: str, file: str) -> dict[str, Any]:
    """Return what a JSON file holds, nothing for another format; `SpecError` for broken JSON."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        data: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise SpecError(InputProblem("is nested too deeply", "", file)) from None
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        message = f"is no JSON: {getattr(error, 'msg', error)}"
        raise SpecError(InputProblem(message, "correct it near here", file, line)) from None
    return data


def megatron_deepspeed_script(script: LaunchedRun) -> ExistingRun:
    """Return the run of Megatron-DeepSpeed: Megatron-LM's flags with DeepSpeed's engine."""
    launch, arguments = script.launch, script.arguments
    result = understood(launch.argv, line_in(script.file.text), "Megatron-DeepSpeed")
    parsed = set_flags(_of_deepspeed(result.parsed, launch.argv), script.query.sets)
    base = megatron_run(parsed, launch, script.file.name, script.query)
    file = arguments.get("deepspeed_config")
    text = script.find(str(file)) if file else None
    settings = flattened(_json_object(text, str(file))) if text else {}
    stage = settings.get("zero_optimization.stage", arguments.get("zero_stage", 0))
    doubts = list(result.doubts)
    if text is None:
        settings = _unsaid_deepspeed(base.layout, stage, doubts, str(file or ""))
    layout = {**base.layout, "zero": int(stage) if str(stage).isdecimal() else 0}
    if layout["zero"] and "dp" in layout:
        layout["dp_shard"] = layout["dp"] * layout.get("cp", 1)
    if base.model and layout.get("pp", 1) > 1 and "counts" not in layout:
        layout |= pipeline_stages({}, layout, base.model.document["model"]["layers"])
    if arguments.get("no_pipeline_parallel") is True and layout.get("pp") == 1:
        layout |= {"schedule": "none"}
    recompute = arguments.get("checkpoint_activations") or arguments.get(
        "deepspeed_activation_checkpointing"
    )
    if recompute:
        n_layers = max(layout.get("counts") or (1,))
        layout |= {"recompute": "full", "recompute_layers": n_layers}
        layout["activation_offload_layers"] = n_layers if arguments.get("checkpoint_in_cpu") else 0
    notes = [note for note in base.notes if "overlap" not in note]
    devices = {
        what: settings.get(f"zero_optimization.offload_{what}.device", "none")
        for what in ("optimizer", "param")
    }
    layout |= {"optimizer_offload": devices["optimizer"] not in ("none", ""), "dp_overlap": True}
    if devices["param"] not in ("none", ""):
        notes.append(f"offload_param to {devices['param']}: not modelled; memory is overestimated")
    return replace(
        base,
        framework="deepspeed",
        format="Megatron-DeepSpeed launch script",
        settings=settings,
        layout=layout,
        job={**base.job, **_precision(base, settings)},
        stack={},
        stack_name="megatron-deepspeed",
        switches=(),
        notes=(*notes, *result.notes),
        unknown=(),
        doubts=tuple(doubts),
        fork=result.fork,
        overestimated=result.saves_memory,
    )


def _precision(base: ExistingRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of fp16: DeepSpeed sums its gradients in fp16 unless told otherwise."""
    training = base.model.document["training"] if base.model else {}
    wide = settings.get("data_types.grad_accum_dtype") in ("fp32", "float32")
    return {"precision": "fp16-grads"} if training.get("precision") == "fp16" and not wide else {}


def _of_deepspeed(parsed: Parsed, tokens: Sequence[str]) -> Parsed:
    """Return the flags as Megatron-DeepSpeed means them: it has experts in every second layer."""
    settings = dict(parsed.settings)
    if (settings.get("num_experts") or 0) <= 1:
        settings.pop("num_experts", None)
    else:
        _refuse_pyramids(tokens)
        value = trainer_arguments(tokens)
        every, layers = value.get("expert_interval", 2), settings.get("num_layers")
        settings.setdefault("moe_router_topk", 1)
        if isinstance(every, int) and isinstance(layers, int) and every > 0:
            settings["moe_layer_freq"] = [int((i + 1) % every == 0) for i in range(layers)]
    return replace(parsed, settings=settings, unknown=(), faults=(), odd_words={}, open_words=())


def _refuse_pyramids(tokens: Sequence[str]) -> None:
    """Raise `SpecError` for experts of several numbers (PR-MoE)."""
    begin = tokens.index("--num-experts") + 1 if "--num-experts" in tokens else len(tokens)
    named = set(itertools.takewhile(str.isdecimal, tokens[begin:]))
    if len(named) > 1:
        listed = " and ".join(sorted(named, key=int))
        message = f"--num-experts of {listed}: layers with several numbers are not modelled"
        raise SpecError(
            InputProblem(message, "planner prices the same number in every expert layer")
        )


def _unsaid_deepspeed(
    layout: Mapping[str, Any], stage: Any, doubts: list[Doubt], file: str
) -> dict[str, Any]:
    """Return the settings that stand in for a DeepSpeed file that is not here."""
    why = "the DeepSpeed file does not lie beside the script and the script does not write it"
    assumed = f"ZeRO {stage} and the batch sizes of the flags are taken"
    doubts.append(Doubt(unmarked(file) or "--deepspeed_config", why, assumed))
    return {"train_micro_batch_size_per_gpu": layout.get("mbs", 1)}


SWIFT = (
    "--use-distributed-optimizer",
    "--bf16",
    "--recompute-granularity",
    "selective",
    "--micro-batch-size",
    "1",
    "--global-batch-size",
    "16",
    "--cross-entropy-loss-fusion",
    "--cross-entropy-fusion-impl",
    "native",
)
"""What ms-swift runs Megatron-Core with unless told otherwise (swift/megatron/arguments)."""


def swift_script(script: LaunchedRun) -> ExistingRun:
    """Return the run of ms-swift's `megatron sft`: the model comes by its name in a hub."""
    launch, query, name = script.launch, script.query, script.file.name
    if query.model is None:
        fix = (
            "name its model file: "
            + option("model", "llama3-8b")
            + ", a YAML file or a config.json"
        )
        message = "ms-swift takes the sizes from a checkpoint: the script does not say the model"
        raise SpecError(InputProblem(message, fix, name, launch.line))
    lines = line_in(script.file.text)
    result = understood((*SWIFT, *launch.argv), lines, "ms-swift")
    parsed = set_flags(replace(result.parsed, unknown=()), query.sets)
    run = megatron_run(parsed, launch, name, query, "ms-swift (Megatron) launch script")
    arguments = trainer_arguments(launch.argv)
    notes = tuple(
        f"--{key.replace('_', '-')} {arguments[key]}: adapters are not modelled, priced"
        " as training all weights"
        for key in ("train_type", "tuner_type")
        if "lora" in str(arguments.get(key, ""))
    )
    doubts = tuple(d for d in result.doubts if "parallel" in d.what or "recompute" in d.what)
    run = replace(run, notes=(*run.notes, *notes))
    return _with_doubts(run, replace(result, doubts=doubts, notes=()))
