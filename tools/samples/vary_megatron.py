"""Changes to a Megatron-LM script, each of which breaks one rule.

A change takes the line and a random source, and says whether it could be made: `False` leaves the
plan to another change.
"""

from collections.abc import Callable
from math import prod
from random import Random

from tools.samples.megatron_line import MegatronLine

Change = Callable[[MegatronLine, Random], bool]

TP, PP, CP = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
)
EP, ETP = "--expert-model-parallel-size", "--expert-tensor-parallel-size"
MBS, GBS, SEQ = "--micro-batch-size", "--global-batch-size", "--seq-length"
LAYERS, HEADS, GROUPS = "--num-layers", "--num-attention-heads", "--num-query-groups"
EXPERTS, EXPERT_FFN, FFN = "--num-experts", "--moe-ffn-hidden-size", "--ffn-hidden-size"
CHUNK, LAYOUT = "--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"
VPP = "--num-virtual-stages-per-pipeline-rank"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
COUNT_FIRST = "--account-for-embedding-in-pipeline-split"
COUNT_LAST = "--account-for-loss-in-pipeline-split"
OFFLOAD = "--optimizer-cpu-offload"
DISTRIBUTED, FSDP = "--use-distributed-optimizer", "--use-megatron-fsdp"


def dp(line: MegatronLine) -> int:
    """Return the data-parallel size that the line leaves."""
    return line.world // prod(line.number(flag) for flag in (TP, PP, CP))


def chunks(line: MegatronLine) -> int:
    """Return the model chunks of a rank."""
    pp = line.number(PP)
    if line.has(LAYOUT):
        return stages_of(line.text(LAYOUT)) // pp
    extra = line.has(COUNT_FIRST) + line.has(COUNT_LAST)
    per_chunk = line.number(CHUNK, 0)
    return (line.number(LAYERS) + extra) // pp // per_chunk if per_chunk else 1


def stages_of(layout: str) -> int:
    """Return the stages of a layout string.

    >>> stages_of("Et*7|(t*8|)*3t*7L")
    5
    """
    n, repeated = 1, layout
    while "(" in repeated:
        start = repeated.index("(")
        end = repeated.index(")")
        digits = "".join(iter_digits(repeated[end + 2 :]))
        n += repeated[start:end].count("|") * int(digits)
        repeated = repeated[:start] + repeated[end + 2 + len(digits) :]
    return n + repeated.count("|")


def iter_digits(text: str) -> list[str]:
    """Return the digits that a text starts with."""
    found = []
    for letter in text:
        if not letter.isdigit():
            break
        found.append(letter)
    return found


def is_moe(line: MegatronLine) -> bool:
    """Tell whether the line has experts."""
    return line.has(EXPERTS)


def split_evenly(line: MegatronLine) -> bool:
    """Tell whether layers / pp decides what a rank holds."""
    return line.number(PP) > 1 and not any(map(line.has, (LAYOUT, FIRST, LAST, COUNT_FIRST)))


def set_to(flag: str, *values: object) -> Change:
    """Return the change that gives a flag."""

    def change(line: MegatronLine, random: Random) -> bool:
        line.put(flag, *values)
        return True

    return change


def add(flag: str, by: int, when: Callable[[MegatronLine], bool]) -> Change:
    """Return the change that adds to a flag, where `when` holds."""

    def change(line: MegatronLine, random: Random) -> bool:
        if not line.text(flag) or not when(line):
            return False
        line.put(flag, line.number(flag) + by)
        return True

    return change


def given(when: Callable[[MegatronLine], bool], *options: tuple[object, ...]) -> Change:
    """Return the change that gives options, where `when` holds."""

    def change(line: MegatronLine, random: Random) -> bool:
        if not when(line):
            return False
        for flag, *values in options:
            line.put(str(flag), *values)
        return True

    return change


def without(when: Callable[[MegatronLine], bool], *flags: str) -> Change:
    """Return the change that takes flags away, where `when` holds and one is there."""

    def change(line: MegatronLine, random: Random) -> bool:
        if not when(line) or not any(map(line.has, flags)):
            return False
        line.drop(*flags)
        return True

    return change


def always(line: MegatronLine) -> bool:
    """Hold for every line."""
    return True


def parallel(*flags: str) -> Callable[[MegatronLine], bool]:
    """Return the condition that the product of some degrees is above 1."""
    return lambda line: prod(line.number(flag) for flag in flags) > 1


def full(line: MegatronLine) -> bool:
    """Tell whether the line recomputes whole layers."""
    return line.text("--recompute-granularity") == "full"


def selective(line: MegatronLine) -> bool:
    """Tell whether the line recomputes modules."""
    return line.text("--recompute-granularity") == "selective"


def fp8(line: MegatronLine) -> bool:
    """Tell whether the line computes in fp8."""
    return line.has("--fp8-format")


def _odd_world(line: MegatronLine, random: Random) -> bool:
    degrees = prod(line.number(flag) for flag in (TP, PP, CP))
    option = "nnodes" if line.launcher("nnodes") > 1 else "nproc-per-node"
    other = line.world // line.launcher(option)
    choices = [n for n in range(1, line.launcher(option) + 9) if n * other % degrees]
    if not choices:
        return False
    line.put_launcher(option, random.choice(choices))
    return True


def _odd_groups(line: MegatronLine, random: Random) -> bool:
    tp = line.number(TP)
    heads = line.number(HEADS)
    choices = [g for g in range(2, heads) if g % tp and tp % g and heads % g == 0]
    if line.has("--multi-latent-attention") or not choices:
        return False
    line.put("--group-query-attention")
    line.put(GROUPS, random.choice(choices))
    return True


def _odd_exchange(line: MegatronLine, random: Random) -> bool:
    heads, over = line.number(HEADS), line.number(TP) * line.number(CP)
    kv_heads = line.number(GROUPS, heads)
    if line.number(CP) == 1 or (heads % over == 0 and kv_heads % over == 0):
        return False
    line.put("--cp-comm-type", "a2a")
    return True


def _pipeline_before_dp(line: MegatronLine, random: Random) -> bool:
    pp, tp = line.number(PP), line.number(TP)
    inner = line.number(EP) * (line.number(ETP) if is_moe(line) else tp)
    if pp == 1 or line.world // (inner * pp) == dp(line) or line.has(FSDP):
        return False
    line.put("--use-tp-pp-dp-mapping")
    return True


def _batch_that_does_not_divide(line: MegatronLine, random: Random) -> bool:
    step = line.number(MBS) * dp(line)
    if step == 1:
        return False
    line.put(GBS, line.number(GBS) + random.randrange(1, step))
    return True


def _rounds_that_leave_bubbles(line: MegatronLine, random: Random) -> bool:
    pp, step = line.number(PP), line.number(MBS) * dp(line)
    if chunks(line) == 1:
        return False
    micro = line.number(GBS) // step
    bad = [m for m in range(1, 3 * pp) if m < pp or 0 < m % pp < pp]
    if random.random() < 0.5:
        line.put(GBS, random.choice(bad) * step)
    else:
        group = random.choice([pp - 1, micro + 1])
        if group < 1:
            return False
        line.put("--microbatch-group-size-per-virtual-pipeline-stage", group)
    return True


def _grid_that_does_not_fit(line: MegatronLine, random: Random) -> bool:
    if not is_moe(line):
        return False
    pp, world = line.number(PP), line.world
    experts = line.number(EXPERTS)
    eps = [
        e
        for e in range(1, experts + 1)
        if experts % e == 0 and world % (e * line.number(ETP) * pp)
    ]
    if not eps:
        return False
    line.put(EP, random.choice(eps))
    return True


def _odd_end(line: MegatronLine, random: Random) -> bool:
    pp, layers = line.number(PP), line.number(LAYERS)
    if not split_evenly(line) or chunks(line) > 1 or pp == 1:
        return False
    rest = [k for k in range(1, layers) if pp > 1 and (layers - k) % (pp - 1)]
    if not rest:
        return False
    line.put(random.choice((FIRST, LAST)), random.choice(rest))
    return True


def _two_interleavings(line: MegatronLine, random: Random) -> bool:
    if line.has(CHUNK):
        line.put(VPP, chunks(line))
    elif line.has(LAYOUT):
        line.put(VPP, 2)
    else:
        return False
    return True


def _odd_chunk(line: MegatronLine, random: Random) -> bool:
    if not line.has(CHUNK):
        return False
    extra = line.has(COUNT_FIRST) + line.has(COUNT_LAST)
    share = (line.number(LAYERS) + extra) // line.number(PP)
    bad = [k for k in range(1, share + 1) if share % k]
    if not bad:
        return False
    line.put(CHUNK, random.choice(bad))
    return True


def _odd_vpp(line: MegatronLine, random: Random) -> bool:
    share = line.number(LAYERS) // line.number(PP)
    bad = [k for k in range(2, share) if share % k]
    if not split_evenly(line) or line.has(CHUNK) or not bad:
        return False
    micro = line.number(GBS) // (line.number(MBS) * dp(line))
    if micro % line.number(PP):
        return False
    line.put(VPP, random.choice(bad))
    return True


def _two_ranks_without_overlap(line: MegatronLine, random: Random) -> bool:
    if line.number(PP) != 2 or chunks(line) == 1:
        return False
    line.put("--no-overlap-p2p-communication")
    return True


def _damaged_layout(line: MegatronLine, random: Random) -> bool:
    if not line.has(LAYOUT):
        return False
    text = line.text(LAYOUT)
    damages = [
        text.replace("E", "", 1),
        text.replace("L", "", 1),
        text + "|t",
        "t|" + text,
        text.replace("E", "Et", 1),
        text.replace("L", "tL", 1),
        text.replace("L", "LL", 1),
        text.replace("t", "x", 1),
        text.replace("L", "mL", 1),
    ]
    line.put(LAYOUT, random.choice(damages))
    return True


def _layout_and_ends(line: MegatronLine, random: Random) -> bool:
    if not line.has(LAYOUT):
        return False
    flag = random.choice((FIRST, LAST, COUNT_FIRST, COUNT_LAST))
    line.put(flag, *([1] if flag in (FIRST, LAST) else []))
    return True


def _other_sizes_of_exchange(line: MegatronLine, random: Random) -> bool:
    if line.number(CP) == 1:
        return False
    line.put("--cp-comm-type", "a2a+p2p")
    line.put("--hierarchical-context-parallel-sizes", line.number(CP), 2)
    return True


def _list_of_exchanges(line: MegatronLine, random: Random) -> bool:
    if line.number(CP) == 1 or line.number(LAYERS) == 2:
        return False
    line.put("--cp-comm-type", "p2p", "p2p")
    return True


def _several_queues(line: MegatronLine, random: Random) -> bool:
    if line.queue != "1":
        return False
    line.put_queue(random.choice(("", "8")))
    return True


def _one_queue_with_fsdp(line: MegatronLine, random: Random) -> bool:
    if not line.has(FSDP):
        return False
    line.put_queue("1")
    return True


def _missing(line: MegatronLine, random: Random) -> bool:
    needed = (LAYERS, "--hidden-size", HEADS, "--max-position-embeddings", SEQ, MBS)
    line.drop(random.choice(needed))
    return True


def _unknown(line: MegatronLine, random: Random) -> bool:
    words = ("--tensor-model-parralel-size", "--micro-batch", "--fsdp", "--zero-stage", "--pp")
    line.put(random.choice(words), 2)
    return True


def _old(line: MegatronLine, random: Random) -> bool:
    flag, *values = random.choice(
        (
            ("--batch-size", 4),
            ("--warmup", 1),
            ("--model-parallel-size", 2),
            ("--checkpoint-activations",),
        )
    )
    line.put(str(flag), *values)
    return True


def _odd_word(line: MegatronLine, random: Random) -> bool:
    flag, word = random.choice(
        (
            ("--recompute-granularity", "partial"),
            ("--fp8-format", "e5m2"),
            ("--position-embedding-type", "alibi"),
            ("--ckpt-format", "zarr"),
            ("--moe-token-dispatcher-type", "all2all"),
            ("--optimizer", "adamw"),
            ("--recompute-method", "balanced"),
            ("--data-parallel-sharding-strategy", "zero3"),
            ("--fp8-recipe", "rowwise"),
            ("--cuda-graph-impl", "full"),
        )
    )
    line.put(flag, word)
    return True


def _heads_that_do_not_divide(line: MegatronLine, random: Random) -> bool:
    heads = line.number(HEADS)
    if line.number("--hidden-size") % (heads + line.number(TP)) == 0:
        return False
    line.drop("--kv-channels")
    line.put(HEADS, heads + line.number(TP))
    return True


def _instances(line: MegatronLine, random: Random) -> bool:
    ranks = dp(line) * line.number(CP)
    bad = [n for n in range(2, 9) if ranks % n]
    if not bad or line.has(FSDP):
        return False
    line.put("--num-distributed-optimizer-instances", random.choice(bad))
    return True


def _experts_of_instances(line: MegatronLine, random: Random) -> bool:
    ranks = dp(line) * line.number(CP)
    inner = line.number(EP) * (line.number(ETP) if is_moe(line) else line.number(TP))
    held = ranks * line.number(TP) // inner
    bad = [n for n in range(2, ranks + 1) if ranks % n == 0 and held % n]
    if not bad or line.has(FSDP) or not line.has(DISTRIBUTED):
        return False
    line.put("--num-distributed-optimizer-instances", random.choice(bad))
    return True


def _torch_fsdp(line: MegatronLine, random: Random) -> bool:
    line.put("--use-torch-fsdp2")
    return (
        line.number(PP) > 1
        or line.has(DISTRIBUTED)
        or not line.has("--no-gradient-accumulation-fusion")
    )


def _groups_of_experts(line: MegatronLine, random: Random) -> bool:
    if not is_moe(line):
        return False
    bad = [n for n in range(2, 12) if line.number(EXPERTS) % n]
    line.put("--moe-router-num-groups", random.choice(bad))
    line.put("--moe-router-group-topk", 1)
    return True


def _activation(line: MegatronLine, random: Random) -> bool:
    if line.has("--no-bias-gelu-fusion"):
        line.drop("--no-bias-gelu-fusion")
    elif line.has("--swiglu"):
        line.put(*random.choice((("--squared-relu",), ("--glu-linear-offset", 0.5))))
    elif not line.has("--disable-bias-linear"):
        line.put(random.choice(("--squared-relu", "--use-te-activation-func")))
    else:
        return False
    return True


def _no_rope(line: MegatronLine, random: Random) -> bool:
    layers = line.number(LAYERS)
    bad = [n for n in range(2, 8) if layers % n]
    line.put("--no-rope-freq", random.choice([*bad, f"[0]*{layers}+[1]"]))
    return True


def _expert_layers(line: MegatronLine, random: Random) -> bool:
    if not is_moe(line):
        return False
    n = line.number(LAYERS) + random.choice((-1, 1, 3))
    line.put("--moe-layer-freq", f"([0]*1+[1]*{n - 1})")
    return True


def _evaluation(line: MegatronLine, random: Random) -> bool:
    step = dp(line)
    size = line.number(MBS) + 1
    if line.number(GBS) % (size * step) == 0:
        return False
    line.put("--eval-micro-batch-size", size)
    return True


def _overlapped_experts(line: MegatronLine, random: Random) -> bool:
    bad = (
        line.number(EP) == 1
        or full(line)
        or (line.number(PP) > 1 and chunks(line) == 1)
        or not (line.has("--bf16") or line.has("--fp16"))
    )
    line.put("--overlap-moe-expert-parallel-comm")
    return is_moe(line) and bad


def _two_precisions(line: MegatronLine, random: Random) -> bool:
    if not line.has("--bf16") and not line.has("--fp16"):
        return False
    line.put("--fp16" if line.has("--bf16") else "--bf16")
    return True


BREAKS: tuple[tuple[str, str, Change], ...] = (
    ("MLM101", "devices that the degrees do not divide", _odd_world),
    ("MLM102", "one head more", add(HEADS, 1, parallel(TP))),
    ("MLM103", "KV heads that do not fit tp", _odd_groups),
    ("MLM105", "MLP one wider", add(FFN, 1, lambda x: x.number(TP) > 1 and not is_moe(x))),
    ("MLM106", "one token less in a sequence", add(SEQ, -1, parallel(CP))),
    ("MLM107", "all-to-alls over heads that do not divide", _odd_exchange),
    ("MLM110", "pipeline before data parallelism", _pipeline_before_dp),
    ("MLM112", "batch that does not divide", _batch_that_does_not_divide),
    ("MLM203", "rounds that leave bubbles", _rounds_that_leave_bubbles),
    (
        "MLM204",
        "chunks without a pipeline",
        given(lambda x: x.number(PP) == 1 and x.number(LAYERS) % 2 == 0, (VPP, 2)),
    ),
    (
        "MLM301",
        "experts' degree of a dense model",
        given(lambda x: not is_moe(x) and x.world % 2 == 0, (EP, 2)),
    ),
    (
        "MLM302",
        "no sequence parallelism",
        without(
            lambda x: is_moe(x) and x.number(TP) > 1, "--sequence-parallel", "--tp-comm-overlap"
        ),
    ),
    ("MLM303", "one expert more", add(EXPERTS, 1, parallel(EP))),
    ("MLM304", "experts one wider", add(EXPERT_FFN, 1, parallel(ETP))),
    ("MLM305", "experts' grid that does not fit", _grid_that_does_not_fit),
    (
        "MLM306",
        "biases",
        without(lambda x: is_moe(x) and x.number(ETP) > 1, "--disable-bias-linear"),
    ),
    ("MLM322", "groups that do not divide the experts", _groups_of_experts),
    ("MLM331", "expert layers of another model", _expert_layers),
    (
        "MLM308",
        "one token less in a sequence",
        add(SEQ, -1, lambda x: x.has("--sequence-parallel") and x.number(CP) == 1),
    ),
    ("MLM120", "unknown flag", _unknown),
    ("MLM121", "old flag", _old),
    ("MLM122", "missing flag", _missing),
    ("MLM123", "unknown word", _odd_word),
    ("MLM124", "width of a head left out", _heads_that_do_not_divide),
    (
        "MLM125",
        "one position less",
        add(
            "--max-position-embeddings",
            -1,
            lambda x: x.text("--max-position-embeddings") == x.text(SEQ),
        ),
    ),
    (
        "MLM126",
        "query groups beside latent attention",
        given(
            lambda x: x.has("--multi-latent-attention"), ("--group-query-attention",), (GROUPS, 8)
        ),
    ),
    ("MLM127", "sizes of a two-level exchange", _other_sizes_of_exchange),
    (
        "MLM128",
        "two-level exchange without sizes",
        given(parallel(CP), ("--cp-comm-type", "a2a+p2p")),
    ),
    ("MLM129", "two exchanges for all layers", _list_of_exchanges),
    (
        "MLM130",
        "hybrid context parallelism in a pipeline",
        given(parallel(PP), ("--hybrid-context-parallel",), ("--calculate-per-token-loss",)),
    ),
    ("MLM131", "several hardware queues", _several_queues),
    (
        "MLM134",
        "odd weight shards",
        given(parallel(TP), ("--tensor-parallel-num-weight-shards", 3)),
    ),
    (
        "MLM135",
        "multi-token prediction with learned positions",
        given(
            lambda x: x.text("--position-embedding-type") == "learned_absolute",
            ("--mtp-num-layers", 1),
        ),
    ),
    ("MLM136", "decay by samples", set_to("--lr-decay-samples", 100)),
    ("MLM137", "saving without an interval", set_to("--save", "/checkpoints")),
    ("MLM138", "least rate above the largest", set_to("--min-lr", 1.0)),
    ("MLM139", "two sources of data", set_to("--data-path", "/data/text_document")),
    ("MLM140", "odd batch of the evaluation", _evaluation),
    ("MLM141", "another activation", _activation),
    ("MLM142", "layers without rotary positions that do not divide", _no_rope),
    ("MLM210", "one layer more", add(LAYERS, 1, split_evenly)),
    ("MLM211", "interleaving asked for twice", _two_interleavings),
    ("MLM212", "chunks that do not divide", _odd_chunk),
    ("MLM213", "chunks and a named end", given(lambda x: x.has(CHUNK), (FIRST, 1))),
    ("MLM214", "two ranks without overlapped messages", _two_ranks_without_overlap),
    ("MLM215", "an end that does not add up", _odd_end),
    (
        "MLM216",
        "counted ends and a named one",
        given(lambda x: x.has(COUNT_FIRST) and not x.has(CHUNK), (FIRST, 1)),
    ),
    ("MLM217", "chunks that do not divide", _odd_vpp),
    ("MLM218", "layout and ends", _layout_and_ends),
    ("MLM219", "damaged layout", _damaged_layout),
    (
        "MLM220|MLM405",
        "offloaded activations",
        given(lambda x: x.number(PP) > 1 or full(x), ("--cpu-offloading-num-layers", 1)),
    ),
    (
        "MLM221",
        "deferred weight gradient",
        given(lambda x: x.number(PP) == 1, ("--defer-embedding-wgrad-compute",)),
    ),
    (
        "MLM320",
        "overlapped messages",
        given(lambda x: not x.has("--sequence-parallel"), ("--tp-comm-overlap",)),
    ),
    (
        "MLM321",
        "one expert a token",
        lambda x, r: (
            is_moe(x) and (x.put("--moe-router-topk", 1), x.drop("--moe-router-pre-softmax")) != ()
        ),
    ),
    ("MLM323", "bias of the experts", given(is_moe, ("--moe-router-enable-expert-bias",))),
    ("MLM324", "DeepEP beside all-to-alls", given(is_moe, ("--moe-enable-deepep",))),
    (
        "MLM325",
        "padding without a capacity",
        given(
            lambda x: is_moe(x) and not x.has("--moe-expert-capacity-factor"),
            ("--moe-pad-expert-input-to-capacity",),
        ),
    ),
    (
        "MLM326",
        "overlapped shared expert",
        given(
            lambda x: x.has("--moe-shared-expert-intermediate-size"),
            ("--moe-shared-expert-overlap",),
            ("--moe-token-dispatcher-type", "allgather"),
        ),
    ),
    ("MLM327", "overlapped experts", _overlapped_experts),
    ("MLM328", "delayed weight gradients", set_to("--delay-wgrad-compute")),
    ("MLM330", "width of experts", given(lambda x: not is_moe(x), (EXPERT_FFN, 1024))),
    (
        "MLM410",
        "overlapped gathers without a distributed optimizer",
        given(lambda x: not x.has(DISTRIBUTED), ("--overlap-param-gather",)),
    ),
    (
        "MLM410",
        "overlapped gathers alone",
        without(lambda x: x.has("--overlap-param-gather"), "--overlap-grad-reduce"),
    ),
    (
        "MLM411",
        "gathers in the optimizer step",
        given(lambda x: chunks(x) == 1, ("--overlap-param-gather-with-optimizer-step",)),
    ),
    ("MLM412", "PyTorch FSDP2", _torch_fsdp),
    (
        "MLM413",
        "checkpoints in another format",
        given(lambda x: x.has(FSDP), ("--ckpt-format", "torch_dist")),
    ),
    ("MLM413", "one hardware queue", _one_queue_with_fsdp),
    (
        "MLM415",
        "checkpoints of Megatron-FSDP",
        given(lambda x: not x.has(FSDP), ("--ckpt-format", "fsdp_dtensor")),
    ),
    (
        "MLM416",
        "checkpoints of PyTorch",
        given(lambda x: not x.has(FSDP), ("--ckpt-format", "torch_dcp")),
    ),
    (
        "MLM417",
        "moments in bf16",
        given(lambda x: not x.has("--use-precision-aware-optimizer"), ("--exp-avg-dtype", "bf16")),
    ),
    (
        "MLM418",
        "precision-aware optimizer",
        given(lambda x: not x.has(DISTRIBUTED), ("--use-precision-aware-optimizer",)),
    ),
    (
        "MLM402|MLM418",
        "offloaded optimizer without the distributed one",
        without(lambda x: x.has(OFFLOAD), DISTRIBUTED, "--overlap-param-gather"),
    ),
    ("MLM419", "offloaded optimizer", given(lambda x: not x.has(OFFLOAD), (OFFLOAD,))),
    (
        "MLM421",
        "number and size of buckets",
        lambda x, r: (x.put("--ddp-num-buckets", 4), x.put("--ddp-bucket-size", 1000)) != (),
    ),
    ("MLM422", "instances that do not divide", _instances),
    ("MLM111|MLM422", "instances that cut the experts' ranks", _experts_of_instances),
    ("MLM425", "emerging optimizer", given(lambda x: x.has(FSDP), ("--optimizer", "muon"))),
    ("MLM510", "full recompute without a method", without(full, "--recompute-method")),
    ("MLM510", "full recompute without layers", without(full, "--recompute-num-layers")),
    (
        "MLM511",
        "a method beside selective recompute",
        given(
            lambda x: not full(x),
            ("--recompute-granularity", "selective"),
            ("--recompute-method", "uniform"),
        ),
    ),
    (
        "MLM511",
        "layers beside selective recompute",
        given(
            lambda x: not full(x),
            ("--recompute-granularity", "selective"),
            ("--recompute-num-layers", 1),
        ),
    ),
    (
        "MLM512",
        "unknown module",
        given(
            lambda x: not full(x),
            ("--recompute-granularity", "selective"),
            ("--recompute-modules", "attention"),
        ),
    ),
    (
        "MLM512",
        "module of latent attention",
        given(
            lambda x: not full(x) and not x.has("--multi-latent-attention"),
            ("--recompute-granularity", "selective"),
            ("--recompute-modules", "mla_up_proj"),
        ),
    ),
    (
        "MLM513",
        "distributed saved activations",
        given(
            lambda x: x.number(TP) == 1 or x.has("--sequence-parallel") or not full(x),
            ("--distribute-saved-activations",),
        ),
    ),
    ("MLM514", "fp4 beside fp8", given(fp8, ("--fp4-format", "e2m1"))),
    (
        "MLM515",
        "parameters gathered in fp8",
        given(lambda x: not fp8(x) or not x.has(DISTRIBUTED), ("--fp8-param-gather",)),
    ),
    (
        "MLM516",
        "ends in bf16",
        given(lambda x: x.text("--fp8-recipe") == "delayed", ("--first-last-layers-bf16",)),
    ),
    ("MLM517", "two precisions", _two_precisions),
    ("MLM518", "fused cross-entropy of another kind", set_to("--cross-entropy-fusion-impl", "te")),
    ("MLM519", "CUDA graphs", given(full, ("--cuda-graph-impl", "local"))),
    (
        "MLM520",
        "gradients in bf16",
        given(
            lambda x: x.has("--accumulate-allreduce-grads-in-fp32"), ("--main-grads-dtype", "bf16")
        ),
    ),
    (
        "MLM521",
        "cross-entropy in fp16",
        given(lambda x: not x.has("--fp16"), ("--fp16-lm-cross-entropy",)),
    ),
    (
        "MLM522",
        "fp32 residuals",
        given(
            lambda x: not x.has("--bf16") and not x.has("--fp16"), ("--fp32-residual-connection",)
        ),
    ),
    (
        "MLM523",
        "gradient buffer reused",
        given(lambda x: not x.has(FSDP), ("--reuse-grad-buf-for-mxfp8-param-ag",)),
    ),
    (
        "MLM524",
        "a projection on the host without the attention before it",
        given(
            lambda x: not x.has("--offload-modules"),
            ("--fine-grained-activation-offloading",),
            ("--offload-modules", "attn_proj"),
        ),
    ),
)
"""Rule, what is changed, and the change."""

NUMBERS = (
    TP,
    PP,
    CP,
    EP,
    ETP,
    MBS,
    GBS,
    SEQ,
    LAYERS,
    HEADS,
    GROUPS,
    EXPERTS,
    EXPERT_FFN,
    FFN,
    CHUNK,
    "--max-position-embeddings",
    "--recompute-num-layers",
    "--moe-router-topk",
    "--vocab-size",
    "--make-vocab-size-divisible-by",
    "--kv-channels",
)


def nudge(line: MegatronLine, random: Random) -> str:
    """Change one number at random, a degree or a size; return what was done."""
    there = [flag for flag in NUMBERS if line.text(flag).isdigit()]
    flag = random.choice([*there, "nnodes"])
    old = line.launcher("nnodes") if flag == "nnodes" else line.number(flag)
    choices = {old * 2, old * 3, old + 1, max(1, old - 1), max(1, old // 2), old + 2} - {old}
    new = random.choice(sorted(choices))
    if flag == "nnodes":
        line.put_launcher(flag, new)
    else:
        line.put(flag, new)
    return f"{flag.removeprefix('--')} {old} to {new}"
