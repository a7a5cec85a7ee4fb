"""From a launch script to the training command: its words, environment and number of processes.

Understood are torchrun, python -m torch.distributed.run, deepspeed, accelerate launch, srun and
plain python, sbatch headers, and text that holds only the flags. Nothing is executed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import InputProblem, SpecError
from planner.frameworks.shell.marks import unmarked, unresolved
from planner.frameworks.shell.script import Command, Script, read_script

LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "python")
WRAPPERS = frozenset(
    (
        "srun",
        "mpirun",
        "mpiexec",
        "docker",
        "podman",
        "singularity",
        "apptainer",
        "enroot",
        "numactl",
        "sbatch",
        "nsys",
        "nohup",
        "env",
        "time",
        "pdsh",
        "ssh",
        "timeout",
    )
)
"""Commands that start others, however many options they have."""
SWIFT_COMMANDS, SWIFT_TASKS = ("megatron", "swift"), ("sft", "pt", "rlhf")
"""What ms-swift's `megatron` trains."""
TUNER_TASKS: Mapping[str, tuple[str, ...]] = {
    "llamafactory-cli": ("train",),
    "axolotl": ("train",),
    "trl": ("sft", "dpo"),
}
"""Commands of tools that start their own launcher on all devices, and what trains with them."""
TUNE = "tune"
"""The command of torchtune, whose `tune run` starts torchrun with its options."""
TUNE_RECIPE = re.compile(r"(dev/)?\w+_(distributed|single_device)$")
"""Recipes of torchtune behind `tune run` and options of torchrun; others precede --config."""
_DISTRIBUTED = re.compile(r"torch\.distributed\.(run|launch)$")
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.M)
_HEADER_NAMES = {
    "N": "nodes",
    "n": "ntasks",
    "gpus-per-node": "gpus-per-node",
    "gres": "gres",
    "G": "gpus",
}
_NODES = ("nnodes", "num-nodes", "num-machines", "nodes")
_PER_NODE = ("nproc-per-node", "num-gpus", "num-accelerators")
_SWITCHES = frozenset(
    (
        "standalone",
        "use-env",
        "no-python",
        "force-multi",
        "no-local-rank",
        "multi-gpu",
        "use-fsdp",
        "use-deepspeed",
        "exclusive",
        "unbuffered",
        "label",
        "l",
        "u",
        "module",
        "kill-on-bad-exit",
    )
)
"""Options of launchers that take no value."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """The training command of a script."""

    launcher: str
    """One of `LAUNCHERS`, `SWIFT_COMMANDS` or `TUNE`; empty where the text holds only flags."""
    script: str
    """Training script or module as written; empty where the text holds only flags."""
    argv: tuple[str, ...]
    """What follows the training script; may hold marks (`shell.unresolved`)."""
    options: Mapping[str, str]
    """Options of the launcher, dashes for underscores, without leading dashes."""
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Text that the script writes into files, by name as written."""
    line: int
    n_nodes: int | None
    per_node: int | None
    """Processes of a node."""
    n_devices: int | None
    """None where the script does not say it."""
    notes: tuple[str, ...]
    segment_nodes: int | None = None
    """Nodes that the job takes of every scale-up domain (`#SBATCH --segment`)."""

    @staticmethod
    def of_words(tokens: Sequence[str], env: Mapping[str, str]) -> "LaunchCommand":
        """Return the launch of flags that stand in no script."""
        return LaunchCommand("", "", tuple(tokens), {}, env, {}, 1, None, None, None, ())


def looks_like_script(text: str) -> bool:
    """Tell whether a text is a launch script or a list of flags."""
    if text.lstrip().startswith(("#!/", "--")):
        return True
    return bool(
        re.search(
            r"^\s*(export|#SBATCH|torchrun|deepspeed|srun|mpirun|env|python3?)\s", text, re.M
        )
        or re.search(r"(torchrun|torch\.distributed\.(run|launch)|accelerate launch)\s", text)
        or (re.search(r"^\s*[A-Za-z_]\w*=[^=]", text, re.M) and re.search(r"\s--[a-z]", text))
    )


def read_launch(
    text: str,
    file: str,
    env: Mapping[str, str] | None = None,
    read_file: Callable[[str], str | None] | None = None,
) -> LaunchCommand:
    """Return the training command of a script.

    `env` are the variables that the caller would set; `read_file` reads a file next to the script
    that it sources. Raises `SpecError` where there is no training command.
    """
    header = sbatch_header(text)
    variables = {**_slurm_variables(header), **(env or {})}
    script = read_script(text, variables, read_file)
    header = {**sbatch_header("\n".join(script.texts)), **header}
    training_command = _training_command(script)
    notes = [f"{file}: {note}" for note in script.notes]
    notes += [
        f"--env {name} has no effect: the script sets {name} itself"
        for name in script.ignored_env
        if name in (env or {})
    ]
    if training_command is None:
        return _only_flags(script, file, notes)
    command, script_idx, several = training_command
    if several:
        notes.append(f"{file}: of {several} training commands the one of line {command.line}")
    before, after = command.argv[:script_idx], command.argv[script_idx:]
    module = before[-1:] == ("-m",)
    options = _options(before[:-1] if module else before)
    launcher = _launcher(before)
    arguments = {**command.env, **_given_env(before)}
    n_nodes, per_node, n_devices, unknown = _world(launcher, options, header, arguments)
    own = launcher not in ("torchrun", TUNE, "accelerate", *SWIFT_COMMANDS, *TUNER_TASKS)
    if own and n_devices is None and (name := _named_world(script, variables)):
        n_devices = int(str(script.variables[name]))
        unknown = [f"{name}={n_devices} is taken for the number of devices that it starts on"]
    notes += [f"{file}: {note}" for note in unknown]
    return LaunchCommand(
        launcher=launcher,
        script=unmarked(after[0]),
        argv=_until_shell_ends(after[1:]),
        options=options,
        env=arguments,
        files={unmarked(file): content for file, content in script.files.items()},
        line=command.line,
        n_nodes=n_nodes,
        per_node=per_node,
        n_devices=n_devices,
        notes=tuple(notes),
        segment_nodes=_segment(header),
    )


def sbatch_header(text: str) -> dict[str, str]:
    """Return the options of the `#SBATCH` lines by long name."""
    entries: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        for name, value in _options(line.split(" #")[0].split()).items():
            entries[_HEADER_NAMES.get(name, name)] = value
    return entries


def _segment(header: Mapping[str, str]) -> int | None:
    """Return the nodes of a segment of the job (Slurm's topology/block), None without."""
    value = header.get("segment", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _slurm_variables(header: Mapping[str, str]) -> dict[str, str]:
    """Return what Slurm would set from the header."""
    nodes, per = header.get("nodes", ""), header.get("ntasks-per-node", "")
    gpus = _gpus_per_node(header)
    variables: dict[str, str] = {}
    if nodes.isdecimal():
        variables |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    if per.isdecimal():
        variables["SLURM_NTASKS_PER_NODE"] = per
    if gpus:
        variables |= {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_GPUS_PER_NODE": str(gpus)}
    tasks = header.get("ntasks", "")
    if not tasks and nodes.isdecimal() and per.isdecimal():
        tasks = str(int(nodes) * int(per))
    if tasks.isdecimal():
        variables |= {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
    return variables


def _gpus_per_node(header: Mapping[str, str]) -> int | None:
    for name in ("gpus-per-node", "gres"):
        for part in header.get(name, "").split(","):
            match = re.fullmatch(r"(?:gpu:)?(?:[\w.-]+:)?(\d+)", part.split("(")[0])
            if match and (name != "gres" or part.startswith("gpu")):
                return int(match.group(1))
    per_task, tasks = header.get("gpus-per-task", ""), header.get("ntasks-per-node", "")
    if per_task.isdecimal() and tasks.isdecimal():
        return int(per_task) * int(tasks)
    return None


def _training_command(script: Script) -> tuple[Command, int, int] | None:
    """Return the command that trains, where its script stands in it, and how many look so."""
    results = []
    for command in script.commands:
        script_idx = _script_index(command.argv)
        if script_idx is not None:
            results.append((_weight(command, script_idx), command, script_idx))
    if not results:
        return None
    best = max(weight for weight, _, _ in results)
    same = [(command, script_idx) for weight, command, script_idx in results if weight == best]
    command, script_idx = same[-1]
    return command, script_idx, len(same) if len(same) > 1 else 0


def _script_index(tokens: Sequence[str]) -> int | None:
    """Return where the training script or module stands, None for another command."""
    starts = any(_is_launcher(w) for w in tokens[:12]) or tokens[0].endswith(".py")
    starts = starts or (_base(tokens[0]) in WRAPPERS and any(_is_launcher(w) for w in tokens))
    if not starts:
        return None
    for i, word in enumerate(tokens):
        before = tokens[i - 1] if i else ""
        if word.endswith(".py") and not word.startswith("-") and " " not in word.strip():
            return i
        if _base(before) in SWIFT_COMMANDS and word in SWIFT_TASKS:
            return i
        if word in TUNER_TASKS.get(_base(before), ()):
            return i
        if _is_tune(tokens[:i]) and (TUNE_RECIPE.match(word) or _names_config(tokens[i + 1 :])):
            return i
        if before == "-m" and not _DISTRIBUTED.search(word) and "accelerate" not in word:
            return i
    # A launcher whose script is a variable that the script does not set.
    launcher = next((i for i, w in enumerate(tokens) if _is_launcher(w)), None)
    if launcher is None:
        return None
    for i in range(launcher + 1, len(tokens)):
        plain = unresolved(tokens[i]) and not re.search(r"[\s=]|^-", tokens[i])
        if plain and not tokens[i - 1].startswith("-"):
            return i
    return None


def _given_env(before: Sequence[str]) -> dict[str, str]:
    """Return what launchers set: `env A=1`, `mpirun -x A=1`, `--env A=1`, `--export=ALL,A=1`."""
    entries = {}
    for word in before:
        listed = re.match(r"--export=(.*)", word)
        for part in listed[1].split(",") if listed else [re.sub(r"^--env=", "", word)]:
            if pair := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", part, re.S):
                entries[pair[1]] = pair[2]
    return entries


def _is_launcher(word: str) -> bool:
    name = _base(word)
    return name in (*LAUNCHERS, *SWIFT_COMMANDS, *TUNER_TASKS, TUNE) or bool(
        re.fullmatch(r"python3?(\.\d+)?", name)
    )


def _is_tune(before: Sequence[str]) -> bool:
    """Tell whether words start a recipe of torchtune: `tune run`, and options of torchrun."""
    return ("tune", "run") in zip(map(_base, before), before[1:], strict=False)


def _names_config(after: Sequence[str]) -> bool:
    """Tell whether the first word behind a recipe names its configuration."""
    return bool(after) and after[0].partition("=")[0] == "--config"


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _weight(command: Command, script_idx: int) -> tuple[int, int]:
    """Return how much a command looks like training: its launcher, its script, its flags."""
    tokens = command.argv
    launched = any(
        w.rsplit("/", 1)[-1] in LAUNCHERS[:-1] or _DISTRIBUTED.search(w)
        for w in tokens[:script_idx]
    )
    trains = bool(re.search(r"train|finetune|sft|main|run_clm", tokens[script_idx]))
    tools = bool(re.search(r"preprocess|convert|download|tokeniz|eval|test", tokens[script_idx]))
    flags = sum(word.startswith("--") for word in tokens[script_idx:])
    return 2 * launched + trains - 2 * tools, min(flags, 8)


def _launcher(before: Sequence[str]) -> str:
    names = [word.rsplit("/", 1)[-1] for word in before]
    if any(_DISTRIBUTED.search(word) for word in before):
        return "torchrun"
    if names[-1:] and names[-1] in (*SWIFT_COMMANDS, *TUNER_TASKS):
        return names[-1]
    if _is_tune(before):
        return TUNE
    for name in LAUNCHERS[:-1]:
        if name in names:
            return name
    return "python"


def _options(tokens: Sequence[str]) -> dict[str, str]:
    """Return `--name value`, `--name=value` and `-n value` by name."""
    entries: dict[str, str] = {}
    for i, word in enumerate(tokens):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        short = re.fullmatch(r"([Nn])(\d+)", name)
        if short and not word.startswith("--"):
            name, value = short.groups()
        elif not equals and name not in _SWITCHES and i + 1 < len(tokens):
            following = tokens[i + 1]
            value = "" if re.match(r"--?[A-Za-z]", following) else following
        entries[name] = value
    return entries


def _number(text: str, what: str, unknown: list[str]) -> int | None:
    """Return a number of nodes or processes; `1:4` (elastic) means the largest."""
    text = text.rsplit(":", 1)[-1]
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text and text not in ("gpu", "auto", "cpu"):
        unknown.append(
            f"{what} is {unmarked(text)}, which it does not set: the cluster's is taken"
        )
    return None


def _world(
    launcher: str, options: Mapping[str, str], header: Mapping[str, str], env: Mapping[str, str]
) -> tuple[int | None, int | None, int | None, list[str]]:
    """Return nodes, processes of a node, processes in all (None where not said), and notes."""
    unknown: list[str] = []
    count = next((options[name] for name in _NODES if name in options), "")
    count = count or options.get("N", "") * (launcher in ("srun", "python"))
    n_nodes = _number(count, "the number of nodes", unknown)
    if n_nodes is None and not count:
        if launcher in ("torchrun", TUNE) and "nodes" not in header:
            n_nodes = 1
        else:
            n_nodes = _number(header.get("nodes", ""), "#SBATCH --nodes", unknown)
    text = next((options[name] for name in _PER_NODE if name in options), "")
    per_node = _number(text, "the number of processes of a node", unknown)
    if per_node is None and (not text or text in ("gpu", "auto")):
        per_node = _gpus_per_node(header)
        if launcher in ("torchrun", TUNE) and not text:
            per_node = 1
    if launcher == "accelerate":
        total = _number(options.get("num-processes", ""), "--num_processes", unknown)
        nodes = n_nodes or 1
        return (nodes, total // nodes, total, unknown) if total else (None, None, None, unknown)
    if launcher in TUNER_TASKS:
        return _world_of_all(env, unknown)
    if launcher in SWIFT_COMMANDS:  # ms-swift starts torchrun by these variables
        n_nodes = _number(env.get("NNODES", "1"), "NNODES", unknown) or 1
        per_node = _number(env.get("NPROC_PER_NODE", "1"), "NPROC_PER_NODE", unknown)
        return n_nodes, per_node, n_nodes * per_node if per_node else None, unknown
    if launcher in ("srun", "mpirun", "python"):
        return _tasks(options, header, env, n_nodes, per_node, unknown)
    if launcher == "deepspeed" and n_nodes is None and not {"hostfile", "H"} & set(options):
        n_nodes = 1 if per_node and not count else None  # then it looks at its own node alone
    total = n_nodes * per_node if n_nodes and per_node else None
    return n_nodes, per_node, total, unknown


WORLDS = ("WORLD_SIZE", "NUM_GPUS", "NGPUS", "N_GPUS", "TOTAL_GPUS", "TOTAL_NUM_GPUS", "NUM_GPU")
"""Variables in which scripts count the devices of all nodes."""


def _named_world(script: Script, outside: Mapping[str, str]) -> str:
    """Return the variable in which a script counts its devices, "" where none does.

    What is given from outside may count nodes.
    """
    for name in WORLDS:
        if name in outside:
            continue
        value = script.variables.get(name, "")
        if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,6}", value):
            return name
    return ""


def _world_of_all(
    env: Mapping[str, str], unknown: list[str]
) -> tuple[int | None, int | None, int | None, list[str]]:
    """Return the world of a tool that starts a process on each device that it sees."""
    n_nodes = _number(env.get("NNODES", ""), "NNODES", unknown) or 1
    per_node = _number(env.get("NPROC_PER_NODE", ""), "NPROC_PER_NODE", unknown)
    seen = env.get("CUDA_VISIBLE_DEVICES", "")
    if per_node is None and re.fullmatch(r"\d+(,\d+)*", seen):
        per_node = seen.count(",") + 1
    return n_nodes, per_node, n_nodes * per_node if per_node else None, unknown


def _tasks(
    options: Mapping[str, str],
    header: Mapping[str, str],
    env: Mapping[str, str],
    n_nodes: int | None,
    per_node: int | None,
    unknown: list[str],
) -> tuple[int | None, int | None, int | None, list[str]]:
    """Return the world of programs of which the scheduler starts one per device."""
    count = options.get("ntasks") or options.get("n") or options.get("np") or ""
    each = options.get("ntasks-per-node") or header.get("ntasks-per-node", "")
    total = _number(count or header.get("ntasks", ""), "the number of tasks", unknown)
    tasks = _number(each, "the number of tasks of a node", unknown)
    if total is None and tasks and n_nodes:
        total = n_nodes * tasks
    if total is None and env.get("WORLD_SIZE", "").isdecimal():
        total = int(env["WORLD_SIZE"])
    if total is None and n_nodes and per_node:
        total = n_nodes * per_node
    per_node = tasks or per_node
    if total and per_node and not n_nodes:
        n_nodes = -(-total // per_node)
    return n_nodes, per_node, total, unknown


def _until_shell_ends(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the words up to a `;` or `2>&1` that a quoted command line left in."""
    before_end = []
    for word in tokens:
        if word in (";", "&&", "||", "|", "&"):
            break
        before_end.append(word)
    return tuple(before_end)


FOREIGN = {
    "swift": "ms-swift",
    "llamafactory-cli": "LLaMA-Factory",
    "axolotl": "axolotl",
    "trl": "TRL",
    "tune": "torchtune",
    "nemo": "NeMo",
    "maxtext": "MaxText",
}
"""Trainers with a command of their own."""


def _only_flags(script: Script, file: str, notes: list[str]) -> LaunchCommand:
    """Return the flags of a text without a training command."""
    tokens: list[str] = []
    line, env = 1, {}
    for command in script.commands:
        if command.argv[0].startswith("--"):
            line, env = line if tokens else command.line, dict(command.env)
            tokens += command.argv
    if not tokens:
        lists = [
            value if isinstance(value, list) else value.split()
            for value in script.variables.values()
        ]
        tokens = [word for value in lists if _holds_flags(value) for word in value]
        if tokens:
            notes.append(f"{file}: no training command; the flags of its variables are taken")
    if not tokens:
        message = "no training command and no flags"
        fix = "expected torchrun, deepspeed, accelerate launch, srun or python with a script"
        started = next(
            (FOREIGN[_base(c.argv[0])] for c in script.commands if _base(c.argv[0]) in FOREIGN),
            "",
        )
        if started:
            message = f"starts {started}, which planner does not read yet"
            fix = "name the Accelerate or DeepSpeed file that it starts with"
        ends = next((note for note in script.notes if "it ends there" in note), "")
        if ends:
            message = f"no training command: {ends}"
            fix = f"give its arguments: planner check CLUSTER -- bash {file} ARGUMENTS"
        raise SpecError(InputProblem(message, fix, file))
    tokens = [part for word in tokens for part in (word.split() if " " in word else [word])]
    exported = {k: v for k, v in script.variables.items() if isinstance(v, str)}
    return LaunchCommand(
        "",
        "",
        tuple(tokens),
        {},
        env or exported,
        script.files,
        line,
        None,
        None,
        None,
        tuple(notes),
    )


def _holds_flags(value: Sequence[str]) -> bool:
    return bool(value) and value[0].startswith("--")
