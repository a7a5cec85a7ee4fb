"""A recipe of Megatron-Bridge read from its syntax tree: never executed, never imported.

A recipe is a function that returns a ConfigContainer. Assignments to its sections are followed,
with constants, arithmetic, `if` on values that are known, and calls of functions whose source lies
in the file or, in a checkout of Megatron-Bridge, where it imports them from. What cannot be
evaluated is listed with its line.
"""

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.bridge.adapters import ARGUMENTS, MODULES, OTHER_WEIGHTS

FindText = Callable[[str], str | None]
"""Returns the text of a file by its path from the folder of the recipe; None where it is not."""
MAX_DEPTH = 24
"""Deepest chain of calls."""
MAX_STEPS = 20_000
"""Most statements that are followed."""
MAX_SIZE = 100_000
"""Longest list or text, and largest product, that arithmetic makes."""
PACKAGE = "megatron.bridge"
DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "uint8": "fp8",
}
"""Number formats of torch as Megatron-LM's flags call them."""


class _Unread:
    """A value that cannot be evaluated here."""

    def __repr__(self) -> str:
        return "not read"


UNREAD = _Unread()


@dataclass(slots=True)
class ConfigSection:
    """A configuration object: its fields by name."""

    kind: str = ""
    """Class, or what it came from."""
    fields: dict[str, Any] = field(default_factory=dict)

    def flat(self, above: str = "") -> dict[str, Any]:
        """Return the fields of it and of those in it by dotted path."""
        out: dict[str, Any] = {}
        for name, value in self.fields.items():
            path = f"{above}.{name}" if above else name
            out |= value.flat(path) if isinstance(value, ConfigSection) else {path: value}
        return out


@dataclass(frozen=True, slots=True)
class NotRead:
    """A statement that was passed over."""

    line: int
    text: str
    why: str
    name: str = ""
    """The field that it sets, where it sets one."""
    source: str = ""
    """File, where it is not the recipe's own."""


@dataclass(slots=True)
class _Module:
    path: str
    tree: ast.Module
    functions: dict[str, ast.FunctionDef]
    imports: dict[str, tuple[str, str]]
    """Module and name there, by name here."""
    constants: dict[str, ast.expr]


class _ReturnedError(Exception):
    """Ends a function."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def parsed_recipe(text: str, source: str) -> ast.Module:
    """Return the tree of a text; `SpecError` where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
        message = f"not valid Python: {getattr(error, 'msg', error)}"
        raise SpecError(InputProblem(message, "", source, line, column)) from None


def recipe_names(tree: ast.Module) -> list[str]:
    """Return the public functions that return a ConfigContainer, in the order of the file."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            returns = ast.unparse(node.returns) if node.returns else ""
            required = len(node.args.args) - len(node.args.defaults)
            if not required and ("ConfigContainer" in returns or node.name.endswith("_config")):
                names.append(node.name)
    return names


Helper = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""What a function of Megatron-Bridge does, for where its source is not at hand."""


class RecipeTree:
    """Evaluates a recipe function."""

    def __init__(
        self, text: str, source: str, find: FindText, helpers: Mapping[str, Helper]
    ) -> None:
        self.not_read: list[NotRead] = []
        self._source, self._find, self._helpers = source, find, helpers
        self._modules: dict[str, _Module | None] = {}
        self._steps = self._depth = 0
        self.main = _module(parsed_recipe(text, source), "")
        parts = posixpath.normpath(source).split("/")
        inside = len(parts) - 1 - parts[::-1].index("megatron") if "megatron" in parts else -1
        # From the folder of the recipe up to the one that holds the package.
        self._up = "../" * (len(parts) - 1 - inside) if inside >= 0 else None

    def config(self, name: str) -> ConfigSection:
        """Return what a recipe function returns; `SpecError` where that is no configuration."""
        value = self._call(self.main, self.main.functions[name], (), {})
        if not isinstance(value, ConfigSection):
            message = f"{name} returns no ConfigContainer that can be read"
            raise SpecError(InputProblem(message, "name a recipe function", self._source))
        return value

    def _imported(self, module: str) -> _Module | None:
        """Return a module of Megatron-Bridge that lies in the same checkout; None without one."""
        if module not in self._modules:
            self._modules[module] = None
            path = module.replace(".", "/")
            if self._up is not None and module.startswith(PACKAGE):
                for tail in (f"{path}.py", f"{path}/__init__.py"):
                    text = self._find(self._up + tail)
                    if text is not None:
                        self._modules[module] = _module(parsed_recipe(text, tail), tail)
                        break
        return self._modules[module]

    def _function(self, module: _Module, name: str) -> tuple[_Module, ast.FunctionDef] | None:
        """Return the source of a function as a module sees it, through imports."""
        for _ in range(MAX_DEPTH):
            if name in module.functions:
                return module, module.functions[name]
            if name not in module.imports:
                return None
            source, name = module.imports[name]
            other = self._imported(source)
            if other is None:
                return None
            module = other
        return None

    def _call(
        self,
        module: _Module,
        node: ast.FunctionDef,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Return what a function returns; None where it only changes its arguments."""
        if self._depth >= MAX_DEPTH:
            return UNREAD
        scope: dict[str, Any] = {}
        names = [argument.arg for argument in node.args.args]
        usual = zip(reversed(names), reversed(node.args.defaults), strict=False)
        only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        defaults = [*usual, *((a.arg, d) for a, d in only if d is not None)]
        scope |= {name: self._value(default, {}, module) for name, default in defaults}
        scope |= dict(zip(names, arguments, strict=False))
        if node.args.kwarg:
            known_names = {*names, *(a.arg for a in node.args.kwonlyargs)}
            rest = {k: v for k, v in keywords.items() if k not in known_names}
            scope[node.args.kwarg.arg] = rest
            keywords = {k: v for k, v in keywords.items() if k in known_names}
        scope |= keywords
        self._depth += 1
        try:
            self._run(node.body, scope, module)
        except _ReturnedError as returned:
            return returned.value
        finally:
            self._depth -= 1
        return None

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any], module: _Module) -> None:
        for node in body:
            self._steps += 1
            if self._steps > MAX_STEPS:
                message = f"does more than {MAX_STEPS:,} statements"
                raise SpecError(InputProblem(message, "name one recipe", self._source))
            self._statement(node, scope, module)

    def _statement(self, node: ast.stmt, scope: dict[str, Any], module: _Module) -> None:
        if isinstance(node, ast.Return):
            raise _ReturnedError(self._value(node.value, scope, module) if node.value else None)
        if isinstance(node, ast.Raise):
            raise _ReturnedError(UNREAD)
        if isinstance(node, ast.Assign):
            value = self._value(node.value, scope, module)
            for target in node.targets:
                self._put(target, value, scope, module)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._put(node.target, self._value(node.value, scope, module), scope, module)
        elif isinstance(node, ast.AugAssign):
            left = self._value(_as_load(node.target), scope, module)
            value = _computed(type(node.op), left, self._value(node.value, scope, module))
            self._put(node.target, value, scope, module)
        elif isinstance(node, ast.Expr):
            self._value(node.value, scope, module)
        elif isinstance(node, ast.If):
            self._branch(node, scope, module)
        elif isinstance(node, ast.ImportFrom):
            module.imports.update(_imports(node))
        elif isinstance(node, ast.Try | ast.With):
            self._run(node.body, scope, module)
        elif isinstance(node, ast.For | ast.While):
            self._pass_over(node, "a loop", module)

    def _branch(self, node: ast.If, scope: dict[str, Any], module: _Module) -> None:
        test = self._value(node.test, scope, module)
        if test is not UNREAD:
            self._run(node.body if test else node.orelse, scope, module)
            return
        self._pass_over(node, f"whether {ast.unparse(node.test)} is not known", module)

    def _pass_over(self, node: ast.stmt, why: str, module: _Module) -> None:
        """List the fields that statements set which are not followed."""
        for inner in ast.walk(node):
            targets = inner.targets if isinstance(inner, ast.Assign) else ()
            for target in targets:
                for part in target.elts if isinstance(target, ast.Tuple) else (target,):
                    if isinstance(part, ast.Attribute):
                        self._skip(inner, why, module, ast.unparse(part))

    def _skip(self, node: ast.AST, why: str, module: _Module, name: str = "") -> None:
        line = getattr(node, "lineno", 0)
        text = ast.unparse(node).split("\n")[0]
        self.not_read.append(NotRead(line, text[:90], why, name, module.path))

    def _put(self, target: ast.expr, value: Any, scope: dict[str, Any], module: _Module) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
            return
        if isinstance(target, ast.Tuple):
            several = value if isinstance(value, list | tuple) else [UNREAD] * len(target.elts)
            for part, one in zip(target.elts, several, strict=False):
                self._put(part, one, scope, module)
            return
        if not isinstance(target, ast.Attribute):
            return
        owner = self._owner(target.value, scope, module)
        if owner is None:
            return
        if _is_unread(value):
            owner.fields.pop(target.attr, None)
            is_peft = owner.kind in MODULES
            name = f"cfg.peft.{target.attr}" if is_peft else ast.unparse(target)
            self._skip(target, "its value is not known", module, name)
            return
        owner.fields[target.attr] = value

    def _owner(
        self, node: ast.expr, scope: dict[str, Any], module: _Module
    ) -> ConfigSection | None:
        """Return the section whose field is set, made where it is not there yet."""
        if isinstance(node, ast.Attribute):
            above = self._owner(node.value, scope, module)
            if above is None:
                return None
            if not isinstance(above.fields.get(node.attr), ConfigSection):
                kind = above.fields.get(node.attr)
                above.fields[node.attr] = ConfigSection(kind if isinstance(kind, str) else "")
            inside: ConfigSection = above.fields[node.attr]
            return inside
        value = self._value(node, scope, module)
        return value if isinstance(value, ConfigSection) else None

    def _value(self, node: ast.expr, scope: Mapping[str, Any], module: _Module) -> Any:
        """Return the value of an expression, `UNREAD` where it cannot be evaluated."""
        evaluate = _EXPRESSIONS.get(type(node))
        return evaluate(self, node, scope, module) if evaluate else UNREAD

    def _name(self, node: ast.Name, scope: Mapping[str, Any], module: _Module) -> Any:
        if node.id in scope:
            return scope[node.id]
        for _ in range(MAX_DEPTH):
            if node.id in module.constants:
                return self._value(module.constants[node.id], {}, module)
            other = self._imported(module.imports.get(node.id, ("", ""))[0])
            if other is None:
                break
            module = other
        return UNREAD

    def _attribute(self, node: ast.Attribute, scope: Mapping[str, Any], module: _Module) -> Any:
        text = ast.unparse(node)
        if text.startswith("torch.") and node.attr in DTYPES:
            return DTYPES[node.attr]
        if text.startswith(("F.", "torch.nn.functional.", "AttnBackend.")):
            return node.attr
        owner = self._value(node.value, scope, module)
        return owner.fields.get(node.attr, UNREAD) if isinstance(owner, ConfigSection) else UNREAD

    def _called(self, node: ast.Call, scope: Mapping[str, Any], module: _Module) -> Any:
        name = ast.unparse(node.func)
        arguments = [self._value(a, scope, module) for a in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope, module)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords |= value
        if name in _BUILT_IN:
            return _BUILT_IN[name](arguments)
        if name in ALWAYS_HELPED and name in self._helpers:
            return self._helpers[name](arguments, keywords)
        if isinstance(node.func, ast.Name):
            source = self._function(module, name)
            if source is not None:
                return self._call(*source, arguments, keywords)
        return self._outside(node, name, arguments, keywords, scope, module)

    def _outside(self, node: ast.Call, name: str, arguments: list[Any], *rest: Any) -> Any:
        """Return what a call of something whose source is not at hand comes to."""
        keywords, scope, module = rest
        short = name.rsplit(".", 1)[-1]
        if short in self._helpers:
            return self._helpers[short](arguments, keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value, scope, module)
            if isinstance(owner, ConfigSection):
                return owner  # of a provider: get_model_config(), finalize()
        if short in MODULES or short == OTHER_WEIGHTS:
            by_place = dict(zip(ARGUMENTS, arguments, strict=False))
            return self._adapters(node, short, {**by_place, **keywords}, module)
        if _SECTION.fullmatch(short):
            for field_name, value in keywords.items():
                if value is UNREAD:
                    self._skip(node, "its value is not known", module, f"{short}.{field_name}")
            fields = {k: v for k, v in keywords.items() if v is not UNREAD}
            return ConfigSection(short, fields)
        if short.endswith("_config") or any(isinstance(a, ConfigSection) for a in arguments):
            self._skip(node, "its source is not beside this file", module)
        return ConfigSection(short, dict(keywords)) if short.endswith("_config") else UNREAD

    def _adapters(
        self, node: ast.Call, kind: str, given: Mapping[str, Any], module: _Module
    ) -> ConfigSection:
        """Return the section `peft`; arguments that are not known are listed under its name."""
        known = {name: value for name, value in given.items() if not _is_unread(value)}
        for name in given.keys() - known.keys():
            self._skip(node, "its value is not known", module, f"cfg.peft.{name}")
        return ConfigSection(kind, known)

    def _binary(self, node: ast.BinOp, scope: Mapping[str, Any], module: _Module) -> Any:
        left, right = (self._value(x, scope, module) for x in (node.left, node.right))
        return _computed(type(node.op), left, right)

    def _unary(self, node: ast.UnaryOp, scope: Mapping[str, Any], module: _Module) -> Any:
        value = self._value(node.operand, scope, module)
        if value is UNREAD:
            return UNREAD
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(value, int | float) else UNREAD

    def _boolean(self, node: ast.BoolOp, scope: Mapping[str, Any], module: _Module) -> Any:
        is_or, unread = isinstance(node.op, ast.Or), False
        value: Any = UNREAD
        for part in node.values:
            value = self._value(part, scope, module)
            if value is UNREAD:
                unread = True
            elif bool(value) == is_or:
                return UNREAD if unread and not isinstance(value, bool) else value
        return UNREAD if unread else value

    def _compared(self, node: ast.Compare, scope: Mapping[str, Any], module: _Module) -> Any:
        left = self._value(node.left, scope, module)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self._value(item, scope, module)
            compare = _COMPARISONS.get(type(op))
            if compare is None or left is UNREAD or right is UNREAD:
                return UNREAD
            try:
                if not compare(left, right):
                    return False
            except TypeError:
                return UNREAD
            left = right
        return True

    def _either(self, node: ast.IfExp, scope: Mapping[str, Any], module: _Module) -> Any:
        test = self._value(node.test, scope, module)
        if test is UNREAD:
            return UNREAD
        return self._value(node.body if test else node.orelse, scope, module)

    def _listed(
        self, node: ast.List | ast.Tuple | ast.Set, scope: Mapping[str, Any], module: _Module
    ) -> Any:
        items: list[Any] = []
        for part in node.elts:
            star = isinstance(part, ast.Starred)
            value = self._value(
                part.value if isinstance(part, ast.Starred) else part, scope, module
            )
            if star and not isinstance(value, list | tuple):
                return UNREAD
            items += value if star else [value]
        return tuple(items) if isinstance(node, ast.Tuple) else items

    def _mapped(self, node: ast.Dict, scope: Mapping[str, Any], module: _Module) -> Any:
        out: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self._value(item, scope, module)
            if key is None:
                out |= value if isinstance(value, dict) else {}
                continue
            name = self._value(key, scope, module)
            if isinstance(name, str | int | tuple | None):
                out[name] = value
        return out

    def _item(self, node: ast.Subscript, scope: Mapping[str, Any], module: _Module) -> Any:
        owner = self._value(node.value, scope, module)
        key = self._value(node.slice, scope, module)
        try:
            return owner[key] if isinstance(owner, list | tuple | dict) else UNREAD
        except (LookupError, TypeError):
            return UNREAD


_EXPRESSIONS: dict[type, Any] = {
    ast.Constant: lambda self, node, scope, module: node.value,
    ast.Name: RecipeTree._name,
    ast.Attribute: RecipeTree._attribute,
    ast.Call: RecipeTree._called,
    ast.BinOp: RecipeTree._binary,
    ast.UnaryOp: RecipeTree._unary,
    ast.BoolOp: RecipeTree._boolean,
    ast.Compare: RecipeTree._compared,
    ast.IfExp: RecipeTree._either,
    ast.List: RecipeTree._listed,
    ast.Tuple: RecipeTree._listed,
    ast.Set: RecipeTree._listed,
    ast.Dict: RecipeTree._mapped,
    ast.Subscript: RecipeTree._item,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _is_unread(value: Any) -> bool:
    """Tell whether a value, or one in it, could not be evaluated."""
    return value is UNREAD or (isinstance(value, list | tuple) and UNREAD in value)


_SECTION = re.compile(r"(_?[A-Z]\w*)(Config|Container|Provider\w*)")
"""Classes whose instances are sections of a configuration."""
ALWAYS_HELPED = ("apply_flex_dispatcher_backend",)
"""Functions that ask the machine they run on: their source says nothing here."""


def _computed(op: type, left: Any, right: Any) -> Any:
    """Return the result of an operator, `UNREAD` where it has none that is small."""
    compute = _ARITHMETIC.get(op)
    if compute is None or UNREAD in (left, right):
        return UNREAD
    sizes = [len(x) if isinstance(x, list | tuple | str) else x for x in (left, right)]
    if not all(isinstance(x, int | float) and abs(x) <= 1e15 for x in sizes):
        return UNREAD
    plain = all(isinstance(x, int | float) for x in (left, right))
    if op is ast.Mult and not plain and sizes[0] * sizes[1] > MAX_SIZE:
        return UNREAD
    if op is ast.Mod and not plain:
        return UNREAD
    try:
        return compute(left, right)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError):
        return UNREAD


def _getattr(arguments: list[Any]) -> Any:
    if len(arguments) < 2 or not isinstance(arguments[0], ConfigSection):
        return UNREAD
    missing = arguments[2] if len(arguments) > 2 else UNREAD
    return arguments[0].fields.get(str(arguments[1]), missing)


def _hasattr(arguments: list[Any]) -> Any:
    named = len(arguments) == 2 and isinstance(arguments[0], ConfigSection)
    # What a class has beside what is set is not known.
    return True if named and arguments[1] in arguments[0].fields else UNREAD


def _sized(compute: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    def call(arguments: list[Any]) -> Any:
        if len(arguments) != 1 or arguments[0] is UNREAD:
            return UNREAD
        try:
            return compute(arguments[0])
        except (TypeError, ValueError):
            return UNREAD

    return call


_BUILT_IN: dict[str, Callable[[list[Any]], Any]] = {
    "getattr": _getattr,
    "hasattr": _hasattr,
    "isinstance": lambda arguments: (
        isinstance(arguments[0], str)
        if arguments and not isinstance(arguments[0], _Unread)
        else UNREAD
    ),
    "len": _sized(len),
    "list": _sized(list),
    "int": _sized(int),
    "str": _sized(str),
    "bool": _sized(bool),
    "max": lambda arguments: UNREAD if UNREAD in arguments else max(arguments, default=UNREAD),
    "min": lambda arguments: UNREAD if UNREAD in arguments else min(arguments, default=UNREAD),
}
"""Functions of Python that recipes call; `isinstance` is asked of texts alone."""


def _as_load(node: ast.expr) -> ast.expr:
    loaded = ast.parse(ast.unparse(node), mode="eval").body
    return ast.copy_location(loaded, node)


def _imports(node: ast.ImportFrom) -> dict[str, tuple[str, str]]:
    module = node.module or ""
    return {alias.asname or alias.name: (module, alias.name) for alias in node.names}


def _module(tree: ast.Module, path: str) -> _Module:
    functions: dict[str, ast.FunctionDef] = {}
    imports: dict[str, tuple[str, str]] = {}
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            imports |= _imports(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            constants[node.target.id] = node.value
    return _Module(path, tree, functions, imports, constants)
