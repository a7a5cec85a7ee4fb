"""What a recipe says of the job: length, precision, optimizer, adapters."""

from typing import Any

from costmodels.tuning.targets import ALL_LINEAR
from planner.frameworks.finetuning.adapter_names import targets_of
from planner.frameworks.runs.settings import Reader

LENGTHS = (
    "packed_sequence.packed_sequence_size",
    "dataset.seq_len",
    "dataset.seq_length",
    "dataset.max_seq_length",
)
"""Keys that say the length of a sequence, the first that is set."""
OPTIMIZERS = {
    "Adam": "adam",
    "AdamW": "adam",
    "FusedAdam": "adam",
    "FlashAdamW": "adam",
    "SGD": "sgd",
    "Muon": "muon",
}
"""Optimizers by the class that a recipe names."""
NARROW = ("bfloat16", "bf16", "torch.bfloat16", "auto", "")
FP8_OF_ENGINE = {"current": "fp8-tensorwise", "block": "fp8-blockwise", "mxfp8": "fp8-mxfp8"}
FP8_OF_TORCHAO = {
    "tensorwise": "fp8-tensorwise",
    "rowwise": "fp8-rowwise",
    "rowwise_with_gw_hp": "fp8-rowwise",
}
PLAIN_ADAPTERS = {"dim": 8, "alpha": 32, "dropout": 0.0}
"""What `PeftConfig` takes by itself."""


def sequence_length(read: Reader) -> int | None:
    """Return the tokens of a sequence; None where only the data say them."""
    return next((n for key in LENGTHS if (n := read.number(key)) > 0), None)


def precision_of(read: Reader, notes: list[str]) -> str:
    """Return the numeric recipe: fp8 where it is on, else by the type of the stored weights."""
    engine = read.text("model.backend.te_fp8.recipe")
    if engine:
        return FP8_OF_ENGINE.get(engine, "fp8-tensorwise")
    if read.switch("fp8.enabled"):
        return FP8_OF_TORCHAO.get(read.text("fp8.recipe_name", "tensorwise"), "fp8-tensorwise")
    stored = read.text("model.torch_dtype", "auto")
    if stored in NARROW:
        has_master = "FusedAdam" in read.text("optimizer._target_")
        is_tuned = any(key.startswith("peft.") for key in read.settings)
        if has_master or is_tuned:
            return "bf16"
        notes.append("weights and states in bf16: no copy in fp32 beside them")
        return "bf16-true"
    computed = read.text("distributed.mp_policy.param_dtype", "bfloat16")
    return "fp32" if computed in ("float32", "fp32", "torch.float32") else "bf16"


def optimizer_of(read: Reader, notes: list[str]) -> str:
    """Return the optimizer; one that is not known is priced as Adam, and noted."""
    named = read.text("optimizer._target_", "torch.optim.AdamW").rpartition(".")[2]
    if named not in OPTIMIZERS:
        notes.append(f"optimizer {named}: priced as Adam")
    return OPTIMIZERS.get(named, "adam")


def adapters(read: Reader, notes: list[str]) -> dict[str, Any]:
    """Return `task` and `lora` of a job that trains adapters; {} of one that trains all."""
    if not any(key == "peft" or key.startswith("peft.") for key in read.settings):
        return {}
    names = read.settings.get("peft.target_modules") or []
    every = read.switch("peft.match_all_linear")
    plain = [str(name).rpartition(".")[2].lstrip("*") for name in names]
    wild = every or "_proj" in plain or "" in plain or not plain
    if read.switch("peft.use_dora"):
        notes.append("use_dora: priced as LoRA")
    four = read.switch("quantization.load_in_4bit")
    base = "nf4" if four else "int8" if read.switch("quantization.load_in_8bit") else "bf16"
    lora = {
        "rank": read.number("peft.dim", 8),
        "alpha": read.number("peft.alpha", 32),
        "dropout": float(read.settings.get("peft.dropout") or 0.0),
        "targets": [ALL_LINEAR] if wild else targets_of(plain),
        "base": base,
    }
    return {"task": "lora" if base == "bf16" else "qlora", "lora": lora}
