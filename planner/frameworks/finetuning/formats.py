"""What is read as a run of a tool that fine-tunes: its YAML, and launch scripts that name one."""

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.reader import TunedFile, read_tuned, tuner_of
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import launched_run
from planner.frameworks.shell.marks import unmarked

ENDINGS = (".yaml", ".yml")


def _is_configuration(file: RunFile) -> bool:
    if not file.has_ending(*ENDINGS) or file.is_script:
        return False
    return tuner_of(file.text, file.name) is not None


def _configuration(file: RunFile) -> ExistingRun:
    return read_tuned(TunedFile(file.text, file.name, file.query, file.find))


def _named(run: LaunchedRun) -> tuple[str, str] | None:
    """Return name and text of the configuration that a command names; None where it names none."""
    for word in run.argv:
        text = run.find(word) if word.endswith(ENDINGS) else None
        if text and tuner_of(text, word) is not None:
            return word.rsplit("/", 1)[-1], text
    return None


def _launched(run: LaunchedRun) -> ExistingRun:
    named = _named(run)
    assert named is not None  # asked before it is read
    name, text = named
    script = unmarked(run.launch.script).rsplit("/", 1)[-1].removesuffix(".py")
    module, _, task = script.rpartition(".")
    if module == "trl.scripts" and task != "sft":
        fix = "check a run of trl.scripts.sft"
        raise SpecError(InputProblem(f"TRL trains by {task} here, which is not read", fix, name))
    config = run.launch.options.get("config-file", "")
    launch = run.named_file(unmarked(config)) if config else ""
    query = run.launched_query
    arguments = {k: v for k, v in run.arguments.items() if k not in ("config", "config_file")}
    query = query.launched(arguments, run.launch.n_devices)
    file = TunedFile(text, name, query, run.find, launch, "launch script")
    return launched_run(read_tuned(file), run)


RUN_FORMATS = (
    RunFormat(
        _is_configuration,
        _configuration,
        "a YAML of TRL, axolotl or LLaMA-Factory",
        precedence=10,
    ),
)
SCRIPT_FORMATS = (ScriptFormat(lambda run: _named(run) is not None, _launched, precedence=20),)
