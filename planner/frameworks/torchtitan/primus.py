"""Writes a plan as an experiment of Primus for its torchtitan backend, on AMD's accelerators.

Its sections are those of a job file of torchtitan 0.2, over Primus's own presets: one of each
registered model, and `pre_trainer.yaml`, which compiles where a job file does not.
"""

from collections.abc import Mapping
from typing import Any

from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import WORDS, fact_lines, head, stated_or_none, yaml_scalar
from searches.frameworks.registry import framework_rules

FILE = "primus-torchtitan.yaml"
PRESETS: Mapping[tuple[str, str], str] = {
    ("llama3", "8B"): "llama3.1_8B",
    ("llama3", "70B"): "llama3.1_70B",
    ("llama3", "405B"): "llama3.1_405B",
    ("llama4", "17bx16e"): "llama4_17Bx16E",
    ("llama4", "17bx128e"): "llama4_17Bx128E",
    ("qwen3", "0.6B"): "qwen3_0.6b",
    ("qwen3", "1.7B"): "qwen3_1.7b",
    ("qwen3", "4B"): "qwen3_4b",
    ("qwen3", "8B"): "qwen3_8b",
    ("qwen3", "14B"): "qwen3_14b",
    ("qwen3", "32B"): "qwen3_32b",
    ("deepseek_v3", "16B"): "deepseek_v3_16b",
    ("deepseek_v3", "236B"): "deepseek_v3_236b",
    ("deepseek_v3", "671B"): "deepseek_v3_671b",
}
"""Model files of Primus (primus/configs/models/torchtitan) by name and flavor of torchtitan."""
Sections = Mapping[str, Mapping[str, Any]]


def experiment_files(request: EmitRequest, sections: Sections) -> dict[str, str]:
    """Return the experiment for the sections of a job file; nothing where Primus has no model.

    Nothing either on accelerators that Primus does not run on.
    """
    model = sections["model"]
    preset = PRESETS.get((model["name"], model["flavor"]))
    if preset is None or request.pool.accelerator.vendor not in framework_rules("primus").vendors:
        return {}
    return {FILE: _experiment(request, preset, sections)}


def overrides_of(sections: Sections) -> dict[str, dict[str, Any]]:
    """Return what the experiment says of the sections of a job file.

    Its data are synthetic, and what a job file leaves at torchtitan's default and the presets set
    otherwise is said: no compiler.
    """
    result = {name: dict(values) for name, values in sections.items()}
    del result["model"]["hf_assets_path"], result["training"]["dataset"]
    result["training"] = {"mock_data": True, **result["training"]}
    result.setdefault("compile", {"enable": False})
    return result


def _experiment(request: EmitRequest, preset: str, sections: Sections) -> str:
    title = f"Experiment of Primus {framework_rules('primus').release}, torchtitan backend."
    facts = fact_lines(request, stated_or_none(request.details))
    lines = [
        *head(title, request.header, facts)[1:],
        "#",
        f"# primus-cli direct -- train pretrain --config {FILE}, once on each node, with NNODES,",
        "# NODE_RANK, GPUS_PER_NODE and MASTER_ADDR set. Data and the learning rate are yours.",
        "work_group: planner",
        "user_name: planner",
        f"exp_name: {yaml_scalar(request.shape.name)}",
        'workspace: "./output"',
        "",
        "modules:",
        "  pre_trainer:",
        "    framework: torchtitan",
        "    config: pre_trainer.yaml",
        f"    model: {preset}.yaml",
        "    overrides:",
    ]
    for section, values in overrides_of(sections).items():
        lines += [f"      {section}:"]
        lines += [f"        {key}: {yaml_scalar(x, WORDS)}" for key, x in values.items()]
    return "\n".join(lines) + "\n"
