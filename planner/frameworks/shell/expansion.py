"""Words of a bash script: expansion of variables and arithmetic, splitting, quotes."""

import fnmatch
import re
from collections.abc import Callable, Iterator
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.shell.marks import mark, unresolved

Value = str | list[str]
Node = Any
"""A node of tree-sitter's tree; the library has no types for its bash nodes."""


MAX_EXPANDED = 10_000_000
"""Characters of expansions after which a script is refused: values can grow by doubling."""
MAX_TRIMMED = 20_000
"""Longest value that is trimmed by a pattern, which looks at every end of it."""


def _grows() -> SpecError:
    message = f"its variables expand to more than {MAX_EXPANDED:,} characters"
    return SpecError(InputProblem(message, "write the command out"))


def parser() -> Any:
    """Return tree-sitter's parser of bash."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class Words:
    """Expands words under the variables of a script; nodes belong to `source`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.variables: dict[str, Value] = dict(env)
        self.given = set(env)
        self.overwritten: set[str] = set()
        self.arguments: list[str] | None = None
        self.source = b""
        self.quoted_default = False
        self.expanded = 0

    def put(self, name: str, value: Value) -> None:
        """Set a variable."""
        if name in self.given and self.variables.get(name) != value:
            self.overwritten.add(name)
        self.variables[name] = value

    def text_of(self, node: Node) -> str:
        """Return the source text of a node."""
        return self.source[node.start_byte : node.end_byte].decode()

    def fields(self, node: Node) -> list[str]:
        """Return the words that a node becomes: expanded, then split where it is not quoted."""
        done: list[str] = []
        current: str | None = None
        if node.type == "comment":
            return done
        for text, kind in self._pieces(node, quoted=False):
            if kind == "item":  # one more word of "${ARRAY[@]}" begins
                if current is not None:
                    done.append(current)
                current = text
            elif kind == "split":
                parts = text.split()
                if text[:1].isspace() and current is not None:
                    done.append(current)
                    current = None
                for i, part in enumerate(parts):
                    if i and current is not None:
                        done.append(current)
                        current = None
                    current = (current or "") + part
                if parts and text[-1:].isspace() and current is not None:
                    done.append(current)
                    current = None
            elif kind in ("quoted", "first item") or text:
                current = (current or "") + text
        if current is not None:
            done.append(current)
        return done

    def text(self, node: Node) -> str:
        """Return what a node becomes as one text, as on the right of an assignment."""
        pieces = self._pieces(node, quoted=False)
        return "".join(f" {text}" if kind == "item" else text for text, kind in pieces)

    def _pieces(self, node: Node, quoted: bool) -> Iterator[tuple[str, str]]:
        """Yield parts of a word with their kind: literal, quoted, split, first item or item.

        Only those of kind split are cut at blanks; every item but the first begins a word.
        """
        kind = node.type
        if kind in ("string", "translated_string"):
            pieces = list(self._string(node))
            if not any("[@]" in self.text_of(c) or "$@" in self.text_of(c) for c in node.children):
                yield "", "quoted"
            yield from (piece for piece in pieces if piece[0] or "item" in piece[1])
        elif kind == "raw_string":
            yield self.text_of(node)[1:-1], "quoted"
        elif kind == "ansi_c_string":
            yield _unescaped(self.text_of(node)[2:-1]), "quoted"
        elif kind == "concatenation" or kind == "command_name":
            for child in node.children:
                yield from self._pieces(child, quoted)
        elif kind in ("simple_expansion", "expansion"):
            for piece in self._expanded(node, quoted):
                self.expanded += len(piece[0])
                if self.expanded > MAX_EXPANDED:
                    raise _grows()
                yield piece
        elif kind == "arithmetic_expansion":
            yield self._arithmetic_expansion(node), "quoted"
        elif kind in ("command_substitution", "process_substitution"):
            yield self._substituted(node), "quoted" if quoted else "split"
        elif kind == "array":
            tokens = [word for child in node.named_children for word in self.fields(child)]
            for i, word in enumerate(tokens):
                yield word, "item" if i else "first item"
        else:
            yield re.sub(r"\\(\r?\n|.)", _bare_escape, self.text_of(node), flags=re.S), "literal"

    def _string(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield the parts between double quotes; gaps between the nodes are literal text."""
        start, end = node.start_byte, node.end_byte - 1
        begin = start + self.source[start:end].find(b'"') + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            yield self._quoted_text(begin, self._begin(child)), "quoted"
            yield from self._pieces(child, quoted=True)
            begin = child.end_byte
        yield self._quoted_text(begin, end), "quoted"

    def _begin(self, node: Node) -> int:
        """Return where an expansion begins: its node may take in the blanks before it."""
        text = self.text_of(node)
        match = re.search(r"[$`]", text)
        blanks = text[: match.start()] if match else ""
        return int(node.start_byte) + len(blanks.encode())

    def _quoted_text(self, start: int, end: int) -> str:
        raw = self.source[start:end].decode()
        return re.sub(r'\\(\r?\n|[$"\\`])', _bare_escape, raw)

    def _joined(self, node: Node) -> str:
        """Return a heredoc's text with its expansions."""
        out, begin = "", node.start_byte
        for child in node.named_children:
            if child.type == "heredoc_content":
                continue
            out += self._quoted_text(begin, self._begin(child))
            out += "".join(text for text, _ in self._pieces(child, quoted=True))
            begin = child.end_byte
        return out + self._quoted_text(begin, node.end_byte)

    def _expanded(self, node: Node, quoted: bool) -> Iterator[tuple[str, str]]:
        kind = "quoted" if quoted else "split"
        if node.type == "simple_expansion":
            name = self.text_of(node).partition("$")[2]  # blanks may stand before it
            if name in ("@", "*"):
                yield from self._items(self._positional(), name, quoted)
                return
            yield self.value(name), kind
            return
        self.quoted_default = False
        parameter = self._parameter(node)
        kind = "quoted" if self.quoted_default else kind
        if isinstance(parameter, list):
            yield from self._items(parameter, "@" if "[@]" in self.text_of(node) else "*", quoted)
        else:
            yield parameter, kind

    def _items(self, items: list[str], name: str, quoted: bool) -> Iterator[tuple[str, str]]:
        if quoted and name == "@":
            for i, item in enumerate(items):
                yield item, "item" if i else "first item"
        else:
            yield " ".join(items), "quoted" if quoted else "split"

    def _positional(self) -> list[str]:
        return list(self.arguments or [])

    def value(self, name: str) -> str:
        """Return the text of a variable; its mark when the script does not set it."""
        if name.isdecimal() and name != "0":
            arguments = self.arguments or []
            if int(name) <= len(arguments):
                return arguments[int(name) - 1]
            if name in self.variables:  # given from outside
                value = self.variables[name]
                return value if isinstance(value, str) else " ".join(value)
            return mark(name)
        if name == "#":
            return str(len(self.arguments or []))
        result = self.variables.get(name)
        if result is None:
            return mark(name)
        if isinstance(result, list):
            return result[0] if result else ""
        return result

    def _subscript(self, node: Node) -> tuple[str, str]:
        name = self.text_of(node.children[0])
        inner = node.named_children[1] if len(node.named_children) > 1 else None
        index = "@" if inner is None else self.text(inner)
        value = self.variables.get(index)
        if isinstance(value, str) and value.isdecimal():
            index = value
        return name, index

    def _parameter(self, node: Node) -> Value:
        """Return `${...}`: the variable with its operator applied."""
        children = [c for c in node.children if self.text_of(c).strip() not in ("${", "}")]
        length = bool(children) and children[0].type == "#" and len(children) > 1
        indirect = bool(children) and children[0].type == "!" and len(children) > 1
        children = children[1:] if length or indirect else children
        if not children:
            return ""
        target, rest = children[0], children[1:]
        value: Value | None
        if target.type == "subscript":
            name, index = self._subscript(target)
            value = self._item(name, index)
        else:
            name = self.text_of(target)
            if name in ("@", "*"):
                value = self._positional()
            elif name.isdecimal() or name in self.variables:
                value = self.value(name)
                value = None if value == mark(name) else value
            else:
                value = None
        if indirect and isinstance(value, str):
            name, value = value, self.variables.get(value)
        if length:
            return str(len(value)) if value is not None else "0"
        operator = rest[0].type if rest else ""
        if operator.startswith("/") and value is not None:
            return self._replaced(value, node)
        return self._applied(name, value, operator, rest[1:])

    def _replaced(self, value: Value, node: Node) -> Value:
        """Return `${X/p/new}` and its kin; a slash in the pattern is escaped."""
        inner = re.sub(r"^\s*\$\{!?[\w@*]+(\[[^\]]*\])?", "", self.text_of(node))[:-1]
        parts = [re.sub(r"\\(.)", r"\1", x) for x in re.findall(r"((?:\\.|[^/\\])*)/?", inner)]
        operator = "/"
        if inner.startswith("//"):
            operator, parts = "//", parts[1:]
        elif inner[1:2] in ("#", "%"):
            operator = f"/{inner[1]}"
            parts[1] = parts[1][1:]
        pattern, new = (*parts[1:], "", "")[:2]
        new = self._under_variables(new)
        if isinstance(value, list):
            return [_substitute(item, operator, pattern, new) for item in value]
        return _substitute(value, operator, pattern, new)

    def _under_variables(self, text: str) -> str:
        """Return a text with plain `$X` and `${X}` in it expanded."""
        return re.sub(r"\$\{?(\w+)\}?", lambda m: self.value(m.group(1)), text)

    def _item(self, name: str, index: str) -> Value | None:
        value = self.variables.get(name)
        if index in ("@", "*"):
            if value is None:
                return []
            return list(value) if isinstance(value, list) else [value]
        items = value if isinstance(value, list) else [value] if value is not None else []
        if index.lstrip("-").isdecimal() and -len(items) <= int(index) < len(items):
            return items[int(index)]
        return None

    def _applied(
        self, name: str, value: Value | None, operator: str, operand: list[Node]
    ) -> Value:
        empty = value is None or not value
        if operator in (":-", "-", ":=", "="):
            if empty if operator.startswith(":") else value is None:
                default = "".join(self.text(c) for c in operand)
                kinds = {c.type for c in operand}
                self.quoted_default = bool(kinds) and kinds <= {"string", "raw_string"}
                if "=" in operator:
                    self.put(name, default)
                return default
            return value if value is not None else ""
        if operator in (":+", "+"):
            absent = empty if operator.startswith(":") else value is None
            return "" if absent else "".join(self.text(c) for c in operand)
        if value is None:
            return mark(name)
        if operator in (":?", "?", ""):
            return value
        if isinstance(value, list):
            return [self._changed(item, operator, operand) for item in value]
        return self._changed(value, operator, operand)

    def _changed(self, value: str, operator: str, operand: list[Node]) -> str:
        """Return a text cut, replaced or put into another case, as `${X%.py}` does."""
        if operator in ("#", "##", "%", "%%"):
            return _trimmed(value, operator, self.text(operand[0]) if operand else "")
        if operator in ("^^", ",,"):
            return value.upper() if operator == "^^" else value.lower()
        if operator == ":":
            numbers = [
                int(p) for p in (self.text(c) for c in operand) if p.lstrip("-").isdecimal()
            ]
            begin = numbers[0] if numbers else 0
            return value[begin : begin + numbers[1]] if len(numbers) > 1 else value[begin:]
        return value

    def printed(self, tokens: list[str]) -> str | None:
        """Return what a function of the script prints; None where there is none."""
        return None

    def _substituted(self, node: Node) -> str:
        """Return the output of echo, expr or a function of the script; else a mark."""
        text = self.text_of(node).strip().lstrip("\\ \n")
        if text.startswith("$((") and text.endswith("))"):
            return self._computed(text[3:-2])  # arithmetic, where the grammar takes a subshell
        inner = [c for c in node.named_children if c.type != "comment"]
        if len(inner) == 1 and inner[0].type == "command":
            tokens = [w for c in inner[0].named_children for w in self.fields(c)]
            if tokens[:1] == ["echo"] and len(tokens) > 1:
                return " ".join(tokens[1:])
            if tokens[:1] == ["expr"] and len(tokens) > 1:
                text = "".join("*" if w == r"\*" else w for w in tokens[1:])
                return self._computed(text)
            printed = self.printed(tokens) if tokens else None
            if printed is not None:
                return printed
        if len(inner) == 1 and inner[0].type == "pipeline":
            parts = inner[0].named_children
            last = self.text_of(parts[-1]).split()
            if last[:1] == ["bc"] and self.text_of(parts[0]).startswith("echo"):
                tokens = [w for c in parts[0].named_children for w in self.fields(c)]
                return self._computed("".join(tokens[1:]))
        return mark(" ".join(text.replace(",", ";").split()))

    # ---- arithmetic

    def _arithmetic_expansion(self, node: Node) -> str:
        value = "0"
        for child in node.named_children:
            value = self.arithmetic(child)
        return value

    def _computed(self, text: str) -> str:
        """Return an arithmetic expression given as text."""
        names = unresolved(text)
        if names:
            return mark(",".join(names))
        before = self.source
        self.source = f"(({text}))".encode()
        try:
            root = parser().parse(self.source).root_node
            results = [c for n in root.children for c in n.named_children]
            is_whole = bool(results) and self.text_of(results[0]) == text.strip()
            if is_whole and results[0].type in ("word", "concatenation", "variable_name"):
                return mark(text.strip())  # no expression: it would be read for ever
            return self.arithmetic(results[0]) if results else "0"
        finally:
            self.source = before

    def arithmetic(self, node: Node) -> str:
        """Return the value of an arithmetic node as text, or the mark of what it depends on."""
        kind = node.type
        if kind == "parenthesized_expression":
            return self.arithmetic(node.named_children[0])
        if kind in ("variable_name", "word") and self.text_of(node).isidentifier():
            return self._number(self.value(self.text_of(node)))
        if kind == "variable_name":  # the grammar's name for some numbers, such as 0x0f
            return self._number(self.text_of(node))
        if kind == "binary_expression":
            return self._arithmetic_binary(node)
        if kind in ("unary_expression", "postfix_expression"):
            return self._arithmetic_unary(node)
        if kind == "ternary_expression":
            condition, first, second = node.named_children
            value = self.arithmetic(condition)
            if unresolved(value):
                return value
            return self.arithmetic(first if value != "0" else second)
        return self._number(self.text(node))

    def _number(self, text: str) -> str:
        """Return a whole number as text; names inside are looked up."""
        names = unresolved(text)
        if names:
            return mark(",".join(names))
        text = text.strip()
        if not text:
            return "0"
        if re.fullmatch(r"[-+]?\d{1,40}", text):
            return str(_in_64_bits(int(text)))
        if re.fullmatch(r"0[xX][0-9a-fA-F]{1,40}", text):
            return str(_in_64_bits(int(text, 16)))
        if re.fullmatch(r"[-+]?\w{41,}", text):
            return mark("a number beyond 64 bits")
        if text.isidentifier():
            return self._number(self.value(text)) if text in self.variables else mark(text)
        if re.fullmatch(r"[\w\s()+*/%-]+", text):
            return self._computed(text)
        return mark(text)

    def _arithmetic_unary(self, node: Node) -> str:
        operand = node.named_children[0]
        sign = next(self.text_of(c) for c in node.children if not c.is_named or c != operand)
        value = self.arithmetic(operand)
        if unresolved(value):
            return value
        number = int(value)
        if sign in ("++", "--"):
            after = number + (1 if sign == "++" else -1)
            self.put(self.text_of(operand), str(after))
            return value if node.type == "postfix_expression" else str(after)
        results = {"-": -number, "+": number, "!": int(not number), "~": ~number}
        return str(results.get(sign, number))

    def _arithmetic_binary(self, node: Node) -> str:
        left, sign, right = node.children[0], self.text_of(node.children[1]), node.children[2]
        if sign.endswith("=") and sign not in ("==", "!=", "<=", ">="):
            value = self.arithmetic(right)
            name = self.text_of(left)
            if sign != "=":
                value = _calculated(self._number(self.value(name)), sign[:-1], value)
            self.put(name, value)
            return value
        return _calculated(self.arithmetic(left), sign, self.arithmetic(right))


def _bare_escape(match: re.Match[str]) -> str:
    return "" if match.group(1).endswith("\n") else match.group(1)


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape")


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Return `${X#p}`, `${X##p}`, `${X%p}` or `${X%%p}`."""
    if len(text) > MAX_TRIMMED:
        raise _grows()
    cuts = range(len(text) + 1)
    greedy = len(operator) == 2
    if operator[0] == "#":
        ends = [i for i in cuts if fnmatch.fnmatchcase(text[:i], pattern)]
        return text[(max(ends) if greedy else min(ends)) :] if ends else text
    starts = [i for i in cuts if fnmatch.fnmatchcase(text[i:], pattern)]
    return text[: (min(starts) if greedy else max(starts))] if starts else text


def _substitute(text: str, operator: str, pattern: str, new: str) -> str:
    """Return `${X/p/new}`, `${X//p/new}`, `${X/#p/new}` or `${X/%p/new}`."""
    expression = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    if operator in ("/#", "/%"):
        expression = rf"\A{expression}" if operator == "/#" else rf"{expression}\Z"
    elif not pattern:
        return text
    return re.sub(expression, lambda _: new, text, count=operator != "//")


def _calculated(left: str, sign: str, right: str) -> str:
    """Return one arithmetic operation of bash on whole numbers given as text."""
    names = (*unresolved(left), *unresolved(right))
    if names:
        return mark(",".join(dict.fromkeys(names)))
    a, b = int(left), int(right)
    if sign in ("/", "%") and b == 0:
        return mark("a division by zero")
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    if sign == "**" and not 0 <= b <= 64:
        return mark("a power")
    results: dict[str, Callable[[], int]] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: quotient,
        "%": lambda: a - b * quotient,
        "**": lambda: a**b,
        "<<": lambda: a << (b & 63),
        ">>": lambda: a >> (b & 63),
        "&": lambda: a & b,
        "|": lambda: a | b,
        "^": lambda: a ^ b,
        "==": lambda: int(a == b),
        "!=": lambda: int(a != b),
        "<": lambda: int(a < b),
        "<=": lambda: int(a <= b),
        ">": lambda: int(a > b),
        ">=": lambda: int(a >= b),
        "&&": lambda: int(bool(a and b)),
        "||": lambda: int(bool(a or b)),
    }
    if sign not in results:
        return mark(f"an operator {sign}")
    return str(_in_64_bits(results[sign]()))


def _in_64_bits(number: int) -> int:
    """Return a number as bash holds it: it wraps."""
    return (number + 2**63) % 2**64 - 2**63
