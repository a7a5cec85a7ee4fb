"""The table of Megatron-Bridge's performance recipes: rows, models, and the jobs that they are.

`planner/data/recipes` holds the one that ships. A row becomes the document of a model with its
job, the document of a cluster, and the axes of a layout (`recipe_axes`).
"""

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hardware.catalogue import UnknownPartError, load_catalogue
from planner.errors import InputProblem, SpecError
from planner.frameworks.bridge.recipe_axes import RecipeAxes, recipe_axes
from planner.specs.yaml.document import load_yaml, read_text

RECIPE_DATA = Path(str(files("planner"))) / "data" / "recipes"
"""The table that ships with the package."""
NEEDED = (
    "recipe",
    "model",
    "hardware",
    "task",
    "n_gpus",
    "seq_len",
    "gbs",
    "mbs",
    "tp",
    "pp",
    "cp",
    "ep",
    "precision",
)
"""Columns without which a row is no recipe."""
PARTS = {"r100": "rubin"}
"""Accelerators of the catalogue by the names of recipes, where the catalogue has another."""
SEGMENT = 64
"""Devices of a rack that jobs of several racks use: recipes for 128 to 1,024 devices of NVL72s
have groups of powers of two."""
RACK = 16
"""A scale-up domain above this reaches over nodes."""
UNKNOWN_LAYERS = {
    "gdn": "hybrid layers (gated delta net)",
    "dsa": "sparse attention with an indexer (DSA)",
    "dsv4_hybrid": "compressed attention (DeepSeek-V4)",
}
"""What is missing for models with another `attention_variant`."""


@dataclass(frozen=True, slots=True)
class BridgeRecipe:
    """One row of the table with its model."""

    row: Mapping[str, str]
    model: Mapping[str, Any]
    """Entry of the models file."""

    @property
    def name(self) -> str:
        """Name of its function."""
        return self.row["recipe"]

    @property
    def axes(self) -> RecipeAxes:
        """Axes of its layout and fields of its job."""
        return recipe_axes(self.row, int(self.model.get("layers") or 0))

    def number(self, column: str) -> int:
        """Return a whole number of its row, 0 for an empty cell."""
        return int(self.row.get(column) or 0)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is not known here and decides the job; empty where the recipe can be priced."""
        row, model = self.row, self.model
        out = []
        if row["task"] != "pretrain":
            out.append({"sft": "fine-tuning", "peft": "adapters"}.get(row["task"], row["task"]))
        if row.get("sane") == "0":
            out.append(f"it contradicts itself: {row.get('sanity') or 'degrees'}")
        variant = model.get("attention_variant")
        if variant:
            out.append(UNKNOWN_LAYERS.get(variant, f"attention {variant}"))
        if model.get("vision"):
            out.append("vision tower")
        if model.get("positions") is None:
            out.append("layers that are no decoder's (diffusion)")
        if not _part(row["hardware"]):
            out.append(f"hardware {row['hardware']}")
        return (*out, *self.axes.missing)

    @property
    def measured(self) -> tuple[float, str] | None:
        """Printed seconds of a step on the recipe's own layout, and where; None without."""
        row = self.row
        rate = float(row.get("meas_tok_s_gpu") or 0)
        if rate and row.get("meas_same_layout") == "1":
            tokens = self.number("gbs") * self.number("seq_len")
            return tokens / (rate * self.number("n_gpus")), f"release {row['meas_release']}"
        if row.get("card_step_s"):
            return float(row["card_step_s"]), str(row.get("card_id"))
        return None

    def model_document(self) -> dict[str, Any]:
        """Return the model and the job as a model file holds them."""
        row = self.row
        training = {
            "seq_len": self.number("seq_len"),
            "global_batch": self.number("gbs"),
            **self.axes.training,
        }
        model = _model_section(row["model"], self.model)
        if "moe" in model and row.get("moe_force_balance") == "1":
            model["moe"]["forced_balance"] = True
        return {"model": model, "training": training}

    def cluster_document(self) -> dict[str, Any]:
        """Return the devices that it is for as a cluster file holds them.

        Jobs that fill several racks use 64 devices of each where that comes out even.
        """
        part, n = _part(self.row["hardware"]), self.number("n_gpus")
        domain, per_node = load_catalogue().accelerator(part).scale_up_domain, _per_node(part)
        pool: dict[str, Any] = {"name": self.row["hardware"], "accelerator": part}
        if domain > RACK and n > domain and n % SEGMENT == 0:
            pool |= {"nodes": n // SEGMENT * domain // per_node, "segment": SEGMENT}
        else:
            pool["nodes"] = -(-n // per_node)
        return {"name": f"{self.row['hardware']}-x{n}", "pools": [pool]}


@cache
def _part(hardware: str) -> str:
    """Return the catalogue's name of a recipe's hardware, "" where it has none."""
    try:
        return str(load_catalogue().accelerator(PARTS.get(hardware, hardware)).name)
    except UnknownPartError:
        return ""


def _per_node(part: str) -> int:
    return int(load_catalogue().accelerator(part).devices_per_node)


_LATENT = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")
_EXPERTS = ("experts", "topk", "moe_ffn", "shared_ffn", "dense_layers", "routing_groups")


def _model_section(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model:` section of an entry of the models file."""
    keys = ("layers", "hidden", "heads", "ffn", "gated", "vocab", "tied", "norm", "vocab_multiple")
    section: dict[str, Any] = {"name": name, **{key: entry[key] for key in keys}}
    latent, experts = entry.get("mla"), entry.get("moe")
    if latent:
        section["mla"] = {key: latent[key] for key in _LATENT}
    else:
        section |= {key: entry[key] for key in ("kv_heads", "head_dim") if entry.get(key)}
        section["bias"] = bool(entry.get("bias"))
    if experts:
        section["moe"] = {key: experts[key] for key in _EXPERTS if experts.get(key)}
        groups = experts.get("top_groups")
        section["moe"] |= {"top_groups": groups} if groups else {}
    if entry.get("mtp_layers"):
        section["mtp_layers"] = entry["mtp_layers"]
    if window := entry.get("window"):
        # Tokens before the own one, and whether every n-th layer sees all.
        details = {"window": int(str(window["size"]).split(",")[0]) + 1}
        if window.get("skip_freq"):
            details["full_attention_every"] = int(window["skip_freq"])
        section["details"] = details
    return section


def read_recipes(
    table: str | os.PathLike[str] = RECIPE_DATA / "recipes.csv",
    models: str | os.PathLike[str] = RECIPE_DATA / "models.yaml",
) -> list[BridgeRecipe]:
    """Return the recipes of a table; `SpecError` for a file that is none."""
    entries = load_yaml(models).data
    if not isinstance(entries, dict):
        fix = "write the name of a model and under it its sizes"
        raise SpecError(InputProblem("is no mapping of models", fix, os.fspath(models)))
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(os.fspath(table)), newline="")))
    except csv.Error as error:
        fix = "separate cells by commas, and close every quote"
        raise SpecError(InputProblem(f"is no CSV text: {error}", fix, os.fspath(table))) from None
    lacking = [name for name in NEEDED if not rows or name not in rows[0]]
    if lacking:
        message = f"no column {', '.join(lacking)}" if rows else "holds no recipe"
        fix = "one row a recipe, columns as in planner/data/recipes/README.md"
        raise SpecError(InputProblem(message, fix, os.fspath(table)))
    out = []
    for line, row in enumerate(rows, start=2):
        if not isinstance(entries.get(row["model"]), dict):
            message = f"{row['recipe']}: model {row['model']!r} is not in {os.fspath(models)}"
            raise SpecError(InputProblem(message, "describe it there", os.fspath(table), line))
        _check_numbers(row, os.fspath(table), line)
        out.append(BridgeRecipe(row, entries[row["model"]]))
    return out


_NUMBERS = ("n_gpus", "seq_len", "gbs", "mbs", "tp", "pp", "cp", "ep")


def _check_numbers(row: Mapping[str, str], table: str, line: int) -> None:
    for name in _NUMBERS:
        if not str(row[name]).isdecimal() or int(row[name]) < 1:
            message = f"{row['recipe']}: {name} is {row[name]!r}, no whole number from 1 on"
            raise SpecError(InputProblem(message, "write a number such as 8", table, line))
