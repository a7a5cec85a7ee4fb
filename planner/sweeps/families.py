"""Models of any size from a few given ones of a family, such as Llama 3 of 8B, 70B and 405B.

Every size of the architecture (layers, hidden, heads, widths, experts) is a power of the number of
parameters between two neighbours of the family; below the smallest and above the largest the law
of the nearest two goes on. Then sizes are rounded to what kernels and tensor parallelism want, and
layers and inner width give way until the parameters are right:

| size | multiple of |
|---|---|
| `hidden` | 8 heads where heads fill it, else 512 (64 elements on each of 8 ranks) |
| `heads` | 8, and of `kv_heads` |
| `ffn` | 512 |
| `moe_ffn` | 128 |
| `experts` | 8, of what the given numbers are all multiples of, and of `routing_groups` |
| `layers` | 2 where all given models have even numbers, else 1 |

What all given models share stays as it is. What is no size (`kv_heads`, `tied`, `vocab`, ranks of
latent attention, limits of routing, shared experts by their number) is that of the nearest given
model, by the ratio of parameters. The global batch follows a law too: a power of two where all
given ones are, else a multiple of their greatest common divisor.

Source of the form: power laws between published sizes of one family; no law of scaling is claimed.
Left out: which depth or width would train best, and that a larger model of the same family would
see other tokens or batches than the given ones imply.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.parameters import total_params
from planner.errors import InputProblem, SpecError
from planner.specs.inputs import ModelInput
from planner.specs.loader import load_model, model_from_dict
from planner.units import format_count

GIVEN_WITHIN = 0.01
"""A given model stands for all numbers of parameters that differ from its own by this share."""
FITTED_WITHIN = 0.01
"""Share by which the parameters of a made model may miss the number asked for."""
REACH = 30.0
"""Factor below the smallest and above the largest given model up to which the laws are used."""
TP_RANKS = 8
HIDDEN_MULTIPLE, FFN_MULTIPLE, EXPERT_FFN_MULTIPLE = 64 * TP_RANKS, 64 * TP_RANKS, 128
LAYER_SPAN = 0.25
"""Layers are looked for within this share of what the law says."""

AGREEING = ("gated", "norm", "bias", "positions")
"""Fields of `model:` in which the models of a family must not differ."""

Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Given models in the order of their parameters."""

    models: tuple[ModelInput, ...]
    params: tuple[float, ...]
    """Parameters of each, all experts counted."""
    name: str
    """What the names of the models have in common."""

    def document(self, n_params: float) -> dict[str, Any]:
        """Return the content of a model file with about `n_params` parameters.

        A given model where one is within `GIVEN_WITHIN`. Raises `SpecError` for numbers beyond
        the reach of the family, and for those that no rounded sizes hit.
        """
        self._check(n_params)
        nearest = self._nearest(n_params)
        if abs(n_params / self.params[nearest] - 1.0) <= GIVEN_WITHIN:
            return _as_file(self.models[nearest])
        base = _as_file(self.models[nearest])
        model = self._rounded(n_params, base["model"])
        base["model"] = self._fitted(n_params, {**base, "model": model})
        base["model"]["name"] = f"{self.name}-{_short(n_params)}"
        base["training"] |= self._batch(n_params)
        return base

    def to_json(self) -> dict[str, Any]:
        """Return the given models by name with their parameters, for the head of a sweep."""
        named = zip(self.models, self.params, strict=True)
        return {"name": self.name, "models": {x.shape.name: n for x, n in named}}

    def _check(self, n_params: float) -> None:
        low, high = self.params[0] / REACH, self.params[-1] * REACH
        if not low <= n_params <= high:
            raise SpecError(
                InputProblem(
                    f"{format_count(n_params)} parameters are beyond the family {self.name}",
                    f"ask for {format_count(low)} to {format_count(high)}, or give a model nearer",
                )
            )

    def _nearest(self, n_params: float) -> int:
        """Return which given model is nearest by the ratio of parameters; the smaller of two."""
        distances = [abs(math.log(n_params / x)) for x in self.params]
        return distances.index(min(distances))

    def _law(self, n_params: float, values: Sequence[float]) -> float:
        """Return a size at `n_params`: a power law through the two given points around it.

        s = s_0 (n / n_0)^(ln(s_1/s_0) / ln(n_1/n_0)); zero where a given size is zero.
        """
        if min(values) <= 0 or len(set(values)) == 1:
            return float(values[self._nearest(n_params)])
        above = [i for i, x in enumerate(self.params) if x >= n_params]
        i = min(max(above[0] if above else len(values), 1), len(values) - 1)
        (n0, n1), (s0, s1) = self.params[i - 1 : i + 1], values[i - 1 : i + 1]
        return float(s0 * (n_params / n0) ** (math.log(s1 / s0) / math.log(n1 / n0)))

    def _size(self, n_params: float, size_of: Callable[[Sizes], float], multiple: int) -> int:
        """Return a size of the models, as it is where they share it, else rounded."""
        values = [size_of(model.document["model"]) for model in self.models]
        if len(set(values)) == 1:
            return int(values[0])
        if not all(values):
            return int(values[self._nearest(n_params)])
        return _to_multiple(self._law(n_params, values), multiple)

    def _rounded(self, n_params: float, nearest: Sizes) -> Sizes:
        """Return the sizes by their laws, rounded; layers and inner width are not yet fitted."""
        model = {**nearest}
        grouped = "mla" not in nearest
        kv = nearest.get("kv_heads", 1)
        as_many = grouped and kv == nearest["heads"]
        model["heads"] = self._size(
            n_params, lambda m: m["heads"], TP_RANKS if as_many else math.lcm(TP_RANKS, kv)
        )
        if grouped:
            head = nearest["head_dim"]
            model["kv_heads"] = model["heads"] if as_many else kv
            filled = all(
                x.shape.heads * x.shape.head_dim == x.shape.hidden and x.shape.head_dim == head
                for x in self.models
            )
            if filled:
                model["hidden"] = model["heads"] * head
        if not grouped or not filled:
            model["hidden"] = self._size(n_params, lambda m: m["hidden"], HIDDEN_MULTIPLE)
        model["layers"] = self._size(n_params, lambda m: m["layers"], self._layer_multiple)
        model["ffn"] = self._size(n_params, lambda m: m["ffn"], FFN_MULTIPLE)
        if "moe" in model:
            model["moe"] = self._experts(n_params, nearest["moe"])
        return model

    def _experts(self, n_params: float, nearest: Sizes) -> Sizes:
        divisor = math.gcd(*(model.shape.n_experts for model in self.models))
        step = math.lcm(TP_RANKS, divisor, nearest["routing_groups"])
        return {
            **nearest,
            "experts": self._size(n_params, lambda m: m["moe"]["experts"], step),
            "topk": self._size(n_params, lambda m: m["moe"]["topk"], 1),
        }

    @property
    def _layer_multiple(self) -> int:
        return 2 if all(model.shape.layers % 2 == 0 for model in self.models) else 1

    def _fitted(self, n_params: float, document: Mapping[str, Any]) -> Sizes:
        """Return the sizes with the layers and the inner width that give `n_params`.

        Of all pairs within `FITTED_WITHIN` the one whose logarithms are nearest to the laws.
        """
        model = document["model"]
        moe = "moe" in model
        multiple = EXPERT_FFN_MULTIPLE if moe else FFN_MULTIPLE
        step = self._layer_multiple
        layers = self._law(n_params, [x.shape.layers for x in self.models])
        width = self._law(
            n_params, [x.shape.expert_ffn if moe else x.shape.ffn for x in self.models]
        )
        low = max(step, _to_multiple(layers * (1 - LAYER_SPAN), step))
        results: list[tuple[float, float, Sizes]] = []
        for n_layers in range(low, _to_multiple(layers * (1 + LAYER_SPAN), step) + 1, step):
            for inner in self._widths(n_params, document, n_layers, multiple):
                sizes = _with_width({**model, "layers": n_layers}, inner)
                miss = abs(_params({**document, "model": sizes}) / n_params - 1.0)
                strain = math.log(n_layers / layers) ** 2 + math.log(inner / width) ** 2
                results.append((strain, miss, sizes))
        fitting = [x for x in results if x[1] <= FITTED_WITHIN]
        if not fitting:
            wanted = format_count(n_params)
            raise SpecError(
                InputProblem(
                    f"no sizes of the family {self.name} give {wanted} parameters within"
                    f" {FITTED_WITHIN:.0%}",
                    "ask for another number, or give a model nearer to it",
                )
            )
        return min(fitting, key=lambda x: x[:2])[2]

    def _widths(
        self, n_params: float, document: Mapping[str, Any], n_layers: int, multiple: int
    ) -> list[int]:
        """Return the two inner widths around that which gives `n_params` exactly."""
        model = {**document["model"], "layers": n_layers}
        some, more = (
            _params({**document, "model": _with_width(model, k * multiple)}) for k in (1, 2)
        )
        exact = 1 + (n_params - some) / (more - some)
        return [k * multiple for k in (math.floor(exact), math.ceil(exact)) if k >= 1]

    def _batch(self, n_params: float) -> Sizes:
        """Return batch and tokens by their laws, where the given models differ in them."""
        jobs = [model.job for model in self.models]
        batches = [job.global_batch for job in jobs]
        batch = self._law(n_params, batches)
        if len(set(batches)) > 1:
            powers = all(x & (x - 1) == 0 for x in batches)
            step = max(64, math.gcd(*batches))
            batch = 2.0 ** round(math.log2(batch)) if powers else _to_multiple(batch, step)
        sizes: Sizes = {"global_batch": int(batch)}
        if all(job.tokens for job in jobs):
            sizes["tokens"] = float(f"{self._law(n_params, [job.tokens for job in jobs]):.3g}")
        return sizes


def load_family(models: Sequence[str | os.PathLike[str]]) -> Family:
    """Read the models of a family, files or packaged examples, in any order.

    Raises `SpecError` for fewer than two, for two of one size and for models that differ in kind.
    """
    return family_of([load_model(name) for name in models])


def family_of(models: Sequence[ModelInput]) -> Family:
    """Return the family of models that are read; see `load_family`."""
    if len(models) < 2:
        fix = "name two or more, such as [llama3-8b, llama3-70b, llama3-405b]"
        raise SpecError(InputProblem(f"a family needs two models, and has {len(models)}", fix))
    sized = sorted(models, key=lambda x: total_params(x.shape, x.job.seq_len))
    params = [total_params(x.shape, x.job.seq_len) for x in sized]
    names = [x.shape.name for x in sized]
    for i in range(1, len(sized)):
        if params[i] <= params[i - 1] * (1 + GIVEN_WITHIN):
            what = f"{names[i - 1]} and {names[i]} have about the same parameters"
            raise SpecError(InputProblem(what, "leave one of them out"))
    for key in AGREEING:
        _check_alike(names, [getattr(x.shape, key) for x in sized], key)
    _check_alike(names, ["moe" in x.document["model"] for x in sized], "moe")
    _check_alike(names, ["mla" in x.document["model"] for x in sized], "mla")
    return Family(tuple(sized), tuple(params), _common(names))


def _check_alike(names: Sequence[str], values: Sequence[object], key: str) -> None:
    for name, value in zip(names, values, strict=True):
        if value != values[0]:
            what = f"{names[0]} and {name} differ in `{key}`: {values[0]} and {value}"
            raise SpecError(InputProblem(what, "give models of one family"))


def _as_file(model: ModelInput) -> dict[str, Any]:
    """Return a model as a model file would state it, free to be changed."""
    document = model.document
    training = {k: v for k, v in document["training"].items() if v is not None}
    if model.listed:
        training["precision"] = list(model.listed)
    return {"model": {**document["model"]}, "training": training}


def _params(document: Mapping[str, Any]) -> float:
    """Return the parameters of the content of a model file."""
    made = model_from_dict(document)
    return total_params(made.shape, made.job.seq_len)


def _with_width(model: Sizes, width: int) -> Sizes:
    """Return the sizes with another inner width: of the experts, or of the MLP without them.

    Shared experts are as many times as wide as one routed expert as they were.
    """
    moe = model.get("moe")
    if moe is None:
        return {**model, "ffn": width}
    shared = round(moe["shared_ffn"] * width / moe["moe_ffn"])
    return {**model, "moe": {**moe, "moe_ffn": width, "shared_ffn": shared}}


def _to_multiple(value: float, multiple: int) -> int:
    return max(1, round(value / multiple)) * multiple


def _common(names: Sequence[str]) -> str:
    """Return what names have in common up to a hyphen: `llama3` of llama3-8b and llama3-70b."""
    alike = [len(set(letters)) == 1 for letters in zip(*names, strict=False)]
    n_alike = alike.index(False) if False in alike else len(alike)
    return names[0][:n_alike].rpartition("-")[0] or "family"


def _short(n_params: float) -> str:
    """Return a number of parameters as names of models have it.

    >>> _short(1.5e12), _short(120e9), _short(350e6)
    ('1.5t', '120b', '350m')
    """
    for unit, scale in (("t", 1e12), ("b", 1e9), ("m", 1e6)):
        if n_params >= scale:
            return f"{n_params / scale:.4g}{unit}"
    return f"{n_params:.4g}"
