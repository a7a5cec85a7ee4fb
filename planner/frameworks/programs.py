"""Programs that are written beside a launcher, as they stand in `data/programs`."""

from importlib.resources import files
from pathlib import Path

from costmodels.layers.kinds import attends
from costmodels.shapes import ModelShape
from searches.frameworks.megatron.layer_kinds import has_mixer

FOLDER = Path(str(files("planner"))) / "data" / "programs"
MEGATRON_SMOKE = ("megatron_smoke.py", "megatron_cpu.py", "megatron_report.py")
"""What `megatron.sh --smoke` runs."""
TORCHTITAN_SMOKE = "torchtitan_smoke.py"
"""What `torchtitan.sh --smoke` runs."""
SHARED = "hf_training.py"
"""What the training programs for DeepSpeed and FSDP2 import."""


def programs(*names: str) -> dict[str, str]:
    """Return the text of programs by the name of their file."""
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}


def is_program(name: str) -> bool:
    """Whether a file of this name is a program that is the same for every plan."""
    base = name.rpartition("/")[2]  # kinds of replicas have folders of their own
    return base.endswith(".py") and (FOLDER / base).is_file()


def script_setting(name: str, missing: str) -> str:
    """Return the line that sets TRAIN_SCRIPT: the program, or a refusal of what it lacks."""
    if missing:
        return f'TRAIN_SCRIPT="${{TRAIN_SCRIPT:?set it: {name} has no {missing}}}"'
    return f'TRAIN_SCRIPT="${{TRAIN_SCRIPT:-${{HERE}}/{name}}}"'


def model_note(no_config: str) -> str:
    """Return the comment above MODEL; `no_config` says why no model_config.json is written."""
    if no_config:
        return f"# MODEL, a config.json or repository id, is needed: {no_config}."
    return "# MODEL, a config.json or repository id, takes the place of model_config.json."


def filled_settings(text: str, settings: dict[str, str]) -> str:
    """Return the settings of a launcher with the program, attention and note on the model."""
    text = text.replace("MODEL_NOTE", settings["MODEL"])
    return text.replace("SCRIPT_LINE", settings["SCRIPT"]).replace(
        "ATTENTION_NAME", settings["ATTENTION"]
    )


def source_words(shape: ModelShape) -> list[str]:
    """Return what a program is told of the sequences that an encoder reads."""
    return ["--source-length", str(shape.encoder.seq_len)] if shape.encoder else []


def attention_setting(shape: ModelShape, fused: bool) -> str:
    """Return the attention of transformers to ask for, by its `attn_implementation`.

    The one that skips keys outside a window or a chunk, as it is priced: scaled dot products with
    a mask compute all of them. Classes without attention know the plain one alone.
    """
    if not (fused and attends(shape)):
        return "eager"
    local = any(has_mixer(shape, mixer) for mixer in ("window", "chunk", "bidirectional-window"))
    return "flex_attention" if local else "sdpa"
