"""Which settings are looked at: files of three repositories, and the devices that they are for."""

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.frameworks.maxtext.command import slice_devices

USUAL_DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Numbers of devices that are tried where an example names none."""
MAXTEXT_START = "python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml"
CHIPS = {"v5p": "tpu-v5p", "v6e": "tpu-v6e", "tpu7x": "tpu-7x"}
"""Parts by the first word of a device type."""
CORES = {"v5p": 2}
"""Cores that names of a part count for a chip."""


@dataclass(frozen=True, slots=True)
class Example:
    """A published setting."""

    source: str
    """`Primus`, `MindSpeed-LLM` or `tpu-recipes`."""
    file: str
    """Path in the repository."""
    read: Path | str
    """The file that is read, or the command that a recipe stands for, as text."""
    part: str
    """Accelerator of the catalogue."""
    named_devices: int | None
    """Devices that it names; None where any number may start it."""
    per_node: int
    per_slice: int = 0
    """Devices of a slice of TPUs; 0 on other parts."""
    why_not: str = ""
    """Why it cannot be read at all."""

    def cluster(self, n_devices: int) -> Mapping[str, Any]:
        """Return the cluster that it is judged on."""
        per_node = min(self.per_node, n_devices)
        pool: dict[str, Any] = {
            "accelerator": self.part,
            "nodes": n_devices // per_node,
            "accelerators_per_node": per_node,
        }
        if self.per_slice:
            pool["scale_up_domain"] = self.per_slice
        return {"pools": [pool], "fabric": {}}


def primus_examples(source: Path) -> Iterator[Example]:
    """Yield the experiments that pretrain with Megatron-LM on the newest part, MI355X."""
    for path in sorted((source / "examples/megatron/configs/MI355X").glob("*-pretrain.yaml")):
        named = named_devices(path.read_text(encoding="utf-8"))
        yield Example("Primus", str(path.relative_to(source)), path, "mi355x", named, 8)


_NAMED: tuple[tuple[str, int], ...] = (
    (r"(\d+)[ -]GPUs?\b", 1),
    (r"tuned for (\d+)N\b", 8),
    (r"(?:for|on|at) (\d+)[ -]nodes?\b", 8),
    (r"^\s*(\d+) ?nodes?\b", 8),
    (r"(?:^|[ (])(\d+)-node\b", 8),
)
_WORDS = {"single-node": 8, "dual-node": 16}


def named_devices(text: str) -> int | None:
    r"""Return the devices that the comments of an experiment name; None where they name none.

    >>> named_devices("a: 1 # 32nodes"), named_devices("# tuned for 32N on MI355X\nb: 2")
    (256, 256)
    >>> named_devices("# sized for a 4-node run"), named_devices("# two phases")
    (32, None)
    """
    comments = re.findall(r"#+ *(.*)$", text, re.M)
    for comment in comments:
        if "reference" in comment:  # what others ran
            continue
        for pattern, unit in _NAMED:
            if match := re.search(pattern, comment):
                return int(match[1]) * unit
        for word, n in _WORDS.items():
            if word in comment:
                return n
    return None


def mindspeed_examples(source: Path) -> Iterator[Example]:
    """Yield the scripts of examples/mcore that pretrain.

    Scripts that start 16 processes a node are for Atlas 900 A3, others for Atlas 800T A2.
    """
    for path in sorted((source / "examples" / "mcore").rglob("pretrain*.sh")):
        text = path.read_text(encoding="utf-8")
        per_node, nodes = (_assigned(text, name) for name in ("NPUS_PER_NODE", "NNODES"))
        part = "ascend-910c-die-64gb" if per_node == 16 else "ascend-910b-64gb"
        file = str(path.relative_to(source))
        n = per_node * nodes if per_node and nodes else None
        yield Example("MindSpeed-LLM", file, path, part, n, per_node or 8)


def _assigned(text: str, name: str) -> int:
    match = re.search(rf"^ *{name}=(\d+)", text, re.M)
    return int(match[1]) if match else 0


def tpu_examples(source: Path, maxtext: Path | None) -> Iterator[Example]:
    """Yield the recipes that start MaxText.

    Those of Ironwood say their settings themselves. Those of Trillium start `benchmark_runner`
    with the name of an entry of MaxText's `benchmarks/maxtext_trillium_model_configs.py`; they are
    read as the command that the entry stands for, and left out without a checkout of MaxText.
    """
    folder = source / "training"
    for path in sorted((folder / "ironwood").rglob("*")):
        if path.suffix not in (".sh", ".yaml", ".yml") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if re.search(r"MaxText\.train|pre_train\.train", text):
            yield _recipe(path, source, path, _device_type(text), _slices(text))
    if maxtext is None:
        return
    entries = benchmark_entries(maxtext / "benchmarks" / "maxtext_trillium_model_configs.py")
    for path in sorted((folder / "trillium").rglob("*.sh")):
        text = path.read_text(encoding="utf-8")
        kind, name = _device_type(text), re.search(r"--model_name=\"?([\w.-]+)", text)
        entry = entries.get(name[1]) if name else None
        if entry is None:
            what = name[1] if name else "none"
            why = f"model_name {what}: no entry of maxtext_trillium_model_configs.py"
            yield _recipe(path, source, "", kind, _slices(text), why)
            continue
        words = " ".join(f"{key}={value}" for key, value in entry.items())
        start = f"xpk workload create --device-type={kind} --num-slices={_slices(text)}"
        command = f"{MAXTEXT_START} {words}"
        yield _recipe(path, source, f'{start} --command="{command}"\n', kind, _slices(text))


def _recipe(
    path: Path, source: Path, read: Path | str, kind: str, slices: int, why_not: str = ""
) -> Example:
    file = str(path.relative_to(source))
    name = kind.split("-")[0]
    per_slice = slice_devices(kind) or 0
    part = CHIPS.get(name, name)
    n, per_node = per_slice * slices or None, 8 if name == "tpu7x" else 4
    return Example("tpu-recipes", file, read, part, n, per_node, per_slice, why_not)


def _device_type(text: str) -> str:
    match = re.search(r"--(?:device[-_]type|tpu[-_]type)=\"?((?:v\d\w*|tpu7x)-\d+(?:x\d+)*)", text)
    if match:
        return match[1]
    topology = re.search(r"tpu-(?:slice-)?topology:\s*[\"']?(\d+(?:x\d+)+)", text)
    return f"tpu7x-{topology[1]}" if topology else ""


def _slices(text: str) -> int:
    match = re.search(r"--num[-_]slices=(\d+)", text)
    return int(match[1]) if match else 1


def benchmark_entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of a file of MaxText's benchmarks, by the name of each entry.

    Read without running it: of every call of `MaxTextModel` the literal keywords.
    """
    if not path.is_file():
        return {}
    entries: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call = next((x for x in node.value.args if isinstance(x, ast.Call)), None)
        if call is None or getattr(call.func, "id", "") != "MaxTextModel":
            continue
        keywords = {x.arg: x.value for x in call.keywords}
        model, settings = keywords.get("model_type"), keywords.get("tuning_params")
        if not isinstance(model, ast.Constant) or not isinstance(settings, ast.Dict):
            continue
        values: dict[str, Any] = {"model_name": model.value}
        for key, value in zip(settings.keys, settings.values, strict=True):
            if isinstance(key, ast.Constant):
                with contextlib.suppress(ValueError):  # names of folders, which are no numbers
                    values[str(key.value)] = ast.literal_eval(value)
        for target in node.targets:
            entries[getattr(target, "id", "")] = values
    return entries
