"""Megatron-LM's settings to a model file: architecture and job, each field with its flag."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.details import causal_window, stated_details
from planner.frameworks.megatron.flags import Parsed, default_of, parse_flags, pattern_value
from planner.frameworks.megatron.forks import understood
from planner.frameworks.megatron.layer_kinds import (
    DELTA_NET,
    KIND_DESTS,
    PATTERNS,
    SPARSE,
    StatedKinds,
    gpt_kinds,
    hybrid_kinds,
    kind_runs,
    pattern_of,
)
from planner.frameworks.megatron.yaml_arguments import looks_like_model_args, read_model_args
from planner.frameworks.optimizers import (
    OPTIMIZER_DESTS,
    optimizer_fields,
    optimizer_notes,
)
from planner.frameworks.runs.launch_script import read_launch
from planner.option_names import joined, option
from planner.specs.importers.imported import Imported, Origin
from planner.specs.schema import MAX_LAYERS

NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
"""Settings without which there is no model; the parser asks for them too."""
TOKENIZER_VOCABS = (
    (r"llama-?3|128k|llama4", 128256, "Llama 3's tokenizer"),
    (r"llama-?2|mixtral|mistral|llama2tokenizer", 32000, "Llama 2's and Mixtral's tokenizer"),
    (r"deepseek", 129280, "DeepSeek-V3's vocabulary"),
    (r"qwen", 151936, "Qwen's vocabulary"),
    (r"256k", 256000, "a vocabulary of 256k"),
    (r"gpt2bpe|gpt2", 50257, "GPT-2's vocabulary"),
    (r"bert", 30522, "BERT's vocabulary"),
)
"""Vocabulary by words in the tokenizer's type and model, where the flags do not state it."""
OTHER_VOCABS = {"HuggingFaceTokenizer": 128256, "TikTokenizer": 131072}
SENTENCE_PIECE_VOCAB = 32000
NOT_MODELLED = {
    "heterogeneous_layers_config_path": "layers of several widths",
}
"""Settings of models that the cost model does not know."""
OTHER_SCRIPTS = {
    "bert": "BERT is an encoder",
    "t5": "T5 has an encoder and a decoder",
    "ict": "ICT trains two encoders",
    "retro": "RETRO retrieves",
    "vlm": "multimodal models have a vision encoder",
    "vision": "vision models",
    "mimo": "multimodal models have several encoders",
    "multimodal": "multimodal models have a vision encoder",
}
"""Training scripts of models that the cost model does not know, by a word in their name."""
NUMERIC_DESTS = (
    "fp8_param_gather",
    "fp4",
    "fp4_recipe",
    "fp4_param_gather",
    "fp8_output_proj",
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
    "grad_reduce_in_bf16",
    "main_grads_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "use_precision_aware_optimizer",
    "reuse_grad_buf_for_mxfp8_param_ag",
)
"""Settings that say the numbers of a job beside its precision."""
_FP8 = ("delayed", "tensorwise", "blockwise", "mxfp8")


class MegatronSettings:
    """Settings with the parser's defaults, and the flag that each field was read from."""

    def __init__(
        self, parsed: Parsed, source: str, release: str = "", whole_layers: int = 0
    ) -> None:
        self.parsed = parsed
        self.source = source
        self.release = release
        """The release whose defaults hold; empty: the newest that is known."""
        self.whole_layers = whole_layers
        """Layers of the model that a hybrid pattern was written for; 0 where that is not known."""

    def get(self, dest: str) -> Any:
        """Return a setting, the parser's default where it is not given."""
        if dest in self.parsed.settings:
            return self.parsed.settings[dest]
        return default_of(dest, self.release)

    def given(self, dest: str) -> bool:
        """Tell whether a flag sets it."""
        return dest in self.parsed.settings

    def number(self, dest: str) -> int:
        """Return a whole number; 0 where it is not set."""
        value = self.get(dest)
        return int(value) if isinstance(value, (int, float)) else 0

    def flag(self, dest: str) -> str:
        """Return the flag as written, or that it is the default."""
        if dest in self.parsed.written:
            return self.parsed.written[dest]
        return f"Megatron-LM's default of --{dest.replace('_', '-')}"


def read_megatron_model(
    text: str, source: str = "", overrides: Mapping[str, object] | None = None
) -> Imported:
    """Return the model file of a launch script, a list of flags or a YAML file with MODEL_ARGS.

    Raises `SpecError` where a size is missing, or depends on a variable that is not set;
    `overrides` are not looked at: every field that the flags leave open has a default.
    """
    if looks_like_model_args(text):
        flags, _ = read_model_args(text, source)
        return megatron_model(MegatronSettings(parse_flags(flags), source))
    launch = read_launch(text, source)
    settings = MegatronSettings(understood(launch.argv).parsed, source)
    return megatron_model(settings, script=launch.script, n_devices=launch.n_devices or 0)


def megatron_model(
    settings: MegatronSettings, *, script: str = "", name: str = "", n_devices: int = 0
) -> Imported:
    """Return the model file that the settings describe.

    `n_devices` gives the batch where only the micro-batch is stated (one micro-batch per rank).
    """
    _refuse_unmodelled(settings, script)
    if missing := missing_flags(settings):
        ask_for_open_words(settings, missing)
        named = (flag.removeprefix("--").replace("-", "_") for flag in missing)
        fix = "add them, or " + joined(" ", [option("set", f"{dest}=...") for dest in named])
        raise SpecError(InputProblem(f"no {', '.join(missing)}", fix, settings.source))
    ask_for_open_values(settings)
    for dest in NEEDED:
        if size_of(settings, dest) < 1:
            message = f"{settings.flag(dest)}: expected a whole number from 1 on"
            raise SpecError(InputProblem(message, "", settings.source))
    builder = _Builder(settings)
    builder.model(name)
    builder.training(n_devices)
    kind = "Megatron-LM arguments"
    return Imported(
        "model",
        builder.document,
        tuple(builder.origins),
        settings.source,
        kind,
        tuple(builder.notes),
    )


def stated_job(
    settings: MegatronSettings, filled: Mapping[str, Any], n_devices: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of `training:` that the flags decide beside a model file.

    Also what is assumed: `filled` is the `training:` of that file, which stands where the flags
    say nothing. Flags that state the micro-batch alone decide the batch, one on each rank.
    """
    s = settings
    job: dict[str, Any] = {}
    assumed: list[str] = []
    if s.get("seq_length") or _alias(s, "seq_length"):
        job["seq_len"] = size_of(s, "seq_length")
    else:
        assumed.append(f"seq_len = {filled['seq_len']}: the model file's; no --seq-length")
    if s.get("global_batch_size"):
        job["global_batch"] = s.number("global_batch_size")
    elif s.get("micro_batch_size") and n_devices:
        job["global_batch"], text = _default_batch(s, n_devices)
        assumed.append(f"gbs = {job['global_batch']}: {text}")
    else:
        assumed.append(f"gbs = {filled['global_batch']}: the model file's; no --global-batch-size")
    if any(s.get(dest) for dest in ("bf16", "fp16", "fp8", "fp4")):
        job["precision"], _ = precision_of(s)
        job |= other_numerics(s)
    else:
        text = "the model file's; neither --bf16 nor --fp16"
        assumed.append(f"precision = {filled['precision']}: {text}")
    if s.given("optimizer"):
        # A model file's own Muon says what the flags leave out.
        job |= {"muon": {}} if "muon" in filled else {}
        job |= optimizer_fields(s)
    step = job.get("seq_len", filled["seq_len"])
    if s.get("train_samples"):
        job["tokens"] = float(s.number("train_samples") * step)
    elif s.get("train_iters"):
        step *= job.get("global_batch", filled["global_batch"])
        job["tokens"] = float(s.number("train_iters") * step)
    return job, tuple(assumed)


def stated_kinds(settings: MegatronSettings) -> StatedKinds | None:
    """Return the kinds of layers that the settings say; None for dense and expert layers alone."""
    get = settings.get
    if pattern := pattern_of(get):
        return hybrid_kinds(get, pattern, settings.whole_layers)
    layers = size_of(settings, "num_layers")
    if layers > MAX_LAYERS:  # the schema refuses it, with the flag
        return None
    experts = (0,) * layers
    if get("num_experts"):
        experts = layer_pattern(get("moe_layer_freq"), layers)
        experts = experts if len(experts) == layers else (1,) * layers
    return gpt_kinds(get, experts, layers)


def missing_flags(settings: MegatronSettings) -> list[str]:
    """Return the flags without which there is no model."""
    missing = [d for d in NEEDED if settings.get(d) is None and not _alias(settings, d)]
    return [f"--{dest.replace('_', '-')}" for dest in missing]


def ask_for_open_words(settings: MegatronSettings, missing: Sequence[str]) -> None:
    """Raise `SpecError` where missing flags may stand in words that the script does not say."""
    names = settings.parsed.open_words
    if not names:
        return
    plain = [name for name in names if re.fullmatch(r"\w+", name)]
    shown_names = ", ".join(names)
    message = f"no {', '.join(missing)}; they may stand in {shown_names}, which is not known here"
    fix = (
        joined(" ", [option("env", f"{name}='...'") for name in plain])
        or "write its flags into the script"
    )
    raise SpecError(InputProblem(message, fix, settings.source))


def ask_for_open_values(settings: MegatronSettings, dests: Sequence[str] = ()) -> None:
    """Raise `SpecError` naming the variables that sizes and degrees depend on."""
    wanted = set(dests) or MODEL_DESTS
    hit = {d: n for d, n in settings.parsed.open_values.items() if d in wanted}
    if not hit:
        return
    names = list(dict.fromkeys(name for values in hit.values() for name in values))
    first = next(iter(hit))
    more = f" (and {len(hit) - 1} more flags)" if len(hit) > 1 else ""
    message = f"{settings.flag(first)}{more} depends on {', '.join(names)}, which nothing sets"
    plain = [name for name in names if re.fullmatch(r"\w+", name)]
    variables = joined(" ", [option("env", f"{name}=...") for name in plain])
    fix: str = variables or option("set", f"{first}=...")
    if any(name.isdecimal() for name in names):
        fix = with_arguments(settings.source)
    raise SpecError(InputProblem(message, fix, settings.source))


def with_arguments(source: str) -> str:
    """Return how to check a script together with the arguments that it is started with."""
    return f"give its arguments: planner check CLUSTER -- bash {source} ARGUMENTS"


MODEL_DESTS = frozenset(
    (
        "num_layers",
        "encoder_num_layers",
        "hidden_size",
        "num_attention_heads",
        "seq_length",
        "encoder_seq_length",
        "ffn_hidden_size",
        "kv_channels",
        "num_query_groups",
        "vocab_size",
        "padded_vocab_size",
        "make_vocab_size_divisible_by",
        "max_position_embeddings",
        "num_experts",
        "moe_ffn_hidden_size",
        "moe_router_topk",
        "moe_shared_expert_intermediate_size",
        "moe_layer_freq",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_head_dim",
        "qk_pos_emb_head_dim",
        "v_head_dim",
        "mtp_num_layers",
        "micro_batch_size",
        "global_batch_size",
        "moe_expert_capacity_factor",
        "moe_router_force_load_balancing",
        "fp8",
        "fp8_recipe",
        *NUMERIC_DESTS,
        *OPTIMIZER_DESTS,
        "normalization",
        "hidden_dropout",
        "attention_dropout",
        "position_embedding_type",
        "attention_backend",
        "attention_output_gate",
        *KIND_DESTS,
    )
)
"""Settings that the model file depends on."""
HYBRID_SCRIPT = r"(^|[_\-])(mamba|hybrid)([_\-.]|$)"
"""Name of a training script of models with a pattern."""


def _alias(settings: MegatronSettings, dest: str) -> Any:
    """Return a size given under its other name: --encoder-num-layers, --encoder-seq-length.

    The layers also by a hybrid pattern.
    """
    if dest == "num_layers" and (pattern := pattern_of(settings.get)):
        return pattern
    other = {"num_layers": "encoder_num_layers", "seq_length": "encoder_seq_length"}.get(dest)
    return settings.get(other) if other else None


def size_of(settings: MegatronSettings, dest: str) -> int:
    """Return --num-layers or --seq-length, also under its older name; 0 without both.

    A hybrid pattern decides the layers in place of --num-layers.
    """
    if dest == "num_layers" and (pattern := pattern_of(settings.get)):
        return len(pattern.partition("/")[0].replace("|", ""))
    return settings.number(dest) or int(_alias(settings, dest) or 0)


def _refuse_unmodelled(settings: MegatronSettings, script: str) -> None:
    stem = script.rsplit("/", 1)[-1].lower()
    for word, why in OTHER_SCRIPTS.items():
        if re.search(rf"(^|[_\-]){word}([_\-.]|$)", stem):
            fix = "planner prices decoder-only GPT models: pretrain_gpt.py"
            raise SpecError(InputProblem(f"{script}: not modelled, {why}", fix, settings.source))
    fix = "planner prices decoder-only models of the kinds of layers in docs/files.md"
    for dest, what in NOT_MODELLED.items():
        if settings.get(dest):
            message = f"{settings.flag(dest)}: {what} are not modelled in this version"
            raise SpecError(InputProblem(message, fix, settings.source))
    variant = settings.get("experimental_attention_variant")
    if variant and variant not in (DELTA_NET, SPARSE):
        message = f"{settings.flag('experimental_attention_variant')}: not modelled"
        raise SpecError(InputProblem(message, fix, settings.source))
    pattern = pattern_of(settings.get)
    if pattern and hybrid_kinds(settings.get, pattern) is None:
        dest = next(dest for dest in PATTERNS if settings.get(dest))
        message = f"{settings.flag(dest)}: a symbol of a layer that is not modelled"
        raise SpecError(InputProblem(message, fix, settings.source))
    if not pattern and (settings.get("is_hybrid_model") or re.search(HYBRID_SCRIPT, stem)):
        message = f"{script or settings.flag('is_hybrid_model')}: no --hybrid-layer-pattern"
        fix = "add --hybrid-layer-pattern, which says the kind of each layer"
        raise SpecError(InputProblem(message, fix, settings.source))


class _Builder:
    """Fills the document; one per model."""

    def __init__(self, settings: MegatronSettings) -> None:
        self.settings = settings
        self.document: dict[str, Any] = {"model": {}, "training": {}}
        self.origins: list[Origin] = []
        self.notes: list[str] = []

    def put(self, path: str, value: Any, text: str, *, assumed: bool = False) -> None:
        """Set one field of the document, a dotted path, with its origin."""
        keys = path.split(".")
        target = self.document
        for key in keys[:-1]:
            target = target.setdefault(key, {})
        target[keys[-1]] = value
        self.origins.append(Origin(tuple(keys), text, assumed))

    def copy(self, path: str, dest: str) -> None:
        """Set a field to a setting."""
        self.put(path, self.settings.get(dest), self.settings.flag(dest))

    def model(self, name: str) -> None:
        """Fill the `model:` section."""
        s = self.settings
        layers = size_of(s, "num_layers")
        latent = bool(s.get("multi_latent_attention"))
        if name:
            self.put("model.name", name, "the comment at the top of the file")
        self.put("model.layers", layers, s.flag("num_layers"))
        self.copy("model.hidden", "hidden_size")
        self.copy("model.heads", "num_attention_heads")
        if latent:
            for key, dest in _MLA.items():
                self.put(f"model.mla.{key}", s.number(dest), s.flag(dest))
        else:
            self._heads()
        self._ffn()
        self._vocab()
        self.put(
            "model.tied",
            not s.get("untie_embeddings_and_output_weights"),
            s.flag("untie_embeddings_and_output_weights"),
        )
        rms = s.get("normalization") == "RMSNorm"
        self.put("model.norm", "rmsnorm" if rms else "layernorm", s.flag("normalization"))
        bias = bool(s.get("add_bias_linear"))
        if bias and latent:
            self.notes.append("biases of linear layers beside latent attention are not modelled")
        text = _off(s, "add_bias_linear", "--disable-bias-linear")
        self.put("model.bias", bias and not latent, text)
        self._positions()
        self._attention()
        if s.get("attention_output_gate") and not latent:
            self.put("model.attention_gate", True, s.flag("attention_output_gate"))
        dropout = (s.get("hidden_dropout") or 0) > 0 or (s.get("attention_dropout") or 0) > 0
        self.put(
            "model.dropout", dropout, f"{s.flag('hidden_dropout')}, {s.flag('attention_dropout')}"
        )
        kinds = stated_kinds(s)
        if s.get("num_experts"):
            self._experts(layers if kinds is None else 0)
        if kinds is not None:
            self._kinds(kinds)
        elif s.get("mtp_num_layers"):
            self.copy("model.mtp_layers", "mtp_num_layers")
        for field, value, dest in stated_details(s.parsed.settings):
            self.put(f"model.details.{field}", value, s.flag(dest))

    def _heads(self) -> None:
        s = self.settings
        heads = s.number("num_attention_heads")
        grouped = s.get("group_query_attention")
        kv = s.number("num_query_groups") if grouped else heads
        self.put(
            "model.kv_heads",
            kv or heads,
            s.flag("num_query_groups")
            if grouped
            else "no --group-query-attention: as many as heads",
        )
        if s.get("kv_channels"):
            self.copy("model.head_dim", "kv_channels")
        else:
            self.put("model.head_dim", s.number("hidden_size") // heads, "hidden / heads")

    def _ffn(self) -> None:
        s = self.settings
        gated = bool(s.get("swiglu") or s.get("quick_geglu"))
        hidden = s.number("hidden_size")
        if s.get("ffn_hidden_size"):
            self.copy("model.ffn", "ffn_hidden_size")
        elif s.get("swiglu"):
            ffn = int(8 * hidden / 3 / 64) * 64
            self.put("model.ffn", ffn, "8/3 hidden in whole 64s, Megatron-LM's default")
        else:
            self.put("model.ffn", 4 * hidden, "4 hidden, Megatron-LM's default")
        which = "quick_geglu" if s.get("quick_geglu") else "swiglu"
        self.put("model.gated", gated, s.flag(which))

    def _vocab(self) -> None:
        s = self.settings
        if s.get("vocab_size"):
            self.copy("model.vocab", "vocab_size")
        elif s.get("padded_vocab_size"):
            self.copy("model.vocab", "padded_vocab_size")
        else:
            vocab, why = assumed_vocab(s)
            self.put("model.vocab", vocab, f"no --vocab-size: {why}", assumed=True)
        if s.get("padded_vocab_size"):
            self.copy("model.padded_vocab", "padded_vocab_size")
        self.copy("model.vocab_multiple", "make_vocab_size_divisible_by")

    def _positions(self) -> None:
        s = self.settings
        kind = s.get("position_embedding_type")
        rotary = s.get("multi_latent_attention") or s.get("mtp_num_layers")
        if kind == "learned_absolute" and s.get("add_position_embedding") and not rotary:
            self.put("model.positions", "learned", s.flag("position_embedding_type"))
            if s.number("max_position_embeddings") >= size_of(s, "seq_length"):
                self.copy("model.max_positions", "max_position_embeddings")
            return
        self.put("model.positions", "rope", s.flag("position_embedding_type"))
        if kind not in ("rope", "yarn", "mrope") and not rotary:
            self.notes.append(f"positions {kind}: priced as without parameters")

    def _attention(self) -> None:
        s = self.settings
        backend, flash = s.get("attention_backend"), True
        text = s.flag("attention_backend")
        if backend in ("unfused", "local"):
            flash = False
        elif s.get("transformer_impl") == "local" and not s.get("use_flash_attn"):
            flash, text = False, f"{s.flag('transformer_impl')} without --use-flash-attn"
        if not flash and s.get("multi_latent_attention"):
            flash = True
            self.notes.append("latent attention without a fused kernel is not modelled")
        self.put("model.flash_attention", flash, text)
        if s.get("window_size") and not causal_window(s.get("window_size")):
            flag = s.flag("window_size")
            self.notes.append(f"{flag}: no causal window, attention is priced in full")

    def _kinds(self, kinds: StatedKinds) -> None:
        """Put the kinds of layers, where they are more than dense and expert layers in order."""
        s = self.settings
        written = [s.flag(dest) for dest in (*PATTERNS, *_FREQUENCIES) if s.get(dest) is not None]
        self.put("model.layers", len(kinds.kinds), "; ".join(written))
        self.put("model.layer_kinds", kind_runs(kinds.kinds), "; ".join(written))
        for section, sizes in kinds.sections.items():
            for name, value in sizes.items():
                self.put(f"model.{section}.{name}", value, "; ".join(written))
        mtp = kinds.mtp_layers or s.number("mtp_num_layers")
        if mtp:
            self.put("model.mtp_layers", mtp, "; ".join(written))
        if kinds.mtp_layers:
            self.notes.append("layers of multi-token prediction are priced as the last layer")

    def _experts(self, layers: int) -> None:
        s = self.settings
        self.copy("model.moe.experts", "num_experts")
        self.copy("model.moe.topk", "moe_router_topk")
        if s.get("moe_ffn_hidden_size"):
            self.copy("model.moe.moe_ffn", "moe_ffn_hidden_size")
        if s.get("moe_shared_expert_intermediate_size"):
            self.copy("model.moe.shared_ffn", "moe_shared_expert_intermediate_size")
        dense, every = self._pattern(layers) if layers else (0, 1)
        if dense:
            self.put("model.moe.dense_layers", dense, s.flag("moe_layer_freq"))
        if every > 1:
            self.put("model.moe.every", every, s.flag("moe_layer_freq"))
        if (s.get("moe_router_num_groups") or 1) > 1:
            self.copy("model.moe.routing_groups", "moe_router_num_groups")
            if s.get("moe_router_group_topk"):
                self.copy("model.moe.top_groups", "moe_router_group_topk")
        capacity = s.get("moe_expert_capacity_factor")
        if capacity:
            flag = s.flag("moe_expert_capacity_factor")
            self.put("model.moe.capacity_factor", max(1.0, float(capacity)), flag)
            if capacity < 1:
                self.notes.append(f"{flag}: priced as 1")
        if s.get("moe_router_force_load_balancing"):
            self.put("model.moe.forced_balance", True, s.flag("moe_router_force_load_balancing"))
        else:
            self.put(
                "model.moe.imbalance",
                1.0,
                "the flags do not say how tokens spread",
                assumed=True,
            )

    def _pattern(self, layers: int) -> tuple[int, int]:
        """Return dense layers at the start and the distance of expert layers."""
        pattern = layer_pattern(self.settings.get("moe_layer_freq"), layers)
        if len(pattern) != layers or not any(pattern):
            return 0, 1  # the framework refuses it; the rules say so
        dense, every, exact = described_pattern(pattern)
        if not exact:
            self.notes.append(
                f"{self.settings.flag('moe_layer_freq')}: priced with {dense} dense layers first,"
                f" then every {every}th with experts; this order has no field of its own"
            )
        return dense, every

    def training(self, n_devices: int) -> None:
        """Fill the `training:` section."""
        s = self.settings
        seq_len = size_of(s, "seq_length")
        self.put("training.seq_len", seq_len, s.flag("seq_length"))
        batch = s.get("global_batch_size")
        if batch:
            self.copy("training.global_batch", "global_batch_size")
        else:
            batch, text = _default_batch(s, n_devices)
            self.put("training.global_batch", batch, text, assumed=not n_devices)
        precision, text = precision_of(s)
        self.put("training.precision", precision, text)
        for name, value in other_numerics(s).items():
            self.put(f"training.{name}", value, _numeric_flags(s, name))
        for name, value in optimizer_fields(s).items():
            self.put(f"training.{name}", value, s.flag("optimizer"))
        self.notes += optimizer_notes(s)
        if s.get("train_samples"):
            tokens = float(s.number("train_samples") * seq_len)
            self.put("training.tokens", tokens, s.flag("train_samples"))
        elif s.get("train_iters"):
            tokens = float(s.number("train_iters") * batch * seq_len)
            self.put("training.tokens", tokens, s.flag("train_iters"))


_FREQUENCIES = ("window_size", "window_attn_skip_freq", "linear_attention_freq")
_MLA = {
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "qk_nope": "qk_head_dim",
    "qk_rope": "qk_pos_emb_head_dim",
    "v_head": "v_head_dim",
}


def _off(settings: MegatronSettings, dest: str, flag: str) -> str:
    return settings.flag(dest) if settings.given(dest) else f"no {flag}"


def _default_batch(settings: MegatronSettings, n_devices: int) -> tuple[int, str]:
    """Return the batch without --global-batch-size: one micro-batch on each rank."""
    micro = settings.number("micro_batch_size") or 1
    split = [
        settings.number(f"{axis}_parallel_size") or 1
        for axis in ("tensor_model", "pipeline_model", "context")
    ]
    ranks = max(1, n_devices // max(1, split[0] * split[1] * split[2]))
    text = f"no --global-batch-size: one micro-batch of {micro} on each of {ranks} ranks"
    return micro * ranks, text if n_devices else f"{text}; their number is not known here"


def assumed_vocab(settings: MegatronSettings) -> tuple[int, str]:
    """Return a vocabulary from the tokenizer's name, and why."""
    kind, model = (str(settings.get(f"tokenizer_{x}") or "") for x in ("type", "model"))
    text = f"{kind} {model}".lower()
    for pattern, vocab, why in TOKENIZER_VOCABS:
        if re.search(pattern, text):
            return vocab, why
    name = settings.source.rsplit("/", 1)[-1].lower()
    for pattern, vocab, why in TOKENIZER_VOCABS if "bpe" not in text else ():
        if re.search(pattern, name):
            return vocab, f"{why}, by the name of the script; set vocab_size to be sure"
    if kind in OTHER_VOCABS:
        return OTHER_VOCABS[kind], f"usual for {kind}; set vocab_size to be sure"
    if "SentencePiece" in kind:
        return SENTENCE_PIECE_VOCAB, f"usual for {kind}; set vocab_size to be sure"
    return 50257, "GPT-2's vocabulary; set vocab_size to be sure"


def precision_of(settings: MegatronSettings) -> tuple[str, str]:
    """Return the numeric recipe of a model file, and the flags that say it."""
    bf16, fp16 = settings.get("bf16"), settings.get("fp16")
    if settings.get("fp4"):
        return "nvfp4", f"{settings.flag('fp4')} {settings.flag('fp4_recipe')}"
    if settings.get("fp8"):
        recipe = settings.get("fp8_recipe")
        recipe = recipe if recipe in _FP8 else "delayed"
        return f"fp8-{recipe}", f"{settings.flag('fp8')} {settings.flag('fp8_recipe')}"
    if bf16 and (grads := narrow_grads(settings)):
        return "bf16-grads", f"--bf16 {grads}"
    if bf16:
        return "bf16", "--bf16"
    if fp16:
        return "fp16", "--fp16"
    return "fp32", "neither --bf16 nor --fp16"


def narrow_grads(settings: MegatronSettings) -> str:
    """Return the flags that keep gradients in bf16; empty where they are in fp32."""
    if settings.get("grad_reduce_in_bf16"):
        return "--grad-reduce-in-bf16"
    grads = "megatron_fsdp_main_grads_dtype"
    if settings.get("use_megatron_fsdp") and settings.get(grads) == "bf16":
        return settings.flag(grads)
    aware = settings.get("use_precision_aware_optimizer")
    if aware and settings.get("main_grads_dtype") == "bf16":
        return settings.flag("main_grads_dtype")
    return ""


def moments_are_narrow(settings: MegatronSettings) -> bool:
    """Tell whether both moments are kept in 16 bits on the device."""
    if not settings.get("use_precision_aware_optimizer") or settings.get("optimizer_cpu_offload"):
        return False
    dests = ("exp_avg_dtype", "exp_avg_sq_dtype")
    return all(settings.get(dest) in ("bf16", "fp16") for dest in dests)


def other_numerics(settings: MegatronSettings) -> dict[str, Any]:
    """Return what flags say of the job's numbers beside its precision, where it is not usual."""
    job: dict[str, Any] = {}
    fp8, fp4 = settings.get("fp8"), settings.get("fp4")
    if (fp8 or fp4) and narrow_grads(settings):
        job["grad_dtype"] = "bf16"
    if moments_are_narrow(settings):
        job["optimizer_states"] = "bf16-moments"
    if settings.get("fp4_param_gather" if fp4 else "fp8_param_gather") and (fp8 or fp4):
        job["fp8_param_gather"] = True
    if fp8 and settings.get("fp8_output_proj"):
        job["fp8_output"] = True
    if (fp8 or fp4) and settings.get("first_last_layers_bf16"):
        ends = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
        job["bf16_layers"] = [int(settings.get(dest) or 0) for dest in ends]
    return job


def _numeric_flags(settings: MegatronSettings, name: str) -> str:
    """Return the flags that say one of `other_numerics`."""
    if name == "grad_dtype":
        return narrow_grads(settings)
    dest = {
        "optimizer_states": "exp_avg_dtype",
        "fp8_param_gather": "fp4_param_gather" if settings.get("fp4") else "fp8_param_gather",
        "fp8_output": "fp8_output_proj",
        "bf16_layers": "first_last_layers_bf16",
    }[name]
    return settings.flag(dest)


def layer_pattern(freq: Any, layers: int) -> tuple[int, ...]:
    """Return which layers have experts (1) from --moe-layer-freq; () where it cannot be read.

    A number n means layers 0, n, 2n, ...; a text is a Python expression of lists.

    >>> layer_pattern("([0]*3+[1]*2)", 5), layer_pattern(2, 4)
    ((0, 0, 0, 1, 1), (1, 0, 1, 0))
    """
    try:
        value = pattern_value(freq) if isinstance(freq, str) else freq
    except ValueError:
        return ()
    if isinstance(value, int):
        return tuple(int(i % value == 0) for i in range(layers)) if value > 0 else ()
    return tuple(int(bool(x)) for x in value) if isinstance(value, list) else ()


def described_pattern(pattern: Sequence[int]) -> tuple[int, int, bool]:
    """Return dense layers at the start, distance of expert layers, and whether that is exact.

    >>> described_pattern((0, 0, 0, 1, 1)), described_pattern((0, 1, 0, 1))
    ((3, 1, True), (0, 2, True))
    """
    n = len(pattern)
    experts = sum(pattern)
    for every in range(1, n + 1):
        for dense in range(n):
            made = [int(i >= dense and (i - dense + 1) % every == 0) for i in range(n)]
            if made == list(pattern):
                return dense, every, True
    every = max(1, round(n / experts))
    return max(0, n - experts * every), every, False
