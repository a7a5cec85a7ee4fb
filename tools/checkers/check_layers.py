"""Holds kinds of layers, towers and encoder-decoders against transformers and other software.

Beside transformers, Megatron-Core, torchtitan and diffusers.

    python tools/checkers/check_layers.py MEGATRON_FOLDER

In an environment with torch (CPU), transformers and this project. Exit code 1 when a figure is
outside its limit.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "replay"))

import layer_flops
import numpy as np
import seq2seq
import tower_flops
import whole_kept
from layer_flops import Figure
from transformers import logging

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import kinds_of
from costmodels.layers.layer_kind import KindTerms, LayerInputs, SplitDegrees
from costmodels.layers.streams.connections import collapse_params
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.problem import Problem
from costmodels.shapes import ModelShape
from costmodels.stacks import STACKS
from costmodels.tuning.records import TuningJob
from planner.specs.importers.huggingface import read_config
from planner.specs.inputs import ModelInput
from planner.specs.loader import load_cluster, model_from_dict

KEPT_FRAC = 0.01


def kept_figures(megatron: Path) -> Iterator[Figure]:
    """Yield what layers keep of a token, and parameters, of three frameworks."""
    yield from _kept_figures("Megatron-Core", "layer_kept.py", str(megatron))
    yield from _kept_figures("transformers", "stream_kept.py")
    yield from _kept_figures("torchtitan", "titan_kept.py")
    yield from _kept_figures("transformers", "lora_kept.py")
    yield from _kept_figures("transformers", "transformers_kept.py")


def _kept_figures(software: str, script: str, *words: str) -> Iterator[Figure]:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        real = json.loads(line)
        given = model_from_dict({"model": real["model"], "training": real["training"]})
        terms = _terms(given, real["kind"], real.get("stack", "megatron-core"))
        groups = real.get("recompute_modules", [])
        again = [RECOMPUTE_MODULES.index(x) for x in groups]
        latent = "latent " if given.shape.latent else ""
        named = " ".join([latent + real["kind"], *groups, *_adapters(given.job.tuning)])
        name, n = f"{named} ({software})", given.job.seq_len
        ours = total_params(given.shape, n) - given.shape.hidden * (given.shape.vocab + 1)
        ours -= collapse_params(given.shape)
        yield Figure(name, "parameters", ours, real["parameters"], layer_flops.PARAMS_FRAC)
        dropped = terms.modules.attention_bytes[again] + terms.modules.mlp_bytes[again]
        ours = (terms.kept_bytes.item() - dropped.sum()) / n
        limit_frac = real.get("limit_frac", KEPT_FRAC)
        yield Figure(name, "kept bytes", ours, real["kept_bytes"] / n, limit_frac)


def _adapters(tuning: TuningJob | None) -> list[str]:
    """Return what is adapted, in words; nothing where all weights are trained."""
    if tuning is None:
        return []
    return ["LoRA", "+".join(tuning.targets), *["dropout"] * bool(tuning.dropout)]


def tower_figures(megatron: Path) -> Iterator[Figure]:
    """Yield parameters and FLOPs of vision towers."""
    yield from tower_flops.figures()


def seq2seq_figures(megatron: Path) -> Iterator[Figure]:
    """Yield parameters, FLOPs and kept bytes of encoder-decoders."""
    yield from seq2seq.figures()


def decoder_figures(megatron: Path) -> Iterator[Figure]:
    """Yield what layers of decoders of transformers keep."""
    yield from whole_kept.figures()


def diffusion_figures(megatron: Path) -> Iterator[Figure]:
    """Yield parameters, FLOPs of a step and kept bytes of diffusion transformers of diffusers."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("diffusion_layers.py"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        real = json.loads(line)
        name = real["config"]["_class_name"].partition("Transformer")[0]
        given = _diffusion_model(real)
        shape, n = given.shape, given.job.seq_len
        ours = total_params(shape, n)
        yield Figure(name, "parameters", ours, real["parameters"], layer_flops.PARAMS_FRAC)
        ours = model_flops_per_token(shape, n) * n
        yield Figure(name, "FLOPs", ours, real["flops"], layer_flops.FLOPS_FRAC)
        for block, theirs in real["kept_bytes"].items():
            kind = _kind_of(shape, block)
            ours = _terms(given, kind).kept_bytes.item()
            yield Figure(f"{name} {kind}", "kept bytes", ours, theirs, KEPT_FRAC)


def _diffusion_model(real: dict[str, Any]) -> ModelInput:
    """Return the model that a configuration of diffusers makes for samples of one size."""
    sizes = {"height": real["height"], "width": real["height"]}
    sizes |= {name: real[name] for name in ("frames", "text_tokens")}
    stated = {f"model.diffusion.{name}": value for name, value in sizes.items()}
    imported = read_config(json.dumps(real["config"]), "config.json", stated)
    return model_from_dict(imported.document)


def _kind_of(shape: ModelShape, block: str) -> str:
    """Return the kind of the first or last block of patches and text, or of a single one."""
    if block == "single":
        return "single-stream"
    others = [kind for i in shape.layer_sequence if (kind := shape.kinds[i]) != "single-stream"]
    return others[-1 if block == "last" else 0]


def _terms(given: ModelInput, kind: str, stack: str = "megatron-core") -> KindTerms:
    """Return the terms of a layer of a kind for one sequence on one device."""
    cluster = load_cluster("h100-x8").cluster
    problem = Problem(given.shape, given.job, cluster.pools[0], cluster.fabric, STACKS[stack])
    one = np.ones(1, dtype=np.int32)
    split = SplitDegrees(one, one, one, one, 0 * one)
    tokens = np.full(1, float(given.job.seq_len))
    inputs = LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * one))
    return next(x for x in kinds_of(given.shape) if x.name == kind).terms(inputs)


def main(megatron: Path) -> int:
    """Print all figures; return the exit code."""
    logging.set_verbosity_error()  # no kernels here
    print(f"{'kind':34} {'what':12} {'ours':>14} {'theirs':>14}  {'off':>8}  limit")
    n_wrong = 0
    every = (
        layer_flops.figures,
        tower_figures,
        seq2seq_figures,
        decoder_figures,
        kept_figures,
        diffusion_figures,
    )
    for figures in every:
        for x in figures(megatron):
            n_wrong += not x.is_right
            sizes = f"{x.ours:14,.0f} {x.theirs:14,.0f}  {x.off_frac:+8.3%}  {x.limit_frac:.2%}"
            print(f"{x.kind:34} {x.what:12} {sizes}{'' if x.is_right else '  WRONG'}", flush=True)
    print(f"{n_wrong} outside their limits")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
