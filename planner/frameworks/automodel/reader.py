"""Recipes of NeMo AutoModel to a run: mesh, batch, stages, recomputation, precision, adapters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.axes import off_values
from planner.errors import InputProblem, SpecError
from planner.frameworks.automodel.jobs import adapters, optimizer_of, precision_of, sequence_length
from planner.frameworks.automodel.options import as_settings, odd_values, unknown_keys
from planner.frameworks.automodel.settings import own_split
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, with_set
from planner.option_names import option
from planner.specs.yaml.document import parse_yaml
from searches.frameworks.automodel.keys import (
    RECOMPUTE,
    SCHEDULE_WORDS,
    SINGLE,
    schedule_word,
    strategy_of,
)

RECIPES = (
    "TrainFinetuneRecipeForNextTokenPrediction",
    "BenchmarkingRecipeForNextTokenPrediction",
)
"""Classes of recipes that are read: training of text, and its timing."""
MODELS = ("NeMoAutoModelForCausalLM.from_pretrained", "NeMoAutoModelForCausalLM.from_config")
SIZES_OF_ITS_OWN = "build_gpt2_model"
DISPATCHERS = {
    "torch": "allgather",
    "deepep": "deepep",
    "uccl_ep": "deepep",
    "hybridep": "hybridep",
    "mok": "deepep",
}
"""Dispatchers of plans by `model.backend.dispatcher`."""
NEAR = {
    "uccl_ep": "priced as DeepEP",
    "mok": "experts fused with their exchange: priced as DeepEP",
}
EARLIER = ("autopipeline", "parallelizer", "distributed_config")
"""Sections of earlier releases, which 0.7 passes over."""


def recipe_tree(text: str, source: str) -> dict[str, Any]:
    """Return a recipe as nested sections; `SpecError` for what is no mapping, or not modelled."""
    data = parse_yaml(text, source).data
    if not isinstance(data, dict):
        raise SpecError(InputProblem("is no mapping of keys", "expected a YAML file", source))
    named = data.get("recipe")
    target = named.get("_target_") if isinstance(named, dict) else named
    name = str(target or "").rpartition(".")[2]
    if name not in RECIPES:
        fix = f"expected {' or '.join(RECIPES)}"
        raise SpecError(InputProblem(f"recipe {name or 'unnamed'}: not modelled", fix, source))
    model = data.get("model")
    built = str(model.get("_target_", "") if isinstance(model, dict) else "")
    known = (*(f"nemo_automodel.{x}" for x in MODELS), SIZES_OF_ITS_OWN)
    if built and not built.endswith(known):
        fix = "expected NeMoAutoModelForCausalLM, which builds a decoder of text"
        raise SpecError(InputProblem(f"model {built}: not modelled", fix, source))
    return data


def read_recipe(
    text: str,
    source: str,
    query: RunQuery,
    changes: tuple[tuple[str, object], ...] = (),
    kind: str = "NeMo AutoModel recipe",
) -> ExistingRun:
    """Return the run of a recipe; `changes` are what its command line sets of it."""
    tree = recipe_tree(text, source)
    tree = _changed(tree, (*changes, *query.sets))
    settings = as_settings(tree)
    refused = tuple(odd_values(tree))
    run = ExistingRun(
        framework="automodel",
        source=source,
        format=kind,
        settings=settings,
        layout={},
        unknown=tuple(unknown_keys(tree)),
        refused=refused,
        doubts=tuple(
            Doubt(key, "a section of earlier releases", "passed over")
            for key in EARLIER
            if key in tree
        ),
        written={key: f"{key}: {value}" for key, value in settings.items()},
    )
    if refused:
        return run
    read = Reader(settings, source)
    notes: list[str] = []
    stated = _stated_devices(read)
    n_devices = (query.n_devices if query.all_devices else None) or stated or query.n_devices
    layout = _degrees(read, n_devices, notes)
    layout |= _batch(read, layout)
    layers = query.model.shape.layers if query.model else 0
    layout |= _stages(read, layers, notes)
    layout |= _recompute(read, layers, notes)
    job: dict[str, Any] = {
        "seq_len": sequence_length(read),
        "global_batch": layout.get("gbs"),
        "precision": precision_of(read, notes),
        "optimizer": optimizer_of(read, notes),
        **adapters(read, notes),
    }
    compiled = read.switch("compile.enabled") or read.switch("distributed.enable_compile")
    notes += _notes(read)
    if query.model is None:
        name = settings.get("model.pretrained_model_name_or_path") or settings.get(
            "model.config.pretrained_model_name_or_path"
        )
        notes.append(
            f"model {name or 'of the recipe'}: its sizes are not in the file; name its model file"
            " with " + option("model", "llama3-8b") + ", a YAML file or a config.json"
        )
    return replace(
        run,
        layout=layout,
        n_devices=stated,
        model=query.imported(source),
        job={name: value for name, value in job.items() if value is not None},
        stack={"compiled": True} if compiled else {},
        notes=tuple(notes),
    )


def _changed(tree: Mapping[str, Any], changes: tuple[tuple[str, object], ...]) -> dict[str, Any]:
    """Return nested sections with dotted keys set; None takes a key away."""
    made = {k: dict(v) if isinstance(v, dict) else v for k, v in tree.items()}
    for path, value in changes:
        *above, key = path.lstrip("-").split(".")
        node = made
        for part in above:
            inner = node.get(part)
            node[part] = dict(inner) if isinstance(inner, dict) else {}
            node = node[part]
        if value is None:
            node.pop(key, None)
        else:
            node[key] = with_set({}, [(key, value)])[key]
    return made


def _size(read: Reader, name: str) -> int:
    """Return a degree; whatever is not above 0 counts as 1, as there."""
    return max(1, read.number(f"distributed.{name}_size", 1))


def _stated_devices(read: Reader) -> int | None:
    if not read.given("distributed.dp_size") or read.number("distributed.dp_size") < 1:
        return None
    product = 1
    for name in ("dp", "tp", "cp", "pp"):
        product *= _size(read, name)
    return product


def _degrees(read: Reader, n_devices: int | None, notes: list[str]) -> dict[str, Any]:
    tp, cp, pp, ep = (_size(read, name) for name in ("tp", "cp", "pp", "ep"))
    sp = read.switch("distributed.sequence_parallel")
    attention = read.text("model.backend.attn")
    entries: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": ep,
        "sp": sp and tp > 1,
        "cp_comm": ("p2p" if attention == "te" else "all-gather") if cp > 1 else "",
        "tp_overlap": sp and tp > 1 and read.switch("distributed.enable_async_tensor_parallel"),
        **off_values("etp", "rank_order", "optimizer_offload", "activation_offload_layers"),
        **off_values("dp_overlap"),
    }
    if ep > 1:
        named = read.text("model.backend.dispatcher", "deepep")
        if (dispatcher := DISPATCHERS.get(named, "deepep")) != "deepep":  # its stack's own
            entries["dispatcher"] = dispatcher
        if named in NEAR:
            notes.append(f"dispatcher {named}: {NEAR[named]}")
    if not n_devices:
        return entries
    entries["n_devices"] = n_devices
    if n_devices % (tp * cp * pp):
        return entries
    dp = n_devices // (tp * cp * pp)
    entries["dp"] = dp
    entries["zero"] = _zero(read, ep, pp) if dp * cp > 1 else 0
    replicas = _size(read, "dp_replicate")
    if entries["zero"] and dp % replicas == 0:
        entries["dp_shard"] = dp // replicas * cp
    return entries


def _zero(read: Reader, ep: int, pp: int) -> int:
    """Return the ZeRO stage that a strategy and its resharding come to."""
    strategy = strategy_of(read.settings)
    if strategy == "ddp":
        return 0
    if strategy == "megatron_fsdp":
        return min(3, max(0, read.number("distributed.zero_dp_strategy", 3)))
    stated = read.settings.get("distributed.reshard_after_forward")
    if stated is None and ep > 1:
        stated = read.switch("distributed.moe.reshard_after_forward")
    if pp > 1:
        if stated is True:
            return 3
        return 1 if read.switch("distributed.defer_fsdp_grad_sync", True) else 2
    return 2 if stated is False else 3


def _batch(read: Reader, layout: Mapping[str, Any]) -> dict[str, Any]:
    local = read.number("step_scheduler.local_batch_size", 1)
    total = read.number("step_scheduler.global_batch_size", 32)
    mbs = read.number("distributed.pipeline.pp_microbatch_size", 1) if layout["pp"] > 1 else local
    entries: dict[str, Any] = {"gbs": total, "mbs": mbs}
    dp = layout.get("dp")
    if dp and mbs > 0 and total % (mbs * dp) == 0:
        entries["n_micro"] = total // (mbs * dp)
    return entries


def _stages(read: Reader, layers: int, notes: list[str]) -> dict[str, Any]:
    """Return schedule, virtual stages and their layers as far as a recipe says them."""
    pp = _size(read, "pp")
    if pp < 2:
        own = {"counts": (layers,)} if layers else {}
        return {"schedule": "none", "vpp": 1, "split": "even", **own}
    word = schedule_word(read.settings)
    schedule = SCHEDULE_WORDS.get(word, "1f1b")
    if read.given("distributed.pipeline.pp_schedule_csv"):
        notes.append("pp_schedule_csv: a schedule of its own, priced as one forward, one backward")
        schedule = "1f1b"
    if word in ("loopedbfs", "interleavedzerobubble"):
        notes.append(f"pp_schedule {word}: priced as interleaved")
    counts = _counts(read, layers, pp, word)
    vpp = len(counts) // pp if counts else (1 if word in SINGLE else 2)
    entries: dict[str, Any] = {"schedule": schedule, "vpp": max(1, vpp)}
    if schedule == "interleaved" and vpp < 2:
        entries["schedule"] = "1f1b"
    return entries | ({"counts": counts} if counts else {})


def _counts(read: Reader, layers: int, pp: int, word: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage; () where they are not known."""
    parts = read.settings.get("distributed.pipeline.module_fqns_per_model_part")
    if isinstance(parts, list):
        return tuple(
            sum(".layers." in f".{name}" for name in part) if isinstance(part, list) else 0
            for part in parts
        )
    if not layers:
        return ()
    per_stage = read.number("distributed.pipeline.layers_per_stage")
    stages = pp * (1 if word in SINGLE else 2)
    if per_stage > 0:
        stages = -(-layers // per_stage)
        rounding = read.text("distributed.pipeline.round_virtual_stages_to_pp_multiple")
        rest = stages % pp
        stages += (pp - rest if rounding == "up" else -rest) if rest and rounding else 0
    if stages % pp or not 0 < stages <= layers:
        return ()
    return own_split(layers, stages)


def _recompute(read: Reader, layers: int, notes: list[str]) -> dict[str, Any]:
    named = read.text("distributed.activation_checkpointing", "false").lower().replace("-", "_")
    kind = RECOMPUTE.get(named, "none")
    if kind == "selective":
        notes.append(
            "activation_checkpointing selective: products and attention are kept, operators"
            " between them computed again; priced without recomputation, memory is overestimated"
        )
        kind = "none"
    if kind == "full" and read.number("distributed.ep_size", 1) < 2:
        notes.append(
            "activation_checkpointing: AutoModel's own classes of dense layers recompute sublayers"
            " one by one; priced as whole layers, so memory is underestimated (force_hf: true)"
        ) if not read.switch("model.force_hf") else None
    return {"recompute": kind, "recompute_layers": layers if kind == "full" else 0}


def _notes(read: Reader) -> list[str]:
    """Return what of a recipe is priced otherwise."""
    notes = []
    if read.given("distributed.offload_policy") or any(
        key.startswith("distributed.offload_policy.") for key in read.settings
    ):
        notes.append("offload_policy: not modelled; memory is overestimated")
    if strategy_of(read.settings) == "megatron_fsdp":
        notes.append("strategy megatron_fsdp: priced as FSDP2")
    if read.number("packed_sequence.packed_sequence_size") > 0:
        notes.append("packed_sequence: priced as whole sequences of a pack")
    if read.switch("model.backend.fake_balanced_gate"):
        notes.append("fake_balanced_gate: routing is balanced; state it in the model file")
    return notes
