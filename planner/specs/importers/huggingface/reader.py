"""Builds the model file field by field, each with where it came from."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from costmodels.layers.kinds import KIND_ALIASES, LAYER_KINDS, MIXERS
from costmodels.parameters import total_params
from costmodels.tuning.records import DPO, LORA, PRETRAIN, QLORA, SFT
from planner.errors import SpecError
from planner.specs.importers.huggingface.config import (
    Config,
    Found,
    UnknownTypeError,
    open_by_fields,
    open_config,
)
from planner.specs.importers.huggingface.details import details_of
from planner.specs.importers.huggingface.families.diffusers import (
    is_diffusers,
    read_diffusers,
)
from planner.specs.importers.huggingface.families.encoders.encoder_decoders import (
    is_encoder_decoder,
    read_encoder_decoder,
)
from planner.specs.importers.huggingface.families.encoders.encoder_only import (
    is_encoder,
    read_encoder,
)
from planner.specs.importers.huggingface.families.encoders.t5gemma import is_t5gemma, read_t5gemma
from planner.specs.importers.huggingface.families.towers import with_shares, with_tower
from planner.specs.importers.huggingface.files import has_sizes, parse_config
from planner.specs.importers.huggingface.keys import key_refusals, missing, passed_over
from planner.specs.importers.huggingface.layer_kinds import (
    compressed,
    layers_of,
    shown_sections,
)
from planner.specs.importers.huggingface.model_types import TYPES
from planner.specs.importers.huggingface.rules import DROPOUT_KEYS
from planner.specs.importers.huggingface.unpriced import flags_of, notes_on, which_are_local
from planner.specs.importers.imported import Imported, Origin
from planner.specs.model import read_model
from planner.specs.yaml.document import Document, KeyPath, path_text
from planner.units import format_count, shown_value

LONGEST_SEQ_LEN = 8192
"""Tokens of a sequence where the file allows more: pre-training of the Llama 3 models
(arXiv 2407.21783, section 3.4)."""
TOKENS_PER_STEP = 4 * 2**20
"""Tokens of a step, which no such file says: LLaMA (arXiv 2302.13971, section 2.3), Llama 2
(arXiv 2307.09288, table 1) and the start of Llama 3 405B (arXiv 2407.21783, section 3.4.1)."""
LONGEST_TUNED_SEQ_LEN = 2048
"""What tools for fine-tuning cut samples at (`cutoff_len` of LLaMA-Factory)."""
TUNED_TOKENS_PER_STEP = 2**17
"""Of other tasks than pre-training: 64 such samples. No file and no tool says it; it is listed as
assumed."""

_PLAIN_STEMS = ("", "config", "params", "text_config", "-", "stdin")
"""Names of files that say nothing of the model."""
_ORDER = (
    "name",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "value_dim",
    "ffn",
    "gated",
    "vocab",
    "tied",
    "norm",
    "bias",
    "positions",
    "max_positions",
    "dropout",
    "mla",
    "moe",
    "variants",
    "layer_kinds",
    "window",
    "chunk",
    "mamba2",
    "delta_net",
    "linear",
    "indexer",
    "mamba1",
    "short_conv",
    "compressed",
    "residual_streams",
    "rglru",
    "factored",
    "per_layer",
    "attention_gate",
    "mtp_layers",
    "details",
)
"""Fields of `model:` in the order of the file."""
MAX_LAYERS = 10_000
"""Most layers, as in our own files."""
_CORE = ("layers", "hidden", "heads", "vocab")
"""Fields that files nearly always say: a default in their place is an assumption."""


def read_config(text: str, file: str, overrides: Mapping[str, object]) -> Imported:
    """Return the model file that a config.json makes.

    `overrides` are values that the user sets by path; assumptions follow them. Raises `SpecError`
    with the line.
    """
    as_type = overrides.get(AS_TYPE)
    if as_type:
        return _checked(open_config(parse_config(text, file), str(as_type)), overrides)
    document = parse_config(text, file)
    if is_diffusers(document.data):
        return read_diffusers(document, overrides)
    if is_encoder(document.data):
        return read_encoder(document, overrides)
    if is_encoder_decoder(document.data):
        return read_encoder_decoder(document, overrides)
    if is_t5gemma(document.data):
        return read_t5gemma(document, overrides)
    try:
        config = open_config(document)
    except UnknownTypeError as error:
        if by_fields := _by_fields(document):
            return _checked(by_fields, overrides)
        raise SpecError(replace(error.problems[0], hint=_advice(document, error))) from None
    if config.borrowed and missing(config) and (by_fields := _by_fields(document)):
        config = by_fields
    return _checked(config, overrides)


def read_as(text: str, file: str, as_type: str) -> Imported:
    """Return the model file that a config.json makes whose layers are those of another type.

    Raises `SpecError` where the type would leave out a key of the file, or where a key that makes
    the type is not there.
    """
    return _checked(open_config(parse_config(text, file), as_type), {})


def _checked(config: Config, overrides: Mapping[str, object]) -> Imported:
    """Read a configuration whose every key is understood."""
    if match := key_refusals(config):
        raise SpecError(match)
    if config.borrowed and (keys := missing(config)):
        message = f"read as {config.name}, but the file does not say {', '.join(keys)}"
        fix = (
            f"the defaults of {config.name} are not those of another type: add what is true to a"
            " copy of the file"
        )
        raise SpecError(config.problem(None, message, fix))
    document = config.document
    imported = with_tower(_Reader(config, overrides).imported(), document, overrides)
    return with_shares(imported, document)


AS_TYPE = "model.as"
"""Path under which a user states whose layers a file has: `--as`, or `--set model.as=TYPE`."""


def _by_fields(document: Document) -> Config | None:
    """Return a file of an unknown type as its fields say it; None where they do not suffice."""
    if not has_sizes(document.data):
        return None
    config = open_by_fields(document)
    if key_refusals(config) or any(config.look(name).value is None for name in _CORE):
        return None
    if config.rules.gated and config.look("ffn").value is None and not config.rules.experts:
        return None
    fits = [name for name, _ in _fitting(document)[0]]
    return open_by_fields(document, fits[:3])


ADVISED = (
    "llama",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "qwen2_moe",
    "deepseek_v3",
    "deepseek_v2",
    "glm4_moe",
    "olmoe",
)
"""Types that a file of another type may be read as, the plainest first."""


def _advice(document: Document, error: UnknownTypeError) -> str:
    """Return what to do with a file of an unknown type: which types have all of its keys."""
    shown, close = 10, error.problems[0].hint
    types = f"known: {', '.join(list(TYPES)[:shown])} and {len(TYPES) - shown} more"
    if not has_sizes(document.data):
        return close + types
    fits, obstacles = _fitting(document)
    counts = [count for _, count in fits]
    if fits and max(counts) <= min(counts) * (1 + SAME):
        file = document.file or "config.json"
        others = f" (or {', '.join(name for name, _ in fits[1:3])})" if fits[1:] else ""
        return (
            f"{close}{types}; if its layers are those of one of them, read it as that one:"
            f" planner import model {file} --as {fits[0][0]} --out model.yaml{others}"
        )
    _, name, results, keys = min(obstacles)
    what = [f"{', '.join(results)} would be left out"] * bool(results)
    what += [f"the file does not say {', '.join(keys)}"] * bool(keys)
    why = f"; read as {name}, {' and '.join(what)}" if what else "; several types fit and differ"
    return f"{close}no known type has all of its keys{why}; {types}"


def _fitting(
    document: Document,
) -> tuple[list[tuple[str, float]], list[tuple[int, str, list[str], list[str]]]]:
    """Return the types that have all keys of a file with their counts, and what is in the way."""
    fits, obstacles = [], []
    for name in ADVISED:
        config = open_config(document, name)
        results = [problem.path.rpartition(".")[2] for problem in key_refusals(config)]
        keys = missing(config)
        if not results and not keys and (count := _parameters(config)):
            fits.append((name, count))
        obstacles.append((len(results) + len(keys), name, results, keys))
    return fits, obstacles


SAME = 1e-3
"""Largest difference of counts of parameters that are taken for the same."""


def _parameters(config: Config) -> float:
    """Return the parameters of a configuration as it is read; 0 where it cannot be."""
    try:
        model = read_model(Document(_Reader(config, {}).imported().document))
    except SpecError:
        return 0.0
    return total_params(model.shape, model.job.seq_len)


@dataclass(slots=True)
class _Reader:
    """One configuration on its way to a model file."""

    config: Config
    overrides: Mapping[str, object]
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    marks: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def imported(self) -> Imported:
        """Return the whole file."""
        self._widths()
        self._layers()
        self._head()
        self._small_parts()
        self._details()
        self._training()
        self._name()
        order = [name for name in _ORDER if name in self.model]
        document = {"model": {name: self.model[name] for name in order}, "training": self.training}
        return Imported(
            kind="model",
            document=document,
            origins=tuple(sorted(self.origins, key=lambda origin: _place(origin.path))),
            source=self.config.document.file or "Python data",
            format=self.config.rules.format or f"Hugging Face config.json ({self.config.name})",
            notes=(
                *self.config.notes,
                *self.notes,
                *notes_on(self.config, document),
                *self._strays(),
            ),
            marks=self.marks,
        )

    def _strays(self) -> tuple[str, ...]:
        """Name the keys that nobody knows and that were passed over."""
        names = passed_over(self.config)
        if not names:
            return ()
        return (f"not known, and by name and value no size: {', '.join(names)}",)

    def _put(
        self,
        path: tuple[str, ...],
        value: object,
        text: str,
        file_path: KeyPath | None = None,
        *,
        assumed: bool = False,
    ) -> None:
        """Set one field, with its origin and the place where it stands in the file."""
        section = self.model if path[0] == "model" else self.training
        for key in path[1:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
        self.origins = [origin for origin in self.origins if origin.path != path]
        self.origins.append(Origin(path, text, assumed))
        document = self.config.document
        if self.config.by_fields and path[0] == "model" and path != ("model", "name"):
            assumed = file_path is None
            self.origins[-1] = Origin(path, text, assumed)
        if file_path is not None and file_path in document.value_marks:
            self.marks[path] = document.value_marks[file_path]

    def _take(self, name: str, *path: str) -> int:
        """Copy a whole number that must be there."""
        result = self.config.needed(name)
        where = ("model", *(path or (name,)))
        assumed = result.path is None and name in (*_CORE, "topk")
        self._put(where, result.value, result.text, result.path, assumed=assumed)
        return int(result.value)

    def _widths(self) -> None:
        """Set layers, widths and heads."""
        config = self.config
        n_layers = self._take("layers")
        if n_layers > MAX_LAYERS:  # each of them is looked at
            message = f"{n_layers} layers are more than the {MAX_LAYERS:,} of any model file"
            raise SpecError(config.problem(config.needed("layers").path, message))
        hidden, heads = self._take("hidden"), self._take("heads")
        self._take("vocab")
        if config.rules.latent:
            if config.count("q_rank", 0).value:
                self._take("q_rank", "mla", "q_rank")
            else:
                text = "queries are not compressed"
                self._put(("model", "mla", "q_rank"), 0, text, config.look("q_rank").path)
            for name in ("kv_rank", "qk_nope", "qk_rope"):
                self._take(name, "mla", name)
            self._value_heads(hidden, heads)
            return
        self._kv_heads(heads)
        if config.count("value_dim").value:
            self._take("value_dim")
        head_dim = config.count("head_dim")
        if head_dim.value is not None:
            self._put(("model", "head_dim"), head_dim.value, head_dim.text, head_dim.path)
            return
        sources = [config.needed(name) for name in ("hidden", "heads")]
        if hidden % heads:
            message = f"{hidden} is not a multiple of the {heads} heads"
            fix = "add head_dim, or correct one of them"
            raise SpecError(config.problem(sources[0].path, message, fix))
        text = " / ".join(source.text for source in sources)
        self._put(("model", "head_dim"), hidden // heads, text)

    def _value_heads(self, hidden: int, heads: int) -> None:
        """Set the width of a value head of latent attention."""
        if self.config.count("v_head").value is not None or hidden % heads:
            self._take("v_head", "mla", "v_head")
        else:
            self._put(("model", "mla", "v_head"), hidden // heads, "hidden_size / heads")

    def _kv_heads(self, heads: int) -> None:
        """Set the heads of keys and values; all heads share one in multi-query attention."""
        config, path = self.config, ("model", "kv_heads")
        multi_query = config.switch("multi_query")
        if multi_query.value and not config.switch("new_decoder").value:
            self._put(path, 1, f"one for all heads: {multi_query.text}", multi_query.path)
            return
        result = config.count("kv_heads")
        if result.value is not None:
            self._put(path, result.value, result.text, result.path)
        else:
            self._put(path, heads, "as many as heads")

    def _layers(self) -> None:
        """Set experts, MLP and the kinds of the layers."""
        n_layers = int(self.model["layers"])
        routed = self._routed(n_layers)
        layers = layers_of(self.config, self._seq_len()[0], routed, self.model)
        self.notes += layers.notes
        kinds, feeds = layers.kinds, layers.feeds
        for i, kind in enumerate(kinds):
            if (plain := kind.partition("@")[0]) not in LAYER_KINDS and plain not in KIND_ALIASES:
                message = f"layer {i} is of the kind {kind}, which is not priced"
                raise SpecError(self.config.problem(layers.source.path, message))
        if "moe" in feeds:
            self._experts()
        pattern = expert_pattern([feed == "moe" for feed in feeds]) if "moe" in feeds else (0, 1)
        if layers.is_plain and not {"none", "injected"} & set(feeds) and pattern:
            self._pattern(*pattern)
        else:
            entries = compressed([_usual_name(kind) for kind in kinds])
            source = layers.source
            self._put(("model", "layer_kinds"), entries, source.text, source.path)
        if len(kinds) != n_layers:
            self._put(("model", "layers"), len(kinds), layers.source.text, layers.source.path)
        for variant, sizes in sorted(layers.variants.items()):
            for key, width in sizes.items():
                path = ("model", "variants", variant, key)
                self._put(path, width, layers.source.text, layers.source.path)
        for section, name, size in shown_sections(layers.sections):
            self._put(("model", section, name), size.value, size.text, size.path)
        if self.config.rules.gate and any(MIXERS[x.split("+")[0]].attends for x in kinds):
            self._put(("model", "attention_gate"), True, self.config.always().text)
        self._mlp(has_mlp=bool({"dense", "injected"} & set(feeds)))
        if "injected" in feeds:
            self._take("row_width", "per_layer", "width")
            self._take("row_vocab", "per_layer", "vocab")
            for name, field in (("streams", "streams"), ("laurel", "laurel_rank")):
                if self.config.count(name, 0).value:
                    self._take(name, "per_layer", field)

    def _routed(self, n_layers: int) -> list[bool]:
        """Return which layers have experts."""
        config = self.config
        none = config.count("experts", 0)
        if not config.rules.experts or (none.value == 0 and config.rules.dense_without):
            return [False] * n_layers
        if none.value == 0:
            message = f"no experts, and a {config.name} has some in its layers all the same"
            raise SpecError(config.problem(none.path, message, "read it --as a dense type"))
        layers = expert_layers(config, n_layers)
        if not any(layers):
            self.notes.append("no layer has experts: read as a dense model")
        return layers

    def _experts(self) -> None:
        """Set the experts."""
        config, section = self.config, ("model", "moe")
        for name in ("experts", "topk", "moe_ffn"):
            self._take(name, "moe", name)
        self._zero_experts()
        shared = config.count("shared_experts", 0)
        if shared.value:
            self._put((*section, "shared_experts"), shared.value, shared.text, shared.path)
        width = config.count("shared_ffn", 0)
        if width.value:
            self._put((*section, "shared_experts"), 1, f"as in every {config.name}")
            self._put((*section, "shared_ffn"), width.value, width.text, width.path)
        groups = config.count("groups")
        if (groups.value or 1) > 1 and config.look("topk_method").value != "greedy":
            self._put((*section, "routing_groups"), groups.value, groups.text, groups.path)
            self._take("top_groups", "moe", "top_groups")

    def _zero_experts(self) -> None:
        """Count the experts of a token that compute something, where some return their input."""
        zero = self.config.count("zero_experts", 0).value
        if not zero or not self.config.rules.twice:
            return
        experts, topk = self.model["moe"]["experts"], self.model["moe"]["topk"]
        computed = max(1, round(topk * experts / (experts + zero)))
        path = ("model", "moe", "topk")
        self._put(path, computed, f"{topk} of which {zero} in {experts + zero} compute nothing")

    def _pattern(self, dense: int, every: int) -> None:
        """Set which layers have experts where these are every n-th after the first dense ones."""
        config, section = self.config, ("model", "moe")
        if dense:
            source = config.look("first_dense")
            text = source.text if source.path else f"the first {dense} layer(s) are dense"
            self._put((*section, "dense_layers"), dense, text, source.path)
        if every > 1:
            source = config.look("expert_step")
            text = source.text if source.path else f"experts in every layer number {every}"
            self._put((*section, "every"), every, text, source.path)

    def _mlp(self, *, has_mlp: bool) -> None:
        """Set the MLP of dense layers."""
        config, gated = self.config, self.config.rules.gated
        every, matrices = config.always("gated"), "three" if gated else "two"
        comma = "," * config.by_fields
        text = every.text if every.path else f"{matrices} MLP matrices{comma} {every.text}"
        self._put(("model", "gated"), gated, text, every.path)
        if not has_mlp:
            return
        if several := config.ffn_width():
            width, text = several
            self._put(("model", "ffn"), width, text)
            return
        result = config.count("ffn")
        if result.value is None and not gated:
            hidden = config.needed("hidden")
            self._put(("model", "ffn"), 4 * hidden.value, f"4 * {hidden.text}", result.path)
        elif config.rules.ffn_parts > 1:
            width, parts = int(config.needed("ffn").value), config.rules.ffn_parts
            self._put(("model", "ffn"), width // parts, f"{result.text} / {parts}", result.path)
        else:
            self._take("ffn")

    def _head(self) -> None:
        """Set whether the head is the embedding, and refuse an embedding of another width."""
        config = self.config
        tied = config.switch("tied")
        outer = config.document.data.get("tie_word_embeddings")
        if tied.path is None and config.path and isinstance(outer, bool):
            tied = Found(outer, "tie_word_embeddings", ("tie_word_embeddings",))
        self._put(("model", "tied"), tied.value, tied.text, tied.path)
        embedding, hidden = config.count("embedding_width"), self.model["hidden"]
        if embedding.value not in (None, hidden):
            message = (
                f"embeddings of width {embedding.value} are projected to layers of width {hidden},"
                " which the cost model does not have"
            )
            fix = "write a model file with the widths of the layers: docs/files.md"
            raise SpecError(config.problem(embedding.path, message, fix))
        modules = config.count("mtp_layers", 0)
        if modules.value:
            self._put(("model", "mtp_layers"), modules.value, modules.text, modules.path)

    def _small_parts(self) -> None:
        """Set norms, biases, positions and dropout."""
        config, rules = self.config, self.config.rules
        norm, positions = config.always("norm"), config.always("positions")
        self._put(("model", "norm"), rules.norm, norm.text, norm.path)
        # The MLP decides: a model file knows biases everywhere or nowhere.
        bias = config.switch(rules.biases[2])
        text = bias.text if bias.path or bias.value else "none in the MLP"
        self._put(("model", "bias"), bias.value, text, bias.path)
        self._put(("model", "positions"), rules.positions, positions.text, positions.path)
        if rules.positions == "learned":
            self._take("max_positions")
        arguments = {key: config.section[key] for key in DROPOUT_KEYS if key in config.section}
        on = [key for key, rate in arguments.items() if isinstance(rate, float) and rate > 0]
        if on:
            path = (*config.path, on[0])
            self._put(("model", "dropout"), True, f"{path_text(path)} {arguments[on[0]]:g}", path)
        elif not arguments and rules.dropout:
            text = f"default of {config.name}: {rules.dropout:g}"
            self._put(("model", "dropout"), True, text)

    def _details(self) -> None:
        """Set what no figure depends on."""
        local = [False] * int(self.model["layers"])
        if not self.config.rules.mixer:
            local = which_are_local(self.config, int(self.model["layers"]))
        for detail in details_of(self.config, self.model, local):
            path = ("model", "details", detail.name)
            if self.config.by_fields and detail.source.path is None:
                continue  # nobody knows the defaults of an unknown type
            self._put(path, detail.value, detail.source.text, detail.source.path)

    def _training(self) -> None:
        """Set the job, which no such file says."""
        seq_len, why = self._seq_len()
        self._put(("training", "seq_len"), seq_len, why, assumed=True)
        batch = assumed_batch(seq_len, is_tuned=self._is_tuned)
        text = f"{format_count(batch * seq_len)} tokens a step"
        self._put(("training", "global_batch"), batch, text, assumed=True)
        self._put(("training", "precision"), "bf16", f"usual{self._weights()}", assumed=True)
        self._put(("training", "optimizer"), "adam", "usual", assumed=True)

    def _weights(self) -> str:
        """Say what the weights of the file are stored in."""
        for section in (self.config.section, self.config.document.data):
            for key in ("dtype", "torch_dtype"):
                if isinstance(section.get(key), str):
                    return f"; {key} {section[key]}"
        return ""

    @property
    def _is_tuned(self) -> bool:
        """Whether the user wants another task than pre-training."""
        return self.overrides.get("training.task", PRETRAIN) in (SFT, LORA, QLORA, DPO)

    def _seq_len(self) -> tuple[int, str]:
        """Return the tokens of a sequence, stated or assumed, and the reason."""
        value = str(self.overrides.get("training.seq_len", ""))
        if value.isascii() and value.isdigit() and len(value) < 10 and int(value):
            return int(value), "stated"
        result = self.config.count("max_positions")
        name, original = _original_positions(self.config.section)
        longest = LONGEST_TUNED_SEQ_LEN if self._is_tuned else LONGEST_SEQ_LEN
        of_task = f" for {self.overrides['training.task']}" if self._is_tuned else ""
        bounds = [(longest, "not in the file")]
        if result.value:
            default = result.text.partition(":")[0]
            source = f"{result.text} {result.value}" if result.path else default
            bounds = [
                (result.value, result.text),
                (longest, f"at most {longest}{of_task}; {source}"),
            ]
        if original:
            bounds.append((original, name))
        return min(bounds, key=lambda bound: bound[0])

    def _name(self) -> None:
        """Name the model: by its file, else as the file says, else by its folder or its type."""
        file = PurePath(self.config.document.file)
        full_name = self.config.document.data.get("_name_or_path")
        for name, text in (
            (file.stem if file.stem not in _PLAIN_STEMS else "", "name of the file"),
            (_folder_name(full_name) if isinstance(full_name, str) else "", "_name_or_path"),
            (_folder_name(str(file.parent)), "folder of the file"),
            (self.config.name, "model_type"),
        ):
            plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+")[:64]
            if plain:
                self._put(("model", "name"), plain, text)
                return


def _usual_name(kind: str) -> str:
    """Return the name of a kind that a model file has for it."""
    plain, at, variant = kind.partition("@")
    return KIND_ALIASES.get(plain, plain) + at + variant


def _folder_name(path: str) -> str:
    """Return the model that a folder is named after, in the Hub's cache or elsewhere."""
    in_cache = re.search(r"models--.+?--([^/\\]+)", path)
    return in_cache[1] if in_cache else PurePath(path).name


def _place(path: tuple[str | int, ...]) -> tuple[bool, int]:
    """Return where an origin stands: the model before the job, fields in the order of the file."""
    key = str(path[1])
    return path[0] != "model", _ORDER.index(key) if key in _ORDER else len(_ORDER)


def assumed_batch(seq_len: int, *, is_tuned: bool = False) -> int:
    """Return the sequences of a step: the power of two nearest to 4 M tokens, 131,072 where tuned.

    >>> assumed_batch(8192), assumed_batch(2048), assumed_batch(10**9)
    (512, 2048, 1)
    >>> assumed_batch(2048, is_tuned=True)
    64
    """
    tokens = TUNED_TOKENS_PER_STEP if is_tuned else TOKENS_PER_STEP
    return int(2 ** max(0, round(math.log2(tokens / seq_len))))


def _original_positions(section: Mapping[str, Any]) -> tuple[str, int]:
    """Return the sequences of pre-training where rotary positions were stretched afterwards."""
    key = "original_max_position_embeddings"
    for name in ("rope_scaling", "rope_parameters", ""):
        inner = section.get(name) if name else section
        value = inner.get(key) if isinstance(inner, Mapping) else None
        if type(value) is int and value > 0:
            return f"{name}.{key}" if name else key, value
    return "", 0


def expert_layers(config: Config, n_layers: int) -> list[bool]:
    """Return which layers have experts."""
    listed = config.numbers("expert_list")
    if listed is not None:
        those = set(listed)
        return [i in those for i in range(n_layers)]
    if period := config.count("expert_period").value:
        offset = config.count("expert_offset", 0).value or 0
        return [i % period == offset for i in range(n_layers)]
    flags = config.look("expert_flags")
    if flags.value is not None:
        return flags_of(config, flags, n_layers)
    dense = set(config.numbers("dense_list") or ())
    kinds = config.look("dense_or_sparse")
    if kinds.value is not None:
        if not isinstance(kinds.value, list) or len(kinds.value) != n_layers:
            message = (
                f"expected dense or sparse for {n_layers} layers, got {shown_value(kinds.value)}"
            )
            raise SpecError(config.problem(kinds.path, message))
        return [kind == "sparse" for kind in kinds.value]
    frequency = config.look("expert_frequency")
    values = frequency.value if isinstance(frequency.value, list) else []
    if any(value != values[0] for value in values):
        return flags_of(config, frequency, n_layers)
    first = config.count("first_dense", 0).value or 0
    last = config.count("last_expert_layer", -1).value
    last = n_layers - 1 if last in (None, -1) else last
    every = config.count("expert_frequency").value or 1
    step = config.count("expert_step").value or 1
    return [
        first <= i <= last and i % every == 0 and (i + 1) % step == 0 and i not in dense
        for i in range(n_layers)
    ]


def expert_pattern(layers: Sequence[bool]) -> tuple[int, int] | None:
    """Return how many dense layers come first, and of which others every n-th has experts.

    None for another pattern, which `layer_kinds` has to say.
    """
    first = list(layers).index(True)
    for every in range(1, first + 2):
        dense = first + 1 - every
        if all(
            layers[i] == ((i - dense + 1) % every == 0) for i in range(first, len(layers))
        ):  # none before the first has any, by this pattern too
            return dense, every
    return None
