"""Forks and other releases of Megatron-LM: which one a command is for, and what its flags mean.

Their names of flags stand in `planner/data/megatron_forks.json` (scripts/megatron_forks). What a
flag means that has another name in Megatron-LM is said under that name; a flag that decides
nothing of a plan is passed over; the rest is not understood, and said so.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from planner.frameworks.megatron.flags import Parsed, flag_table, parse_flags
from planner.frameworks.runs.existing_run import Doubt
from planner.frameworks.shell.marks import unmarked
from searches.frameworks.megatron.flags import OLD_SPELLINGS

FULL = ("--recompute-granularity", "full")
RENAMED: Mapping[str, tuple[str, ...]] = {
    "--model-parallel-size": ("--tensor-model-parallel-size", "{}"),
    "--batch-size": ("--micro-batch-size", "{}"),
    "--warmup": ("--lr-warmup-fraction", "{}"),
    "--checkpoint-activations": (
        *FULL,
        "--recompute-method",
        "uniform",
        "--recompute-num-layers",
        "1",
    ),
    "--checkpoint-num-layers": ("--recompute-num-layers", "{}"),
    "--activations-checkpoint-method": (
        *FULL,
        "--recompute-method",
        "{}",
        "--recompute-num-layers",
        "1",
    ),
    "--activations-checkpoint-num-layers": ("--recompute-num-layers", "{}"),
    "--distribute-checkpointed-activations": ("--distribute-saved-activations",),
    "--RMSNorm": ("--normalization", "RMSNorm"),
    "--use-rms-norm": ("--normalization", "RMSNorm"),
    "--glu-activation": ("--swiglu",),
    "--num-attention-heads-kv": ("--group-query-attention", "--num-query-groups", "{}"),
    "--num-key-value-heads": ("--group-query-attention", "--num-query-groups", "{}"),
    "--causal-lm": ("--untie-embeddings-and-output-weights",),
    "--no-tie-embed-logits": ("--untie-embeddings-and-output-weights",),
    "--layernorm-epsilon": ("--norm-epsilon", "{}"),
    "--overlapped-distributed-optimizer": ("--use-distributed-optimizer", "--overlap-grad-reduce"),
    "--use-flash-attn-v1": ("--use-flash-attn",),
    "--use-flash-attn-v2": ("--use-flash-attn",),
    "--use-flash-attn-triton": ("--use-flash-attn",),
    "--use-flash-attn-builder": ("--use-flash-attn",),
    "--ds-sequence-parallel-size": ("--context-parallel-size", "{}", "--cp-comm-type", "a2a"),
    "--moe-expert-parallel-size": ("--expert-model-parallel-size", "{}"),
    "--topk": ("--moe-router-topk", "{}"),
    "--moe-train-capacity-factor": ("--moe-expert-capacity-factor", "{}"),
    "--pad-vocab-size-to": ("--padded-vocab-size", "{}"),
    "--rope-theta": ("--rotary-base", "{}"),
    "--rotary-position-embeddings-theta": ("--rotary-base", "{}"),
    "--use-custom-fsdp": ("--use-megatron-fsdp",),
    "--max-length": ("--seq-length", "{}"),
}
"""What flags of forks and of other releases are called in Megatron-LM; `{}` is their value."""
VALUES: Mapping[str, Mapping[str, str]] = {
    "--normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"},
    "--position-embedding-type": {
        "rotary": "rope",
        "alibi": "rope",
        "absolute": "learned_absolute",
    },
}
"""Values of forks; positions without parameters are priced as rotary ones."""
EXCHANGES = {"ulysses_cp_algo": "a2a", "megatron_cp_algo": "p2p"}
"""Exchange by value of MindSpeed's --context-parallel-algo."""
_NO_MATTER = re.compile(
    r"--(no-)?(data|tokenizer|wandb|log|tensorboard|save|load|lr|min-lr|eval|valid|test|train-|ckpt"
    r"|checkpoint-dir|job-name|kill-switch|exit|override|use-checkpoint|mmap|seed|profile|timing"
    r"|codecarbon|report|dataset|vocab|merge-file|dataloader|finetune|patch-tokenizer|max-padding"
    r"|model-type|prompt|handler|enable-hf2mg|shuffle|wd|weight-decay|clip|init|abort|skip-train"
    r"|attention-softmax|mask|num-workers|DDP-impl|distributed-backend|local.rank|use-fused|pad-to"
    r"|no-query-key|query-key|zero-|deepspeed|embedding-weights|num-layers-teacher|use-bias|output"
    r"|sync-tp|embed-layernorm|add-eos|moe-loss-coeff|moe-min-capacity|moe-eval|create-moe|metrics"
    r"|causal-lm|reduce-bucket|shared-storage|variable|warmup|apply-layernorm|universal|export"
    r"|dist-ckpt|async-tensor|scatter-gather|contiguous-buffers|pipeline-parallel|use-legacy"
    r"|use-mcore|synchronize-each|contigious|pp-partition|expert-interval|mlp-type|stage|sft"
    r"|packing|attention-backend|disable-mem-efficient|use-pin-memory|aml|onnx|scaled-|override"
    r"|enable-one-logger|one-logger|initialization|new-tokens|bias|masked-softmax|persist)",
    re.IGNORECASE,
)
"""Flags of data, logging, checkpoints, the optimizer's numbers and kernels: no figure of a plan
depends on them."""
_LESS_MEMORY = re.compile(
    r"--(swap-|reuse-fp32-param|recompute-(activation-function|norm|in-)|adaptive-memory"
    r"|overlapped-distributed-optimizer)"
)
"""Flags that save memory in a way that is not read: what is priced does not fit too easily."""
OLDEST = "Megatron-LM 1 to 3"
"""Releases whose spellings a later parser knows only to refuse them."""


@dataclass(frozen=True, slots=True)
class Understood:
    """What a command for Megatron-LM, or for something like it, says."""

    parsed: Parsed
    fork: str
    """Fork or other release that the flags belong to; empty for Megatron-LM as it is known."""
    doubts: tuple[Doubt, ...]
    notes: tuple[str, ...]
    saves_memory: str
    """Flags that save memory and are not modelled."""


@cache
def forks() -> Mapping[str, frozenset[str]]:
    """Return the flags of each fork that Megatron-LM does not have."""
    text = (files("planner") / "data" / "megatron_forks.json").read_text(encoding="utf-8")
    return {name: frozenset(flags) for name, flags in json.loads(text).items()}


def fork_of(flags: Sequence[str]) -> str:
    """Return the fork that knows most of the flags; "" where none knows one."""
    counts = {name: sum(f in names for f in flags) for name, names in forks().items()}
    best = max(counts, key=counts.__getitem__)  # the first of those that know as many
    return best if counts[best] else ""


def understood(
    tokens: Sequence[str], line_of: Callable[[str], int] = lambda flag: 0, hint: str = ""
) -> Understood:
    """Return what the words after a training script say.

    `line_of` tells in which line a flag stands; `hint` is the fork where something else says it.
    """
    first = parse_flags(tokens)
    old = [name for name in OLD_SPELLINGS if first.settings.get(name)]
    fork = hint or fork_of(first.unknown) or (OLDEST if old else "")
    if not first.unknown and not fork:
        return Understood(_with_rotary(without_stray(first)), "", (), stray_notes(first), "")
    parsed = _with_rotary(parse_flags(_in_our_words(tokens, fork)))
    left = [flag for flag in parsed.unknown if not _NO_MATTER.match(flag)]
    passed = [flag for flag in parsed.unknown if _NO_MATTER.match(flag)]
    notes = list(stray_notes(parsed))
    if passed:
        notes.append(f"passed over, no figure depends on it: {' '.join(passed)}")
    if fork:
        parsed = replace(parsed, odd_words={}, faults=())
    return Understood(
        without_stray(replace(parsed, unknown=tuple(left))),
        fork,
        tuple(_doubts(left, line_of)),
        tuple(notes),
        " ".join(flag for flag in first.unknown if _LESS_MEMORY.match(flag)),
    )


def _with_rotary(parsed: Parsed) -> Parsed:
    """Return the flags with rotary positions where their older switch asks for them."""
    kind = {"position_embedding_type": "rope"}
    if not parsed.settings.get("use_rotary_position_embeddings"):
        return parsed
    written = {"position_embedding_type": "--use-rotary-position-embeddings", **parsed.written}
    return replace(parsed, settings={**kind, **parsed.settings}, written=written)


def _doubts(flags: Sequence[str], line_of: Callable[[str], int]) -> list[Doubt]:
    """Return one doubt for each flag: whose it is, and what is assumed."""
    release = flag_table()[0]
    results = []
    for flag in flags:
        owners = [name for name, names in forks().items() if flag in names]
        why = (
            f"a flag of {' and '.join(owners[:2])}"
            if owners
            else (f"Megatron-LM {release} has no such flag; a fork or another release may")
        )
        results.append(Doubt(flag, why, "judged and priced as without it", line_of(flag)))
    return results


def _in_our_words(tokens: Sequence[str], fork: str) -> list[str]:
    """Return the words with flags and values of forks under Megatron-LM's names."""
    by_name = flag_table()[1]
    made: list[str] = []
    i = 0
    while i < len(tokens):
        word = tokens[i]
        i += 1
        name, equals, inline = word.partition("=")
        if name.startswith("--") and name not in by_name:
            dashed = name.replace("_", "-")
            name = dashed if dashed in by_name or dashed in RENAMED else name
        value = inline if equals else tokens[i] if i < len(tokens) else ""
        flag = by_name.get(name)
        if name in RENAMED and (flag is None or flag.dest in OLD_SPELLINGS):
            made += [part.format(value) for part in RENAMED[name]]
            i += 0 if equals or not _takes_value(name) else 1
        elif name == "--pp-partition-method" and "embedding" in value:
            made += [
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
            ]
            i += 0 if equals else 1
        elif name == "--context-parallel-algo":
            made += ["--cp-comm-type", EXCHANGES.get(value, "p2p")]
            i += 0 if equals else 1
        elif flag is not None and name in VALUES and value in VALUES[name]:
            made += [name, VALUES[name][value]]
            i += 0 if equals else 1
        elif flag is not None and flag.is_switch and _is_bool(value):  # as YAML and swift have it
            made += [name] * (value.lower() == "true")
            i += 0 if equals else 1
        else:
            made.append(f"{name}={inline}" if equals else name)
    if fork.startswith("Megatron-LLM") and not {"--use_bias", "--use-bias"} & set(tokens):
        made.append("--disable-bias-linear")  # its default, unlike Megatron-LM's
    return made


def _takes_value(name: str) -> bool:
    return name == "--glu-activation" or "{}" in RENAMED[name]


def _is_bool(value: str) -> bool:
    return value.lower() in ("true", "false")


STRAY = "belongs to no flag"


def _stray_words(parsed: Parsed) -> list[str]:
    """Return the words of placeholders such as `your model path`: letters alone."""
    results = [re.fullmatch(rf"'([^\W\d]+)' {STRAY}", fault) for fault in parsed.faults]
    return [match[1] for match in results if match]


def stray_notes(parsed: Parsed) -> tuple[str, ...]:
    """Return what was taken as words of a placeholder, a note or none."""
    tokens = _stray_words(parsed)
    return (f"taken as parts of a placeholder: {' '.join(tokens)}",) if tokens else ()


def without_stray(parsed: Parsed) -> Parsed:
    """Return the flags without the faults that words of a placeholder make."""
    tokens = _stray_words(parsed)
    faults = tuple(f for f in parsed.faults if f not in {f"{w!r} {STRAY}" for w in tokens})
    return replace(parsed, faults=faults)


def line_in(text: str) -> Callable[[str], int]:
    """Return a function that finds the line of a flag in a script; 0 where it is in none."""
    lines = text.splitlines()

    def line_of(flag: str) -> int:
        name = re.escape(unmarked(flag))
        pattern = re.compile(rf"^[^#]*{name}(?![\w-])")
        return next((i for i, line in enumerate(lines, start=1) if pattern.search(line)), 0)

    return line_of
