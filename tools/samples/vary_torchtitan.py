"""Changes to a torchtitan recipe or job file, each of which breaks one rule.

Both formats hold a field a line; the recipe names the sizes of its model as constants.
"""

import math
import re
from collections.abc import Callable
from random import Random

SCHEDULE = "pipeline_parallel_schedule"
DEGREES = (
    "tensor_parallel_degree",
    "context_parallel_degree",
    "pipeline_parallel_degree",
    "data_parallel_shard_degree",
    "data_parallel_replicate_degree",
)
LISTS = "module_fqns_per_model_part"


class TitanFile:
    """The fields of a recipe (`.py`) or job file (`.toml`)."""

    def __init__(self, text: str, launcher: str = "") -> None:
        """`launcher` starts a recipe; a job file has none."""
        self.text, self.launcher, self.is_recipe = text, launcher, bool(launcher)

    def launched(self, option: str) -> int:
        """Return a number of the launcher: `nnodes` or `nproc-per-node`."""
        found = re.search(rf"--{option} (\d+)", self.launcher)
        return int(found[1]) if found else 1

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.launched("nnodes") * self.launched("nproc-per-node")

    @property
    def stated(self) -> int:
        """Processes that the degrees of a job file ask for; 0 where one is open or none at all."""
        degrees = [self.number(name) for name in DEGREES]
        return math.prod(degrees) if min(degrees) > 0 else 0

    def put_launched(self, option: str, value: int) -> None:
        """Set a number of the launcher."""
        self.launcher = re.sub(rf"(--{option}) \d+", rf"\1 {value}", self.launcher)

    def _pattern(self, name: str) -> str:
        if name.isupper():
            return rf"^({name} = )(.*)()$"
        return rf"^( +{name}=)(.*)(,)$" if self.is_recipe else rf"^({name} = )(.*)()$"

    def get(self, name: str) -> str:
        """Return the value of a field as written; empty where it is not given."""
        found = re.search(self._pattern(name), self.text, re.M)
        return found[2].strip('"') if found else ""

    def number(self, name: str, default: int = 1) -> int:
        """Return the value of a field as a whole number."""
        text = self.get(name)
        return int(text) if re.fullmatch(r"-?\d+", text) else default

    def put(self, name: str, value: object, block: str = "parallelism") -> None:
        """Set a field, where it stands or first in its block."""
        words = f'"{value}"' if isinstance(value, str) else str(value)
        if not self.is_recipe:
            words = words.lower() if isinstance(value, bool) else words
        if self.get(name):
            self.text = re.sub(
                self._pattern(name), lambda m: m[1] + words + m[3], self.text, flags=re.M
            )
        elif self.is_recipe:
            start = {"parallelism": "ParallelismConfig", "training": "TrainingConfig"}[block]
            line = f"{block}={start}(\n"
            assert line in self.text
            self.text = self.text.replace(line, f"{line}            {name}={words},\n", 1)
        else:
            self.text = self.text.replace(f"[{block}]\n", f"[{block}]\n{name} = {words}\n", 1)

    def drop(self, name: str) -> None:
        """Take a field away that stands on one line."""
        self.text = re.sub(self._pattern(name) + r"\n", "", self.text, flags=re.M)

    def replace(self, old: str, new: str) -> bool:
        """Replace text once; tell whether it was there."""
        found = old in self.text
        self.text = self.text.replace(old, new, 1)
        return found

    @property
    def dp(self) -> int:
        """Ranks that read different sequences."""
        return self.number("data_parallel_shard_degree") * self.number(
            "data_parallel_replicate_degree"
        )

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return self.number("pipeline_parallel_degree")

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.number("tensor_parallel_degree")


Change = Callable[[TitanFile, Random], bool]


def put(
    name: str,
    value: object,
    when: Callable[[TitanFile], bool] = lambda file: True,
    block: str = "parallelism",
) -> Change:
    """Return the change that sets a field, where `when` holds."""

    def change(file: TitanFile, random: Random) -> bool:
        if not when(file):
            return False
        file.put(name, value, block)
        return True

    return change


def _world(file: TitanFile, random: Random) -> bool:
    if not file.is_recipe or file.number("data_parallel_shard_degree") < 1:
        return False
    option = random.choice(("nnodes", "nproc-per-node"))
    file.put_launched(option, file.launched(option) + random.choice((1, 2)))
    return True


def _odd_constant(name: str, over: Callable[[TitanFile], int]) -> Change:
    def change(file: TitanFile, random: Random) -> bool:
        if not file.is_recipe or over(file) == 1 or not file.get(name):
            return False
        file.put(name, file.number(name) + 1)
        return True

    return change


def _odd_mlp(file: TitanFile, random: Random) -> bool:
    """Make the dense MLP one wider, where a layer has one: not where all have experts."""
    widen = _odd_constant("FFN", lambda file: file.tp)
    return len(re.findall(r"\bFFN\b", file.text)) > 1 and widen(file, random)


def _odd_sequence(file: TitanFile, random: Random) -> bool:
    if file.tp * file.number("context_parallel_degree") == 1:
        return False
    off = file.get("enable_sequence_parallel") == "False"
    if off and file.number("context_parallel_degree") == 1:
        return False
    name = "SEQ_LEN" if file.is_recipe else "seq_len"
    file.put(name, file.number(name) - 1, "training")
    return True


def _odd_batch(file: TitanFile, random: Random) -> bool:
    step = file.number("local_batch_size") * file.dp
    if step == 1:
        return False
    file.put("global_batch_size", file.number("global_batch_size") + random.randrange(1, step))
    return True


def _few_micro_batches(file: TitanFile, random: Random) -> bool:
    if file.get(SCHEDULE) != "1F1B":
        return False
    size = file.number("pipeline_parallel_microbatch_size")
    file.put("local_batch_size", size * random.randrange(1, file.pp))
    file.put("global_batch_size", -1)
    return True


def _odd_rounds(file: TitanFile, random: Random) -> bool:
    if file.get(SCHEDULE) != "Interleaved1F1B":
        return False
    bad = [m for m in range(2 * file.pp, 4 * file.pp) if m % (m // file.pp)]
    if not bad:
        return False
    size = file.number("pipeline_parallel_microbatch_size")
    file.put("local_batch_size", size * random.choice(bad))
    file.put("global_batch_size", -1)
    return True


def _odd_micro_batches(file: TitanFile, random: Random) -> bool:
    size = file.number("pipeline_parallel_microbatch_size")
    if file.pp == 1 or file.number("local_batch_size") % (size + 1) == 0:
        return False
    file.put("pipeline_parallel_microbatch_size", size + 1)
    return True


def _odd_experts(file: TitanFile, random: Random) -> bool:
    ep = file.number("expert_parallel_degree")
    cells = file.number("data_parallel_shard_degree") * file.tp
    cells *= file.number("context_parallel_degree")
    experts = file.number("N_EXPERTS", 0)
    bad = [e for e in range(2, 64) if cells % e and (not experts or experts % e == 0)]
    if ep == 1 or not bad:
        return False
    file.put("expert_parallel_degree", random.choice(bad))
    return True


def _other_schedule(file: TitanFile, random: Random) -> bool:
    if file.pp == 1:
        return False
    if file.get(SCHEDULE) not in ("1F1B", "GPipe"):
        words: tuple[str, ...] = ("1F1B", "GPipe")
    elif LISTS in file.text:  # a loop runs one stage a rank where the stages are spelled out
        words = ("ZBVZeroBubble", "DualPipeV")
    else:
        words = ("Interleaved1F1B", "ZBVZeroBubble")
    file.put(SCHEDULE, random.choice(words))
    return True


def _loop_over_one_stage(file: TitanFile, random: Random) -> bool:
    if file.get(SCHEDULE) not in ("1F1B", "GPipe") or LISTS not in file.text:
        return False
    file.put(SCHEDULE, random.choice(("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")))
    return True


def _odd_stages(file: TitanFile, random: Random) -> bool:
    size = file.number("pipeline_parallel_layers_per_stage", 0)
    if not size:
        return False
    file.put(
        "pipeline_parallel_layers_per_stage", size + random.choice((1, -1)) if size > 1 else 2
    )
    return True


def _unknown_field(file: TitanFile, random: Random) -> bool:
    name = random.choice(("tensor_parallel_size", "fsdp_degree", "virtual_stages", "zero_stage"))
    file.put(name, 2)
    return True


def _odd_word(file: TitanFile, random: Random) -> bool:
    name, word = random.choice(
        ((SCHEDULE, "1F1B-interleaved"), ("fsdp_reshard_after_forward", "sometimes"))
    )
    if name == SCHEDULE and file.pp == 1:
        return False
    file.put(name, word)
    return True


def _varlen(file: TitanFile, random: Random) -> bool:
    return file.number("context_parallel_degree") > 1 and file.replace(
        'get_attention_config("flex")', 'get_attention_config("varlen")'
    )


def _flex(file: TitanFile, random: Random) -> bool:
    if file.is_recipe or file.get("name") not in ("deepseek_v3", "gpt_oss"):
        return False
    file.put("context_parallel_degree", 2)
    return True


def _tied(file: TitanFile, random: Random) -> bool:
    return file.pp > 1 and file.replace(
        "            vocab_size=VOCAB,\n",
        "            vocab_size=VOCAB,\n            enable_weight_tying=True,\n",
    )


BREAKS: tuple[tuple[str, str, Change], ...] = (
    ("TTN122", "devices that the degrees do not make", _world),
    ("TTN102", "one head more", _odd_constant("HEADS", lambda file: file.tp)),
    ("TTN103", "one KV head more", _odd_constant("KV_HEADS", lambda file: file.tp)),
    ("TTN104", "MLP one wider", _odd_mlp),
    (
        "TTN302",
        "one expert more",
        _odd_constant("N_EXPERTS", lambda file: file.number("expert_parallel_degree")),
    ),
    ("TTN303", "ep that does not divide the ranks", _odd_experts),
    ("TTN105", "one token less in a sequence", _odd_sequence),
    ("TTN123", "batch that does not divide", _odd_batch),
    ("TTN123", "an empty local batch", put("local_batch_size", 0, block="training")),
    ("TTN203", "too few micro-batches", _few_micro_batches),
    ("TTN204", "micro-batches that do not divide into rounds", _odd_rounds),
    ("TTN221", "pipeline micro-batches that do not divide", _odd_micro_batches),
    ("TTN220", "another schedule", _other_schedule),
    ("", "a loop over one stage a rank", _loop_over_one_stage),
    ("", "another number of layers a stage", _odd_stages),
    ("TTN120", "unknown field", _unknown_field),
    ("", "unknown word", _odd_word),
    ("TTN202", "tied embeddings in a pipeline", _tied),
    ("TTN124", "attention that cannot be split", _varlen),
    ("TTN125", "context parallelism that 0.2 does not have", _flex),
    (
        "TTN222",
        "CUDA graphs in a pipeline",
        put("disable_cuda_graphs", False, lambda file: file.is_recipe and file.pp > 1, "training"),
    ),
    ("TTN122", "a degree of 0", put("tensor_parallel_degree", 0)),
)
"""Rule, what is changed, and the change."""

NUMBERS = (
    *DEGREES,
    "expert_parallel_degree",
    "local_batch_size",
    "global_batch_size",
    "pipeline_parallel_microbatch_size",
    "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
    "LAYERS",
    "HEADS",
    "KV_HEADS",
    "FFN",
    "SEQ_LEN",
    "N_EXPERTS",
    "EXPERT_FFN",
    "seq_len",
)


def nudge(file: TitanFile, random: Random) -> str:
    """Change one number at random; return what was done."""
    there = [name for name in NUMBERS if re.fullmatch(r"\d+", file.get(name))]
    name = random.choice([*there, *["nnodes"] * file.is_recipe])
    old = file.launched(name) if name == "nnodes" else file.number(name)
    choices = {old * 2, old * 3, old + 1, max(1, old - 1), max(1, old // 2), old + 2} - {old}
    new = random.choice(sorted(choices))
    if name == "nnodes":
        file.put_launched(name, new)
    else:
        file.put(name, new)
    return f"{name} {old} to {new}"
