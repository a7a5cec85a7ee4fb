"""Expressions over the fields of a point: constraints (`where:`) and derived values (`let:`).

An expression is arithmetic and comparisons over paths (`pools.0.accelerator.power`), figures of
the point (`n_devices`), values of `let:` and quantities with a unit (`20 MW`, `80 GiB`). It is
read as a Python expression and evaluated by this module alone: what it does not know is refused.
Every value has a dimension, so that a power is never compared with a size, nor with a number
without unit.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodels.parameters import active_params, total_params
from costmodels.run.cost_energy import device_power_w
from planner.errors import BadValue
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.yaml.document import close_names
from planner.sweeps.fields import (
    BYTES,
    BYTES_PER_S,
    FLOPS_PER_S,
    PARAMS,
    PLAIN,
    QUANTITIES,
    SECONDS,
    TEXT,
    TRUTH,
    WATTS,
    WHOLE_FILES,
    Dimension,
    dimension_in_words,
    field_at,
)
from planner.units import shown_value

MAX_CHARACTERS = 1000
"""Longest expression."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number in base units, a word, a truth, or a tuple of values to look in."""

    content: Any
    dimension: Dimension = PLAIN


class UnknownValue(BadValue):
    """A figure that a point does not have: no price is stated, no power limit published."""


Lookup = Callable[[str], Value]
"""Returns the value of a name; `BadValue` where there is none."""


@dataclass(frozen=True)
class Expression:
    """An expression that was read: only what this module evaluates."""

    text: str
    """As written."""
    names: tuple[str, ...]
    """Fields, figures and derived values in it, in their order, each once."""
    _source: str = ""
    _paths: Mapping[str, str] = field(default_factory=dict)
    _quantities: Mapping[str, Value] = field(default_factory=dict)

    def value(self, lookup: Lookup) -> Value:
        """Return the value; `BadValue` for mixed units, `UnknownValue` for a figure not known."""
        tree = ast.parse(self._source, mode="eval").body
        try:
            return _Evaluator(lookup, self._paths, self._quantities).visit(tree)
        except ZeroDivisionError:
            raise UnknownValue(f"{shown_value(self.text)} divides by zero") from None
        except OverflowError:
            raise UnknownValue(f"{shown_value(self.text)} is too large a number") from None


_UNITS = (
    r"[kKMGTPE]?i?(?:Bps|bps|B/s|b/s|bit/s|B|b)|[kMGTPE]?(?:FLOP/s|FLOPS|OP/s|OPS)|[kMG]?W"
    r"|ns|us|µs|μs|ms|min|days|day|s|h|d"
)
_TOKEN = re.compile(
    rf"(?P<text>'[^']*'|\"[^\"]*\")"
    rf"|(?P<path>[A-Za-z_]\w*(?:\.\w+)*)"
    rf"|(?P<number>(?:\d[\d_]*(?:\.\d[\d_]*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    rf"(?:\s*(?P<unit>{_UNITS})(?![\w./]))?"
    rf"|(?P<other>.)",
    re.ASCII | re.DOTALL,
)
_KEYWORDS = ("and", "or", "not", "in", "if", "else", "True", "False")


def read_expression(text: object) -> Expression:
    """Read an expression; `BadValue` for text that is none, and for what it may not do."""
    if not isinstance(text, str):
        if isinstance(text, int | float) and not isinstance(text, bool):
            text = repr(text)
        else:
            raise BadValue(f"expected an expression, got {shown_value(text)}")
    if len(text) > MAX_CHARACTERS:
        raise BadValue(f"an expression of more than {MAX_CHARACTERS} characters", "split it: let")
    paths: dict[str, str] = {}
    quantities: dict[str, Value] = {}
    source = ""
    for token in _TOKEN.finditer(text.replace("\n", " ").strip()):
        if token["path"] and token["path"] in (*_KEYWORDS, *_FUNCTIONS):
            source += token["path"]
        elif token["path"]:
            name = f"_p{len(paths)}"
            paths[name] = token["path"]
            source += name
        elif token["number"] and token["unit"]:
            name = f"_q{len(quantities)}"
            quantities[name] = _quantity(token["number"], token["unit"])
            source += name
        elif token["number"]:
            source += token["number"]
        else:
            source += token.group()
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        fix = "for example pools.0.accelerator.power * n_devices <= 20 MW"
        if re.search(r"(?<![<>=!])=(?!=)", text):
            fix = "compare with == in place of ="
        raise BadValue(f"{shown_value(text)} is not an expression", fix) from None
    _refuse_unknown(tree.body, text)
    names = tuple(dict.fromkeys(paths.values()))
    return Expression(text, names, source, paths, quantities)


def _quantity(number: str, unit: str) -> Value:
    errors = []
    for parse, dimension, _ in QUANTITIES:
        try:
            return Value(parse(f"{number} {unit}"), dimension)
        except BadValue as error:
            errors.append(error)
    raise BadValue(f"unknown unit {unit!r}", "such as GiB, GB/s, TFLOP/s, kW, ms")


_COMPARED: Mapping[type[ast.cmpop], tuple[Callable[[Any, Any], bool], str]] = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
    ast.Eq: (operator.eq, "=="),
    ast.NotEq: (operator.ne, "!="),
}
_TIMES: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_PLUS: Mapping[type[ast.operator], tuple[Callable[[Any, Any], Any], str]] = {
    ast.Add: (operator.add, "+"),
    ast.Sub: (operator.sub, "-"),
    ast.Mod: (operator.mod, "%"),
}
_SAME_UNIT: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_OF_NUMBER: Mapping[str, Callable[..., Any]] = {
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "log2": math.log2,
    "log": math.log,
}
_FUNCTIONS = ("min", "max", "abs", "sqrt", *_OF_NUMBER)
_ALLOWED = (
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Load,
    ast.And,
    ast.Or,
    ast.Not,
    ast.USub,
    ast.UAdd,
    ast.In,
    ast.NotIn,
    ast.Pow,
    *_COMPARED,
    *_TIMES,
    *_PLUS,
)


def _refuse_unknown(tree: ast.AST, text: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | bool):
            raise BadValue(
                f"{shown_value(text)}: {shown_value(node.value)} cannot stand in an expression"
            )
        if isinstance(node, ast.Call):
            is_function = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            if not is_function or node.keywords:
                functions = ", ".join(_FUNCTIONS)
                raise BadValue(
                    f"{shown_value(text)} calls what is no function", f"known: {functions}"
                )
        elif isinstance(node, ast.Name) and node.id in _FUNCTIONS:
            continue
        if not isinstance(node, _ALLOWED):
            what = type(node).__name__
            fix = "arithmetic, comparisons, and, or, not, in, if else; " + ", ".join(_FUNCTIONS)
            raise BadValue(
                f"{shown_value(text)} holds what is not allowed here ({what})", f"known: {fix}"
            )


class _Evaluator:
    """Evaluates one tree of allowed nodes."""

    def __init__(
        self, lookup: Lookup, paths: Mapping[str, str], quantities: Mapping[str, Value]
    ) -> None:
        self.lookup = lookup
        self.paths = paths
        self.quantities = quantities

    def visit(self, node: ast.expr) -> Value:
        """Return the value of a node."""
        result: Value = getattr(self, f"_{type(node).__name__.lower()}")(node)
        return result

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool):
            return Value(node.value, TRUTH)
        return Value(node.value, TEXT if isinstance(node.value, str) else PLAIN)

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.quantities:
            return self.quantities[node.id]
        if node.id not in self.paths:
            raise BadValue(f"{node.id} is a function", f"write {node.id}(...)")
        return self.lookup(self.paths[node.id])

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        return Value(tuple(self.visit(item) for item in node.elts))

    _list = _tuple

    def _ifexp(self, node: ast.IfExp) -> Value:
        test, first, second = (self.visit(x) for x in (node.test, node.body, node.orelse))
        _need_truth(test)
        if first.dimension != second.dimension:
            raise _mixed(first, "or", second)
        return first if test.content else second

    def _boolop(self, node: ast.BoolOp) -> Value:
        values = [_need_truth(self.visit(item)) for item in node.values]
        return Value((all if isinstance(node.op, ast.And) else any)(values), TRUTH)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return Value(not _need_truth(value), TRUTH)
        _need_number(value)
        return value if isinstance(node.op, ast.UAdd) else Value(-value.content, value.dimension)

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = _need_number(self.visit(node.left)), _need_number(self.visit(node.right))
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _PLUS:
            act, sign = _PLUS[type(node.op)]
            if left.dimension != right.dimension:
                raise _mixed(left, sign, right)
            return Value(act(left.content, right.content), left.dimension)
        sign_of_right = 1.0 if isinstance(node.op, ast.Mult) else -1.0
        dimension = _times(left.dimension, right.dimension, sign_of_right)
        return Value(_TIMES[type(node.op)](left.content, right.content), dimension)

    def _compare(self, node: ast.Compare) -> Value:
        left, holds = self.visit(node.left), True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.visit(right_node)
            if isinstance(op, ast.In | ast.NotIn):
                holds &= _found_in(left, right) is isinstance(op, ast.In)
            else:
                act, sign = _COMPARED[type(op)]
                if left.dimension != right.dimension or isinstance(right.content, tuple):
                    raise _mixed(left, sign, right)
                if left.dimension in (TEXT, TRUTH) and not isinstance(op, ast.Eq | ast.NotEq):
                    raise BadValue(f"{_words(left)} has no order", "compare with ==, != or in")
                holds &= act(left.content, right.content)
            left = right
        return Value(holds, TRUTH)

    def _call(self, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        values = [_need_number(self.visit(item)) for item in node.args]
        one_only = name in _OF_NUMBER or name in ("abs", "sqrt")
        if not values or (one_only and len(values) != 1):
            how = "one value" if one_only else "values"
            raise BadValue(
                f"{name}() takes {how}, got {len(values)}", f"such as {name}(n_devices)"
            )
        first = values[0]
        if name == "sqrt":
            return _power(first, Value(0.5))
        if name in _OF_NUMBER:
            if first.dimension != PLAIN:
                fix = "divide by a quantity of its unit first"
                raise BadValue(f"{name}() of {_words(first)}: it takes plain numbers", fix)
            if name.startswith("log") and first.content <= 0:
                raise UnknownValue(f"{name}() of {first.content:g}, which is not above 0")
            return Value(_OF_NUMBER[name](first.content))
        for other in values[1:]:
            if other.dimension != first.dimension:
                raise _mixed(first, f"beside, in {name}(),", other)
        contents = [value.content for value in values]
        if name == "abs":
            return Value(abs(contents[0]), first.dimension)
        return Value(_SAME_UNIT[name](contents), first.dimension)


def _need_number(value: Value) -> Value:
    if value.dimension in (TEXT, TRUTH) or isinstance(value.content, tuple):
        raise BadValue(f"cannot compute with {_words(value)}", "use numbers and quantities")
    return value


def _need_truth(value: Value) -> bool:
    if value.dimension != TRUTH:
        raise BadValue(f"{_words(value)} is neither true nor false", "compare it: ... <= 20 MW")
    return bool(value.content)


def _found_in(left: Value, right: Value) -> bool:
    if not isinstance(right.content, tuple):
        raise BadValue(f"`in` needs a list, got {_words(right)}", "such as in ('a', 'b')")
    for item in right.content:
        if item.dimension != left.dimension:
            raise _mixed(left, "in", item)
    return any(item.content == left.content for item in right.content)


def _power(base: Value, exponent: Value) -> Value:
    _need_number(exponent)
    if exponent.dimension != PLAIN:
        raise BadValue(f"an exponent is a plain number, not {_words(exponent)}")
    if abs(exponent.content) > 100:
        raise BadValue(f"an exponent of {exponent.content:g} is too large", "at most 100")
    if base.content < 0 and exponent.content != int(exponent.content):
        raise UnknownValue(f"a root of {base.content:g}, which is below 0")
    powers = tuple((unit, p * exponent.content) for unit, p in base.dimension)
    nonzero = tuple((unit, p) for unit, p in powers if p)
    return Value(float(base.content) ** exponent.content, nonzero)


def _times(left: Dimension, right: Dimension, sign: float) -> Dimension:
    powers = dict(left)
    for unit, power in right:
        powers[unit] = powers.get(unit, 0.0) + sign * power
    return tuple(sorted((unit, power) for unit, power in powers.items() if power))


def _mixed(left: Value, sign: str, right: Value) -> BadValue:
    named = _NAMES.get(left.dimension, "")
    example = next((u for d, u in _UNIT_EXAMPLES if d in (left.dimension, right.dimension)), "")
    fix = f"a number without unit is a plain number: write it with one, such as {example}"
    bare = PLAIN in (left.dimension, right.dimension) and example
    same = f"both sides need the same unit{f', {named}' if named else ''}"
    return BadValue(
        f"{_words(left)} {sign} {_words(right)}: units do not match", fix if bare else same
    )


_NAMES: Mapping[Dimension, str] = {
    PLAIN: "a plain number",
    TEXT: "a word",
    TRUTH: "a yes or no",
    BYTES: "a size",
    SECONDS: "a time",
    WATTS: "a power",
    BYTES_PER_S: "a bandwidth",
    FLOPS_PER_S: "a compute rate",
}
_UNIT_EXAMPLES = (
    (WATTS, "20 MW"),
    (BYTES, "80 GiB"),
    (BYTES_PER_S, "400 Gb/s"),
    (FLOPS_PER_S, "989 TFLOP/s"),
    (SECONDS, "10 ms"),
)


def _words(value: Value) -> str:
    """Return what a value is, in words."""
    if isinstance(value.content, tuple):
        return "a list"
    if value.dimension in _NAMES:
        return _NAMES[value.dimension]
    return "a quantity in " + dimension_in_words(value.dimension)


# ---- names -----------------------------------------------------------------------------------

_FIGURES: Mapping[str, tuple[Dimension, str]] = {
    "n_devices": (PLAIN, "devices of all pools"),
    "n_params": (PLAIN, "parameters of the model"),
    "active_params": (PLAIN, "parameters that work on a token"),
    "tokens_per_step": (PLAIN, "tokens of an optimizer step"),
    "facility_power": (WATTS, "of all devices at the meter of the building"),
}
"""Figures of a point that are no field, with their meaning."""
_OF_PART: Mapping[str, tuple[str, Dimension]] = {
    "memory": ("memory_bytes", BYTES),
    "hbm_bandwidth": ("hbm_bytes_per_s", BYTES_PER_S),
    "scale_up_bandwidth": ("scale_up_bytes_per_s", BYTES_PER_S),
    "in_switch_bandwidth": ("in_switch_all_reduce_bytes_per_s", BYTES_PER_S),
    "power": ("tdp_w", WATTS),
}
"""Figures of an accelerator by the key of a cluster file."""


def dimension_of_name(name: str) -> Dimension:
    """Return the dimension of a field or figure; `BadValue` with close names where unknown."""
    if name in _FIGURES:
        return _FIGURES[name][0]
    if name in WHOLE_FILES:
        return TEXT
    parts = name.split(".")
    if len(parts) == 1 and (close := close_names(name, _FIGURES, 1)):
        raise BadValue(f"unknown name {name!r}", f"did you mean {close[0]}?")
    try:
        field = field_at(name)
    except BadValue as error:
        figures = ", ".join(_FIGURES)
        fix = error.hint if len(parts) > 1 else f"a field, a value of `let:`, or one of {figures}"
        raise BadValue(error.message.replace("field", "name", 1), fix) from None
    if parts[0] == "search":
        raise BadValue(f"{name} is an option of the search", "constrain fields of the two files")
    if field.parse is None:
        return TEXT if _is_text(name) else TRUTH
    return field.dimension


def _is_text(path: str) -> bool:
    try:
        field_at(path).check(True)
    except BadValue:
        return True
    return False


def value_of_name(name: str, model: ModelInput, cluster: ClusterInput) -> Value:
    """Return a field or figure of a point whose inputs are read; `UnknownValue` if not stated."""
    dimension = dimension_of_name(name)
    content = _content(name, model, cluster)
    if content is None and dimension == TRUTH:
        content = False
    if content is None:
        raise UnknownValue(f"{name} is not stated", "state it in the file, or under `set:`")
    return Value(content, dimension)


def _content(name: str, model: ModelInput, cluster: ClusterInput) -> Any:
    parts = name.split(".")
    pools = cluster.cluster.pools
    if name == "n_devices":
        return sum(pool.n_devices for pool in pools)
    if name in ("n_params", PARAMS):
        return total_params(model.shape, model.job.seq_len)
    if name == "active_params":
        return active_params(model.shape, model.job.seq_len)
    if name == "tokens_per_step":
        return model.job.tokens_per_step
    if name == "facility_power":
        return _facility_power_w(cluster)
    if name == "model":
        return model.shape.name
    if name == "cluster" or name == "name":
        return cluster.cluster.name
    if parts[0] in ("model", "training"):
        return _inside(model.document, parts)
    if parts[0] == "operations":
        return _operations_figure(parts[1], cluster)
    if parts[0] == "pools" and len(parts) > 2:
        index = int(parts[1])
        if index >= len(pools):
            raise UnknownValue(f"{name}: the cluster has {len(pools)} pools")
        return _pool_figure(parts[2:], index, cluster)
    return _inside(cluster.document, parts)


def _inside(data: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(data, list):
            data = data[int(part)] if int(part) < len(data) else None
        else:
            data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _pool_figure(parts: list[str], index: int, cluster: ClusterInput) -> Any:
    """Return a figure of a pool, from the catalogue where the file does not state it."""
    pool, pool_fields = cluster.cluster.pools[index], cluster.document["pools"][index]
    part, key = pool.accelerator, parts[0]
    if key == "accelerator":
        inner = parts[1] if len(parts) > 1 else ""
        if inner in _OF_PART:
            return getattr(part, _OF_PART[inner][0]) or None
        if inner == "peaks":
            return part.peak_flops_per_s.get(parts[2]) if len(parts) > 2 else None
        return _part_name(pool_fields["accelerator"], inner)
    host = pool.host
    figures: dict[str, Any] = {
        "devices": pool.n_devices,
        "nodes": pool.n_nodes,
        "nic_speed": pool.nic.bytes_per_s,
        "nic_latency": pool.nic.ring_hop_s[0],
        "scale_up_latency": pool.scale_up.ring_hop_s[0],
        "sums_in_switch": part.in_switch_all_reduce_bytes_per_s > 0,
        "memory_margin": pool.memory_margin_bytes,
        "power_limit": part.power_limit_w or part.tdp_w or None,
        "price_per_hour": cluster.operations[index].price_per_device_hour,
        "host_memory": host and host.memory_bytes * pool.devices_per_node,
        "host_memory_bandwidth": host and host.memory_bytes_per_s * pool.devices_per_node,
        "host_link": host and host.link_bytes_per_s,
    }
    if key in figures:
        return figures[key]
    result = pool_fields.get(key)
    known_field = field_at(f"pools.{index}.{key}")
    return known_field.base(result) if result is not None else None


def _part_name(named: Any, key: str) -> str:
    """Return the catalogue name of an accelerator; its own where the file gives it one."""
    if not isinstance(named, Mapping):
        return str(named)
    own = named["name"] != f"{named['like']}-custom"
    return str(named["name"] if own and key != "like" else named["like"])


_OPERATIONS = {
    "power_overhead": "power_overhead",
    "pue": "pue",
    "device_mtbf": "device_mtbf_s",
    "restart": "restart_s",
    "checkpoint_bandwidth": "checkpoint_bytes_per_s",
    "checkpoint_time": "checkpoint_s",
}


def _operations_figure(key: str, cluster: ClusterInput) -> Any:
    return getattr(cluster.operations[0], _OPERATIONS[key])


def _facility_power_w(cluster: ClusterInput) -> float | None:
    total = 0.0
    for pool, operations in zip(cluster.cluster.pools, cluster.operations, strict=True):
        power = device_power_w(pool.accelerator, operations)
        if not power:
            return None
        total += power * pool.n_devices
    return total


def sample_value(dimension: Dimension) -> Value:
    """Return a value that stands for any of its dimension, to check units before any point."""
    if dimension == TEXT:
        return Value("", TEXT)
    return Value(True, TRUTH) if dimension == TRUTH else Value(1.0, dimension)
