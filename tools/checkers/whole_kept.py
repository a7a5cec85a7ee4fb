"""What layers of decoders and encoders keep for their backward: saved tensors of transformers.

Models of two layers run on the CPU in bf16. Kernels of a GPU that PyTorch lacks on the CPU (its
RMSNorm) have functions in their place that keep what those keep. Of layers with windows those over
all keys stand here: plans run windows by flex attention, which keeps no mask.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from kept import Kept
from layer_flops import COMMON, Config, Figure
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM

from costmodels.layers.kinds import LAYER_KINDS
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from planner.specs.loader import load_cluster, model_from_dict

TOKENS, KEPT_FRAC = 256, 0.01
BERT: Config = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "embedding_size": 512,
    "pad_token_id": 0,
}
MODERN: Config = {
    "layer_types": ["full_attention"] * 2,
    "pad_token_id": 0,
    "num_key_value_heads": 8,
}
MASKED = ("modernbert", "eurobert", "bert", "roberta-prelayernorm", "electra")
_ALL_HEADS: Config = {"num_key_value_heads": 8}
CASES: tuple[tuple[str, Config, Config], ...] = (
    ("dense", {"model_type": "llama"}, {}),
    ("dense", {"model_type": "qwen3"}, {"operators": {"qk_norm": "head"}}),
    ("differential+dense", {"model_type": "diffllama"}, {}),
    (
        "factored+dense",
        {"model_type": "llama"},
        {
            "factored": {"q_rank": 192},
            "layer_kinds": [{"kind": "factored+dense", "count": 2}],
        },
    ),
    ("dense", {**MODERN, "model_type": "modernbert-decoder"}, {}),
    ("bidirectional+dense", {**MODERN, "model_type": "modernbert"}, {}),
    ("bidirectional+dense", {"model_type": "eurobert", "pad_token_id": 0, **_ALL_HEADS}, {}),
    *(
        ("bidirectional+dense", {**BERT, "model_type": name}, {})
        for name in ("bert", "roberta-prelayernorm", "electra")
    ),
)
"""Kind, config.json, what our model file has beside the importer's."""


class NormKernel(torch.autograd.Function):
    """A norm of one kernel: it keeps its input and a number a row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return x.clone()


def factor_queries(model: Any, rank: int) -> None:
    """Put two products with a norm between in place of a decoder's queries, as Step-3 has them."""
    for layer in model.model.layers:
        plain, norm = layer.self_attn.q_proj, type(model.model.norm)
        first = torch.nn.Linear(plain.in_features, rank, bias=False)
        second = torch.nn.Linear(rank, plain.out_features, bias=False)
        layer.self_attn.q_proj = torch.nn.Sequential(first, norm(rank), second)


def put_kernels_in_place(model: Any) -> None:
    """Let PyTorch's RMSNorm keep what its kernel on a GPU keeps."""
    for module in model.modules():
        if type(module) is torch.nn.RMSNorm:
            module.forward = NormKernel.apply


def theirs_kept(data: Config, q_rank: int = 0) -> int:
    """Return what the last layer keeps of one forward over `TOKENS`, bytes.

    `q_rank`: width between two products of queries, 0: there is one.
    """
    config = CONFIG_MAPPING[data["model_type"]].from_dict({**data, "use_cache": False})
    kind = AutoModelForMaskedLM if data["model_type"] in MASKED else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="sdpa")
    if q_rank:
        factor_queries(model, q_rank)
    model = model.to(torch.bfloat16).train()
    put_kernels_in_place(model)
    kept = Kept()
    kept.leave_out([*model.parameters(), *model.buffers()])
    lists = [x for x in model.modules() if isinstance(x, torch.nn.ModuleList)]
    last = max(lists, key=len)[-1]
    last.register_forward_pre_hook(lambda *_: setattr(kept, "where", "last"))
    last.register_forward_hook(lambda *_: setattr(kept, "where", ""))
    with kept:
        out = model(input_ids=torch.randint(3, config.vocab_size, (1, TOKENS)))
        found = kept.by_place()["last"]
        del out
    return found


def ours_kept(kind: str, data: Config, changes: Config) -> float:
    """Return what a layer keeps of `TOKENS` as FSDP2 runs it, bytes."""
    document = model_from_dict(dict(data)).document
    document["model"] |= changes
    document["training"] |= {"seq_len": TOKENS, "precision": "bf16"}
    given, cluster = model_from_dict(document), load_cluster("h100-x8").cluster
    stack, one = STACKS["hf-fsdp2"], np.ones(1, dtype=np.int32)
    problem = Problem(given.shape, given.job, cluster.pools[0], cluster.fabric, stack)
    split = SplitDegrees(one, one, one, one, 0 * one)
    inputs = LayerInputs(problem, split, np.full(1, float(TOKENS)), ModeRows.of_sp(0 * one))
    return LAYER_KINDS[kind].terms(inputs).kept_bytes.item()


def figures() -> Iterator[Figure]:
    """Yield kept bytes of a token of every case."""
    for kind, more, changes in CASES:
        data = {**COMMON, "attention_dropout": 0.0, **more}
        q_rank = changes.get("factored", {}).get("q_rank", 0)
        ours, theirs = ours_kept(kind, data, changes), theirs_kept(data, q_rank)
        name = f"{kind} ({more['model_type']})"
        yield Figure(name, "kept bytes", ours / TOKENS, theirs / TOKENS, KEPT_FRAC)
