"""Flags with which Megatron-LM's parser is content and its training loop is not.

Codes go on from those of sizes and training in `flags`.
"""

from searches.frameworks.case import Case
from searches.frameworks.megatron.settings import enforced_in, flag, flag_rule

TRAINING = "megatron/training/training.py"
TOKENIZER = "megatron/core/tokenizers/utils/build_tokenizer.py, build_tokenizer"


def _samples_ahead(c: Case) -> bool:
    """Tell whether the loop counts the samples of all evaluations before it starts."""
    trains = flag(c, "train_iters") or flag(c, "train_samples")
    skipped = flag(c, "skip_train") or flag(c, "full_validation") or flag(c, "perform_rl_step")
    return bool(trains) and not skipped


RULES = (
    flag_rule(
        "MLM143",
        "steps of training without an interval of evaluation",
        # Whatever --eval-iters is: steps are divided by the interval, which is None, or 0.
        lambda c: _samples_ahead(c) and not flag(c, "eval_interval"),
        lambda c: (
            "training without --eval-interval stops before the first step: steps are divided"
            " by it, --eval-iters 0 or not"
            if flag(c, "eval_interval") is None
            else "--eval-interval 0: steps are divided by it"
        ),
        "--eval-interval 1000",
        enforced_in(f"{TRAINING}, get_train_valid_test_num_samples", "start", versions=">=0.16"),
    ),
    flag_rule(
        "MLM144",
        "the tokenizer without vocabulary where none is named",
        lambda c: flag(c, "tokenizer_type") == "NullTokenizer" and not flag(c, "vocab_size"),
        "--tokenizer-type NullTokenizer has no vocabulary of its own",
        "--vocab-size N",
        enforced_in(TOKENIZER, "start", versions=">=0.15"),
    ),
    flag_rule(
        "MLM145",
        "Weights & Biases without a folder",
        lambda c: (
            bool(flag(c, "wandb_project"))
            and not flag(c, "wandb_save_dir")
            and flag(c, "save") is None
        ),
        "--wandb-project writes into --wandb-save-dir or --save, and neither is given",
        "--wandb-save-dir DIR",
        enforced_in("megatron/training/global_vars.py, _set_wandb_writer", "start"),
    ),
)
"""Rules over flags that the parser takes and the training loop cannot run with."""
