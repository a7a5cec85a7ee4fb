"""From a file to an existing run: which kind of file it is, and the reader for it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import Problem, SpecError, UsageError
from planner.frameworks.deepspeed.reader import MICRO, looks_like_deepspeed, read_deepspeed
from planner.frameworks.fsdp2.reader import looks_like_accelerate, read_accelerate
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import parse_flags, set_flags
from planner.frameworks.megatron.primus import (
    looks_like_primus,
    looks_like_settings,
    read_primus,
    read_settings,
)
from planner.frameworks.megatron.scripts import (
    has_megatron_flags,
    megatron_deepspeed_script,
    script_around_megatron,
    swift_script,
)
from planner.frameworks.megatron.yaml_arguments import looks_like_model_args, read_model_args
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.foreign import refuse_foreign
from planner.frameworks.runs.launch_script import (
    SWIFT_TASKS,
    LaunchCommand,
    looks_like_script,
    read_launch,
)
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.trainer_arguments import (
    ACCUMULATION,
    BATCH,
    adapters,
    trainer_arguments,
    trainer_configuration,
)
from planner.frameworks.runs.written_facts import with_constants, with_unsaid
from planner.frameworks.shell.marks import unmarked, unresolved
from planner.frameworks.shell.wrappers import SCRIPT_ENDINGS
from planner.frameworks.torchtitan.reader import (
    looks_like_recipe,
    looks_like_toml,
    read_recipe,
    read_toml,
)
from planner.option_names import option
from planner.specs.importers.formats import looks_like_megatron
from planner.specs.inputs import Content
from planner.specs.yaml.document import read_text, refuse_long_numbers

FORMATS = (
    "a Megatron-LM launch script or its flags",
    "a YAML file with MODEL_ARGS",
    "a DeepSpeed JSON",
    "a torchtitan TOML or recipe",
    "an Accelerate YAML",
    "a Primus experiment",
)
SUFFIXES = (".sh", ".sbatch", ".slurm", ".json", ".toml", ".py", ".yaml", ".yml")


def read_run(file: str | Content, asked: RunQuery, framework: str = "") -> ExistingRun:
    """Return the run of a file; `FILE#NAME` names one recipe of several.

    Raises `SpecError` for a file that is none of `FORMATS`, and `UsageError` where `framework` is
    named and the file is for another.
    """
    if isinstance(file, Content):
        name, _, part = file.name.partition("#")
        run = run_of_text(str(file.content), name or file.label, asked, part)
        return _for_framework(run, framework, name or file.label)
    name, part, text = run_text(file)
    return _for_framework(run_of_text(text, name, asked, part), framework, name)


def run_text(file: str) -> tuple[str, str, str]:
    """Return path, recipe and text of `FILE` or `FILE#NAME`; `SpecError` where there is none."""
    name, _, part = file.partition("#") if not Path(file).exists() else (file, "", "")
    if Path(name).is_dir():
        inside = [p.name for p in sorted(Path(name).iterdir()) if p.suffix in SUFFIXES]
        fix = "name one of its files: " + ", ".join(inside[:8]) if inside else f"name {FORMATS[0]}"
        raise SpecError(Problem("is a folder, not a run", fix, name))
    return name, part, read_text(name)


def _for_framework(run: ExistingRun, framework: str, name: str) -> ExistingRun:
    if framework and run.framework != framework:
        raise UsageError(
            option("framework", framework) + f": {name} is a {run.format}, for {run.framework}",
            "leave it out, or " + option("framework", run.framework),
        )
    return run


def run_of_text(text: str, name: str, asked: RunQuery, part: str = "") -> ExistingRun:
    """Return the run that a text describes; `part` names a recipe."""
    run = with_unsaid(_read(text, name, asked, part), text, asked.model)
    return replace(run, overestimated=run.overestimated or _overestimated(run))


def _overestimated(run: ExistingRun) -> str:
    """Return what the notes of a run say that its price puts on the device and it does not."""
    match = re.compile(r"memory (is|are) overestimated")
    named = (note.partition(":")[0] for note in run.notes if match.search(note))
    return ", ".join(dict.fromkeys(named))


def _read(text: str, name: str, asked: RunQuery, part: str) -> ExistingRun:
    if not text.strip():
        raise SpecError(Problem("the file is empty", f"expected {FORMATS[0]}", name))
    refuse_long_numbers(text, name)
    if looks_like_primus(text):
        return read_primus(text, name, asked, _files_beside(name, asked))
    if name.endswith((".yaml", ".yml")) or text.lstrip().startswith("{"):
        refuse_foreign(text, name)
    if text.lstrip().startswith("{"):
        return _json(text, name, asked)
    if is_bridge(text) and not looks_like_script(text):
        raise _no_bridge(name)
    if name.endswith(".py") or (looks_like_recipe(text) and not looks_like_script(text)):
        run = read_recipe(
            text,
            name,
            function=part,
            model=asked.model,
            sets=asked.sets,
            n_devices=asked.n_devices,
        )
        return with_constants(run, text)
    if looks_like_model_args(text):
        return _model_args(text, name, asked)
    if looks_like_settings(text) and not looks_like_script(text):
        return read_settings(text, name, asked)
    if looks_like_accelerate(text):
        return read_accelerate(
            text,
            name,
            model=asked.model,
            sets=asked.sets,
            n_devices=asked.n_devices,
            arguments=asked.arguments,
            read_file=_files_beside(name, asked),
            launched=asked.all_devices,
        )
    if name.endswith(".toml") or (looks_like_toml(text) and not looks_like_script(text)):
        return read_toml(
            text,
            name,
            model=asked.model,
            sets=asked.sets,
            n_devices=asked.n_devices,
            version=asked.version,
        )
    named = name.endswith(SCRIPT_ENDINGS)
    if named or looks_like_script(text) or looks_like_megatron(text):
        return _script(text, name, asked)
    if re.search(r"^(model|pools):", text, re.MULTILINE):
        fix = "name the run first, then the cluster; a model goes to " + option("model")
        raise SpecError(Problem("is a model or cluster file, not a run", fix, name))
    raise SpecError(Problem("is not a run that is known here", f"expected {_listed()}", name))


def is_bridge(text: str) -> bool:
    """Tell whether a text is Python for Megatron-Bridge."""
    return "megatron.bridge" in text and "import" in text


def _no_bridge(name: str) -> SpecError:
    fix = "check the flags of Megatron-LM that it stands for (planner emit --for megatron)"
    return SpecError(Problem("a recipe of Megatron-Bridge, which is not read", fix, name))


def _listed() -> str:
    return ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"


FindFile = Callable[[str], str | None]


def _files_beside(
    name: str, asked: RunQuery, written: Mapping[str, str] | None = None
) -> FindFile:
    """Return a reader of files that a run names: written by its script, or lying beside it."""
    folder = Path(name).parent

    def find(wanted: str) -> str | None:
        short = wanted.rsplit("/", 1)[-1]
        for known, text in {**(asked.beside or {}), **(written or {})}.items():
            if known == wanted or known.rsplit("/", 1)[-1] == short:
                return text
        if asked.beside is not None:
            return None
        for path in (folder / wanted, folder / short):
            try:
                if path.is_file():
                    return read_text(str(path))
            except (OSError, ValueError):
                continue
        return None

    return find


def _json(text: str, name: str, asked: RunQuery) -> ExistingRun:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = {"zero_optimization": None}  # its reader says where the JSON is wrong
    if isinstance(data, dict) and "model_type" in data and "zero_optimization" not in data:
        fix: str = "name the run first, and this file with " + option("model")
        raise SpecError(Problem("is a model (config.json), not a run", fix, name))
    if isinstance(data, dict) and BATCH in data and "zero_optimization" not in data:
        fix = "name the launch script, or the Accelerate or DeepSpeed file that goes with it"
        raise SpecError(Problem("arguments of the Hugging Face Trainer, not a run", fix, name))
    if not looks_like_deepspeed(data):
        raise SpecError(Problem("is not a DeepSpeed configuration", f"expected {_listed()}", name))
    return read_deepspeed(
        text,
        name,
        model=asked.model,
        sets=asked.sets,
        n_devices=asked.n_devices,
        arguments=asked.arguments,
        launched=asked.all_devices,
    )


def _model_args(text: str, name: str, asked: RunQuery) -> ExistingRun:
    words, env = read_model_args(text, name)
    launch = LaunchCommand.of_words(words, env)
    parsed = set_flags(parse_flags(words), asked.sets)
    return megatron_run(
        parsed,
        launch,
        name,
        kind="Megatron-LM MODEL_ARGS",
        n_devices=asked.n_devices,
        model=asked.imported(name),
    )


def _script(text: str, name: str, asked: RunQuery) -> ExistingRun:
    launch = read_launch(text, name, asked.env, _files_beside(name, asked))
    tokens = [unmarked(word) for word in launch.words]
    stated = trainer_arguments(launch.words)
    for size in (BATCH, ACCUMULATION):
        if not isinstance(stated.get(size, 1), int):
            del stated[size]
    if BATCH in stated:
        stated.setdefault(ACCUMULATION, 1)  # as the Trainer has it
    arguments = {**stated, **asked.arguments}
    find = _files_beside(name, asked, launch.files)
    if launch.script in SWIFT_TASKS:
        return swift_script(text, launch, name, asked)
    if has_megatron_flags(launch, tokens):
        if "deepspeed_config" in arguments or "deepspeed" in arguments:
            return megatron_deepspeed_script(text, launch, name, asked, arguments, find)
        return script_around_megatron(text, launch, name, asked)
    config = arguments.get("job.config_file") or arguments.get("job_config_file")
    if config:
        return _torchtitan(str(config), launch, name, asked, find)
    if arguments.get("module") and arguments.get("config"):
        return _torchtitan_module(launch, name, asked, arguments, find)
    if launch.launcher == "accelerate" or "config-file" in launch.options:
        return _accelerate(launch, name, asked, arguments, find)
    json_file = arguments.get("deepspeed_config") or arguments.get("deepspeed")
    if isinstance(json_file, str):
        result = find(json_file)
        if result is None:
            fix = f"put it beside {name}, or check that file itself"
            raise SpecError(Problem(f"names {json_file}, which cannot be read", fix, name))
        run = read_deepspeed(
            result,
            json_file.rsplit("/", 1)[-1],
            model=asked.model,
            sets=asked.sets,
            n_devices=launch.n_devices or asked.n_devices,
            arguments=arguments,
            kind="DeepSpeed launch script",
            launched=bool(launch.n_devices) or asked.all_devices,
        )
        return _of_script(run, launch, name)
    if arguments.get("zero_stage") in (0, 1, 2, 3) and launch.launcher == "deepspeed":
        return _of_script(_own_deepspeed(launch, name, asked, arguments), launch, name)
    if "fsdp" in arguments or BATCH in arguments:
        return _of_script(_trainer(launch, name, asked, arguments, find), launch, name)
    if "tensor_model_parallel_size" in arguments and launch.script:
        if asked.model is None:
            fix = "name its model file: " + option("model", "llama3-8b") + ", or a config.json"
            message = (
                "takes the sizes of its model from a checkpoint: the script does not say them"
            )
            raise SpecError(Problem(message, fix, name, launch.line))
        return script_around_megatron(text, launch, name, asked)
    if not launch.script or looks_like_megatron(text):
        return script_around_megatron(text, launch, name, asked)
    if is_bridge(find(launch.script.rsplit("}", 1)[-1].lstrip("/")) or ""):
        raise _no_bridge(name)
    script = unmarked(launch.script).rsplit("/", 1)[-1]
    message = f"{script}: no flags of Megatron-LM, no file of DeepSpeed or Accelerate"
    fix = f"expected {_listed()}"
    raise SpecError(Problem(message, fix, name, launch.line))


def _own_deepspeed(
    launch: LaunchCommand, name: str, asked: RunQuery, arguments: Mapping[str, Any]
) -> ExistingRun:
    """Return the run of a script that makes its DeepSpeed configuration of its own arguments."""
    keywords: dict[str, Any] = {"stage": int(arguments["zero_stage"]), "overlap_comm": True}
    if arguments.get("offload") is True:
        keywords |= {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
    bf16 = arguments.get("dtype") == "bf16" or arguments.get("bf16") is True
    half = "bf16" if bf16 else "fp16"
    config: dict[str, Any] = {"zero_optimization": keywords, half: {"enabled": True}}
    for key, theirs in ((MICRO, BATCH), ("gradient_accumulation_steps", ACCUMULATION)):
        if arguments.get(theirs):
            config[key] = arguments[theirs]
    run = read_deepspeed(
        json.dumps(config),
        name,
        model=asked.model,
        sets=asked.sets,
        n_devices=launch.n_devices or asked.n_devices,
        arguments=arguments,
        kind="DeepSpeed launch script",
        launched=bool(launch.n_devices) or asked.all_devices,
    )
    why = "the script itself makes its DeepSpeed configuration of its arguments"
    taken = f"ZeRO {keywords['stage']} and the batch sizes of the arguments, {half}, are taken"
    return replace(run, doubts=(Doubt("--zero_stage", why, taken, launch.line), *run.doubts))


def _trainer(
    launch: LaunchCommand, name: str, asked: RunQuery, arguments: Mapping[str, Any], find: FindFile
) -> ExistingRun:
    """Return the run of a script with arguments of Hugging Face's Trainer: FSDP, or plain DDP."""
    return read_accelerate(
        trainer_configuration(arguments, find(str(arguments.get("fsdp_config") or "")) or ""),
        name,
        model=asked.model,
        sets=asked.sets,
        n_devices=launch.n_devices or asked.n_devices,
        arguments=arguments,
        read_file=find,
        kind="Hugging Face Trainer launch script",
        launched=bool(launch.n_devices) or asked.all_devices,
    )


def _of_script(run: ExistingRun, launch: LaunchCommand, name: str) -> ExistingRun:
    """Return the run of a configuration with what its launch script adds."""
    return replace(
        run,
        source=name,
        env=launch.env,
        n_devices=launch.n_devices or run.n_devices,
        n_nodes=launch.n_nodes,
        per_node=launch.per_node,
        notes=(*launch.notes, *run.notes, *adapters(trainer_arguments(launch.words))),
    )


def _torchtitan(
    config: str, launch: LaunchCommand, name: str, asked: RunQuery, find: FindFile
) -> ExistingRun:
    result = find(config)
    if result is None:
        fix = f"put it beside {name}, or check that file itself"
        raise SpecError(Problem(f"names {config}, which cannot be read", fix, name))
    sets = [*_dotted(launch.words), *asked.sets]
    run = read_toml(
        result,
        config.rsplit("/", 1)[-1],
        model=asked.model,
        sets=sets,
        n_devices=launch.n_devices or asked.n_devices,
        launched=bool(launch.n_devices),
        version=asked.version,
    )
    return _of_script(run, launch, name)


def _torchtitan_module(
    launch: LaunchCommand, name: str, asked: RunQuery, arguments: Mapping[str, Any], find: FindFile
) -> ExistingRun:
    """Return the run of `-m torchtitan.train --module MODULE --config RECIPE`."""
    module, recipe = str(arguments["module"]), str(arguments["config"])
    path = module.replace(".", "/")
    result = find(f"{path}.py")
    if result is None:
        path = path if "/" in path else f"torchtitan/models/{path}"
        fix = f"check the file with it: {path}/config_registry.py#{recipe}"
        message = f"names the recipe {recipe} of {module}, which does not lie beside it"
        raise SpecError(Problem(message, fix, name, launch.line))
    sets = [*_dotted(launch.words), *asked.sets]
    run = read_recipe(
        result,
        f"{path}.py",
        function=recipe,
        model=asked.model,
        sets=sets,
        n_devices=launch.n_devices or asked.n_devices,
        launched=bool(launch.n_devices),
    )
    return with_unsaid(_of_script(run, launch, name), result, asked.model)


def _dotted(words: Sequence[str]) -> list[tuple[str, object]]:
    """Return overrides such as `--parallelism.tensor_parallel_degree 2`."""
    pairs: list[tuple[str, object]] = []
    for i, word in enumerate(words):
        match = re.fullmatch(r"--([a-z_]+\.[a-z_.]+)(?:=(.*))?", word)
        if not match or match.group(1).startswith("job."):
            continue
        value = match.group(2)
        if value is None and i + 1 < len(words) and not words[i + 1].startswith("--"):
            value = words[i + 1]
        if value is None or not unresolved(value):
            pairs.append((match.group(1), "true" if value is None else value))
    return pairs


def _accelerate(
    launch: LaunchCommand,
    name: str,
    asked: RunQuery,
    arguments: Mapping[str, Any],
    find: FindFile,
) -> ExistingRun:
    config = launch.options.get("config-file", "")
    text = find(unmarked(config)) if config else ""
    if text is None:
        fix = f"put it beside {name}, or check that file itself"
        raise SpecError(Problem(f"names {unmarked(config)}, which cannot be read", fix, name))
    if not text:
        text = _accelerate_options(launch.options)
    devices = launch.n_devices or asked.n_devices
    launched = bool(launch.n_devices) or asked.all_devices
    arguments = _with_file(arguments, find)
    run = read_accelerate(
        text,
        unmarked(config).rsplit("/", 1)[-1] or name,
        model=asked.model,
        sets=asked.sets,
        n_devices=devices,
        arguments=arguments,
        read_file=find,
        kind="Accelerate launch script",
        launched=launched,
    )
    if launch.n_devices and run.n_devices != launch.n_devices:
        sets = [("num_processes", launch.n_devices), *asked.sets]
        run = read_accelerate(
            text,
            name,
            model=asked.model,
            sets=sets,
            n_devices=devices,
            arguments=arguments,
            read_file=find,
            kind="Accelerate launch script",
            launched=launched,
        )
    return replace(
        run,
        source=name,
        env=launch.env,
        notes=(*launch.notes, *run.notes),
        n_devices=run.n_devices or launch.n_devices,
    )


def _with_file(arguments: Mapping[str, Any], find: FindFile) -> dict[str, Any]:
    """Return the arguments with those of a JSON file that the script reads them from."""
    named = arguments.get("trainer_args")
    text = find(str(named)) if named else None
    try:
        data = json.loads(text) if text else {}
    except json.JSONDecodeError:
        data = {}
    return {**(data if isinstance(data, dict) else {}), **arguments}


def _accelerate_options(options: Mapping[str, str]) -> str:
    """Return options of `accelerate launch` as the file that they stand for."""
    data: dict[str, Any] = {"distributed_type": "MULTI_GPU"}
    inner: dict[str, Any] = {}
    for name, value in options.items():
        key = name.replace("-", "_")
        if key.startswith("fsdp_"):
            inner[key] = value
        elif key in ("num_processes", "num_machines", "mixed_precision"):
            data[key] = int(value) if value.isdecimal() else value
    if "use-fsdp" in options or inner:
        data |= {"distributed_type": "FSDP", "fsdp_config": inner or {"fsdp_version": 1}}
    return json.dumps(data)
