"""Parameters, FLOPs and kept bytes of encoder-decoders: ours, beside transformers'.

Models of two layers a side are built of a config.json on the CPU, without dropout. FlopCounterMode
counts one forward; of the products of scores in the decoder's own attention a causal mask lets
half through. Kept bytes are those of saved-tensor hooks in the last layer of each side: the first
ones keep masks and the encoder's output for all. Operators are those that run: attention as the
case says, by the model's own code or by a kernel of PyTorch for the CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from kept import Kept
from layer_flops import Config, Figure
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from planner.specs.inputs import ModelInput
from planner.specs.loader import load_cluster, model_from_dict

PARAMS_FRAC, FLOPS_FRAC, KEPT_FRAC = 1e-3, 0.01, 0.01
"""Differences that are let pass. Relative positions and biases that keys lack are not counted as
parameters, a number or two of each norm not as kept."""
T5: Config = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 2,
    "num_heads": 8,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
BART: Config = {
    "vocab_size": 32128,
    "d_model": 512,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "max_position_embeddings": 512,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
WHISPER: Config = {
    "num_mel_bins": 80,
    "max_source_positions": 600,
    "max_target_positions": 200,
}
MATH = {"activation": "relu", "norm": "scaled", "scores": "math"}
"""Operators of T5 where PyTorch's attention has no kernel for a bias that is learned."""


@dataclass(frozen=True)
class Case:
    """One class of transformers."""

    data: Config
    """Its config.json."""
    attention: str = "sdpa"
    """As transformers names it."""
    changes: Config = field(default_factory=dict)
    """What our model file has other than the importer, which takes it as plans run it."""


CASES = (
    Case({**T5, "model_type": "t5"}, "eager"),
    Case({**T5, "model_type": "t5"}, "sdpa", {"operators": MATH}),
    Case({**T5, "model_type": "mt5"}, "eager"),
    Case({**T5, "model_type": "umt5"}, "eager"),
    Case({**T5, "model_type": "t5", "feed_forward_proj": "gated-silu"}, "eager"),
    Case({**BART, "model_type": "bart"}),
    Case({**BART, "model_type": "bart"}, "eager", {"flash_attention": False}),
    Case({**BART, "model_type": "mbart"}),
    Case({**BART, "model_type": "plbart"}),
    Case({**BART, "model_type": "pegasus", "activation_function": "relu"}),
    Case({**BART, "model_type": "marian"}),
    Case({**BART, "model_type": "m2m_100"}),
    Case({**BART, "model_type": "blenderbot"}),
    Case({**BART, "model_type": "blenderbot-small"}),
    Case({**BART, **WHISPER, "model_type": "whisper"}),
    Case({**BART, **WHISPER, "model_type": "whisper"}, "eager", {"flash_attention": False}),
)


def _given(case: Case) -> ModelInput:
    """Return our model file of a case, trained in bf16."""
    document = model_from_dict(dict(case.data)).document
    document["model"] |= case.changes
    return model_from_dict(document)


def _built(case: Case) -> Any:
    config = CONFIG_MAPPING[case.data["model_type"]].from_dict({**case.data, "use_cache": False})
    hears = "num_mel_bins" in case.data
    kind = AutoModelForSpeechSeq2Seq if hears else AutoModelForSeq2SeqLM
    model = kind.from_config(config, attn_implementation=case.attention).to(torch.bfloat16)
    model.tie_weights()
    return model.train()


def _batch(case: Case, given: ModelInput) -> dict[str, torch.Tensor]:
    """Return one sequence of each side, as long as our file says."""
    length, vocab = given.shape.encoder.seq_len, case.data["vocab_size"]
    labels = torch.randint(3, vocab, (1, given.job.seq_len))
    if channels := case.data.get("num_mel_bins"):
        sound = torch.randn(1, channels, 2 * length, dtype=torch.bfloat16)
        return {"input_features": sound, "labels": labels}
    return {"input_ids": torch.randint(3, vocab, (1, length)), "labels": labels}


def _sides(model: Any) -> tuple[Any, Any]:
    inner = model.model if hasattr(model, "model") else model
    sides = inner.encoder, inner.decoder
    encoder, decoder = (x.block if hasattr(x, "block") else x.layers for x in sides)
    return encoder, decoder


def theirs_flops(model: Any, batch: dict[str, torch.Tensor], length: int) -> float:
    """Return the FLOPs of one forward, future tokens of the decoder left out."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**batch)
    counts = counter.get_flop_counts()
    total = float(sum(counts["Global"].values()))
    own = [
        sum(n for op, n in ops.items() if "bmm" in str(op) or "attention" in str(op))
        for name, ops in counts.items()
        if ".decoder." in name and name.endswith((".self_attn", ".SelfAttention"))
    ]
    return total - sum(own) * (1.0 - 0.5 * (1.0 + 1.0 / length))


def theirs_kept(model: Any, batch: dict[str, torch.Tensor]) -> tuple[int, int]:
    """Return what the last layer of each side keeps of one forward, bytes."""
    kept = Kept()
    kept.leave_out([*model.parameters(), *model.buffers()])
    names = ("encoder", "decoder")
    for name, layers in zip(names, _sides(model), strict=True):

        def enter(*_: Any, name: str = name) -> None:
            kept.where = name

        def leave(*_: Any) -> None:
            kept.where = ""

        layers[-1].register_forward_pre_hook(enter)
        layers[-1].register_forward_hook(leave)
    with kept:
        out = model(**batch)
        found = kept.by_place()
        del out
    return found["encoder"], found["decoder"]


def ours_kept(given: ModelInput) -> list[float]:
    """Return what a layer of each side keeps of one sequence, bytes."""
    cluster = load_cluster("h100-x8").cluster
    stack, one = STACKS["hf-fsdp2"], np.ones(1, dtype=np.int32)
    problem = Problem(given.shape, given.job, cluster.pools[0], cluster.fabric, stack)
    split = SplitDegrees(one, one, one, one, 0 * one)
    inputs = LayerInputs(
        problem, split, np.full(1, float(given.job.seq_len)), ModeRows.of_sp(0 * one)
    )
    kinds = ("encoder+dense", "causal-cross+dense")
    return [LAYER_KINDS[kind].terms(inputs).kept_bytes.item() for kind in kinds]


def figures() -> Iterator[Figure]:
    """Yield parameters, FLOPs of a sequence and kept bytes of every case."""
    for case in CASES:
        torch.manual_seed(0)
        given, model = _given(case), _built(case)
        name = f"{case.data['model_type']} ({case.attention})"
        length, batch = given.job.seq_len, _batch(case, given)
        real = float(sum(weight.numel() for weight in model.parameters()))
        yield Figure(name, "parameters", total_params(given.shape, length), real, PARAMS_FRAC)
        if case.attention == "eager" or "t5" not in case.data["model_type"]:
            ours = model_flops_per_token(given.shape, length) * length / 3.0
            yield Figure(name, "FLOPs", ours, theirs_flops(model, batch, length), FLOPS_FRAC)
        sides = zip(("encoder", "decoder"), ours_kept(given), theirs_kept(model, batch), strict=True)
        for side, mine, theirs in sides:
            yield Figure(f"{name} {side}", "kept bytes", mine, theirs, KEPT_FRAC)
