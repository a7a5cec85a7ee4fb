"""What a replay program reads of a drawn plan, and the plans that it cannot run, by framework."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from costmodels.plans import Layout
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.torchtitan.emitter import recipe, vocab_rows
from searches.frameworks.megatron.layouts import megatron_vocab
from tools.samples.draw import Drawn, draw_plans

Record = dict[str, Any]


BY_KIND = "kernels of its layers take a GPU: scripts/check_layers runs each kind with stand-ins"
"""Why a model of several kinds of layers is not replayed whole."""


REPLAYED_KINDS = ("dense", "moe", "window")
"""How kinds of layers start that Megatron-Core's replay builds."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How plans of one framework are replayed."""

    stack: str
    """Software profile (`costmodels.stacks`) that prices its plans."""
    refusal: Callable[[Drawn], str]
    """Why a plan cannot be replayed; empty where it can."""
    case: Callable[[Drawn, int], Record]
    """What the program reads of a plan and the pipeline rank that is replayed."""
    runs_cp: bool = False
    """Whether the exchange of keys and values is part of what runs."""


def megatron_refusal(drawn: Drawn) -> str:
    """Return why Megatron-Core cannot be replayed; empty where it can."""
    x = drawn.layout
    refusals = {
        "Megatron-FSDP shards by another module": x.zero >= 2,
        "the optimizer's states lie on the host": x.optimizer_offload,
        "activations lie on the host": x.activation_offload_layers > 0,
        "fp8 takes Transformer Engine's kernels": drawn.job.precision.startswith("fp8"),
        "moe_act takes grouped GEMMs": "moe_act" in x.recompute_modules,
        "copies do not go evenly to the experts": _uneven(drawn),
        BY_KIND: any(
            not kind.startswith(("dense", "moe", "window")) for kind in drawn.shape.kinds
        ),
    }
    return next((why for why, holds in refusals.items() if holds), "")


def fsdp2_refusal(drawn: Drawn) -> str:
    """Return why Accelerate with FSDP2 cannot be replayed; empty where it can."""
    x, shape = drawn.layout, drawn.shape
    refusals = {
        "transformers applies tp and cp when it loads a checkpoint": x.tp > 1 or x.cp > 1,
        "the optimizer's states lie on the host": x.optimizer_offload,
        "activations lie on the host": x.activation_offload_layers > 0,
        "fp8 takes torchao's kernels": drawn.job.precision.startswith("fp8"),
        "transformers has no multi-token prediction": shape.mtp_layers > 0,
        "transformers' eager attention is other code": not shape.flash_attention,
        BY_KIND: bool(shape.layer_runs),
        "transformers lays experts out without an interval": shape.latent and shape.moe_every > 1,
    }
    return next((why for why, holds in refusals.items() if holds), "")


def torchtitan_refusal(drawn: Drawn) -> str:
    """Return why torchtitan cannot be replayed; empty where it can."""
    x = drawn.layout
    refusals = {
        "the optimizer's states lie on the host": x.optimizer_offload,
        "activations lie on the host": x.activation_offload_layers > 0,
        "fp8 takes torchao's kernels": drawn.job.precision.startswith("fp8"),
        "pieces of a collective beside a product take torch.compile": x.tp_overlap,
    }
    return next((why for why, holds in refusals.items() if holds), "")


def _uneven(drawn: Drawn) -> bool:
    x, shape = drawn.layout, drawn.shape
    if not shape.n_experts or shape.capacity_factor:
        return False
    tokens = x.mbs * drawn.job.seq_len // x.cp // (x.tp if x.sp else 1)
    return tokens * shape.top_k % shape.n_experts != 0


def megatron_case(drawn: Drawn, rank: int) -> Record:
    """Return a case with the flags of the emitted script."""
    x = drawn.layout
    words = [word for _, group in flag_groups(x, drawn.shape, drawn.job) for word in group]
    vocab = int(megatron_vocab(drawn.shape, x.tp))
    return plain_case(drawn, rank, vocab) | {"flags": words}


def plain_case(drawn: Drawn, rank: int, vocab: int) -> Record:
    """Return the sizes of a plan, its model and its job."""
    x = drawn.layout
    return {
        "id": drawn.name,
        "rank": rank,
        "layout": asdict(x) | {"padded_vocab": vocab},
        "model": asdict(drawn.shape),
        "job": asdict(drawn.job),
        "n_micro": x.n_micro,
    }


def torchtitan_case(drawn: Drawn, rank: int) -> Record:
    """Return a case with the emitted recipe."""
    x = drawn.layout
    text = recipe(EmitRequest(x, drawn.shape, drawn.job, drawn.pool, []))
    return plain_case(drawn, rank, vocab_rows(x, drawn.shape)) | {"recipe": text}


def fsdp2_case(drawn: Drawn, rank: int) -> Record:
    """Return a case whose model is built from transformers' classes."""
    return plain_case(drawn, rank, drawn.shape.vocab)


REPLAYS: Mapping[str, Replay] = {
    "megatron": Replay("megatron-core", megatron_refusal, megatron_case),
    "torchtitan": Replay("torchtitan", torchtitan_refusal, torchtitan_case, runs_cp=True),
    "fsdp2": Replay("hf-fsdp2", fsdp2_refusal, fsdp2_case),
}
"""The frameworks that are replayed."""


def drawn_plans(
    framework: str, n_plans: int, seed: int, most_layers: float = math.inf
) -> list[Drawn]:
    """Return plans out of the search space that the replay can run, at most `n_plans`.

    `most_layers` leaves out larger models, which take longer.
    """
    plans: list[Drawn] = []
    for drawn in draw_plans(framework, 20 * n_plans, seed):
        if len(plans) == n_plans:
            break
        if drawn.shape.layers <= most_layers and not REPLAYS[framework].refusal(drawn):
            plans.append(drawn)
    return plans


def replayed_rank(name: str, layout: Layout) -> int:
    """Return the pipeline rank that is replayed: first, middle or last, by the plan's name."""
    return Random(name).choice((0, layout.pp // 2, layout.pp - 1))
