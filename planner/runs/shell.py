"""Reads bash scripts without running them: assignments, arrays, conditions, functions, heredocs.

The syntax tree comes from tree-sitter's grammar of bash. What the script would be told from
outside (positional arguments, variables that it does not set, output of commands) stays in the
text as a mark with its name, so that a value that depends on it can be asked for by name. Nothing
is executed and no file is read but those that the caller's `read_file` gives (for `source`).
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"
"""Enclose the name of something that the script does not say, inside a text."""
_SHIFT = 0xF0000
"""Added to the characters of such a name: none of them then means anything to bash."""
_MARK = re.compile(f"{MARK_OPEN}([^{MARK_CLOSE}]*){MARK_CLOSE}")
COMMAND_OUTPUT = "$("
"""Start of the name of a mark that stands for the output of a command."""
MAX_STEPS = 200_000
"""Statements after which reading stops: a script cannot keep the reader busy for ever."""
MAX_DEPTH = 20
"""Deepest nesting of function calls, `eval` and `bash -c`."""
MAX_ROUNDS = 1000
"""Most rounds of one loop."""

Value = str | list[str]
Node = Any
"""A node of tree-sitter's tree; the library has no types for its bash nodes."""


def mark(name: str) -> str:
    """Return the mark of something that the script does not say."""
    hidden = "".join(chr(ord(c) + _SHIFT) if ord(c) < 0x10000 else c for c in name)
    return f"{MARK_OPEN}{hidden}{MARK_CLOSE}"


def unresolved(text: str) -> tuple[str, ...]:
    """Return the names that a text still depends on, each once, in order."""
    names = [name for found in _MARK.findall(text) for name in _name(found).split(",")]
    return tuple(dict.fromkeys(names))


def shown(text: str) -> str:
    """Return a text with its marks as bash would write them: `${TP}`, `$(hostname)`."""

    def plain(found: re.Match[str]) -> str:
        name = _name(found.group(1))
        return name if name.startswith(COMMAND_OUTPUT) else f"${{{name}}}"

    return _MARK.sub(plain, text)


def _name(hidden: str) -> str:
    return "".join(chr(ord(c) - _SHIFT) if ord(c) >= _SHIFT else c for c in hidden)


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it would be started."""

    words: tuple[str, ...]
    """Expanded and split; may hold marks."""
    env: Mapping[str, str]
    """Variables that are exported at this point or set in front of the command."""
    line: int


@dataclass(slots=True)
class Script:
    """What a script says."""

    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Text that it writes into files (`cat <<EOF > FILE`), by name as written."""
    variables: dict[str, Value] = field(default_factory=dict)
    """At its end."""
    notes: list[str] = field(default_factory=list)
    ignored_env: tuple[str, ...] = ()
    """Given variables that the script overwrites."""


class _Stop(Exception):
    """The script exits."""


class _Return(Exception):
    """A function returns."""


def read_script(
    text: str,
    env: Mapping[str, str] | None = None,
    read_file: Callable[[str], str | None] | None = None,
) -> Script:
    """Return the commands and files of a script, under the variables that are given.

    `read_file` returns the text of a file that the script sources, or None.
    """
    reader = _Reader(dict(env or {}), read_file or (lambda name: None))
    reader.run_text(text)
    out = reader.script
    out.variables = dict(reader.variables)
    out.ignored_env = tuple(name for name in (env or {}) if name in reader.overwritten)
    return out


def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class _Reader:
    """Walks the tree; one per script."""

    def __init__(self, env: dict[str, str], read_file: Callable[[str], str | None]) -> None:
        self.variables: dict[str, Value] = dict(env)
        self.exported: set[str] = set(env)
        self.overwritten: set[str] = set()
        self.given = set(env)
        self.functions: dict[str, tuple[Node, bytes]] = {}
        self.arguments: list[str] | None = None
        self.script = Script()
        self.read_file = read_file
        self.source = b""
        self.depth = 0
        self.steps = 0
        self.first_line = 1

    # ---- statements

    def run_text(self, text: str, line: int = 1) -> None:
        """Read a script or the argument of `bash -c`; `line` is where it begins."""
        if self.depth >= MAX_DEPTH:
            return
        before = self.source, self.first_line
        self.source, self.first_line = text.encode(), line
        self.depth += 1
        try:
            self.run(_parser().parse(self.source).root_node)
        except _Stop:
            pass
        finally:
            self.depth -= 1
            self.source, self.first_line = before

    def run(self, node: Node) -> bool | None:
        """Read one statement; return what its exit status would be, None where unknown."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _Stop
        name = node.type
        handler = getattr(self, f"_{name}", None)
        if handler is not None:
            return handler(node)  # type: ignore[no-any-return]
        if name in ("comment", "heredoc_body") or not node.is_named:
            return True
        return self._children(node)

    def _children(self, node: Node) -> bool | None:
        status: bool | None = True
        for child in node.children:
            if child.is_named:
                status = self.run(child)
        return status

    def _variable_assignment(self, node: Node) -> bool:
        self.assign(node)
        return True

    def _variable_assignments(self, node: Node) -> bool:
        for child in node.named_children:
            self.assign(child)
        return True

    def assign(self, node: Node) -> str:
        """Read `NAME=value`, `NAME+=value`, `NAME=(...)`; return the name."""
        target, operator = node.children[0], node.children[1]
        value = node.children[2] if len(node.children) > 2 else None
        name = self.text_of(target)
        adds = self.text_of(operator) == "+="
        if target.type == "subscript":
            self._assign_item(target, self.text(value) if value is not None else "")
            return name
        new: Value = ""
        if value is not None and value.type == "array":
            new = [word for child in value.named_children for word in self.fields(child)]
        elif value is not None:
            new = self.text(value)
        if adds:
            old = self.variables.get(name, "")
            if isinstance(old, list):
                new = [*old, *(new if isinstance(new, list) else [new])]
            elif isinstance(new, list):
                new = [*([old] if old else []), *new]
            else:
                new = old + new
        self.put(name, new)
        return name

    def put(self, name: str, value: Value) -> None:
        """Set a variable."""
        if name in self.given and self.variables.get(name) != value:
            self.overwritten.add(name)
        self.variables[name] = value

    def _assign_item(self, target: Node, value: str) -> None:
        name, index = self._subscript(target)
        held = self.variables.get(name, [])
        items = list(held) if isinstance(held, list) else [held]
        if index.isdigit() and int(index) <= len(items):
            items[int(index) : int(index) + 1] = [value]
            self.put(name, items)

    def _declaration_command(self, node: Node) -> bool:
        exports = node.children[0].type == "export" or any(
            "x" in self.text_of(c) for c in node.children if self.text_of(c).startswith("-")
        )
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                name = self.assign(child)
            elif child.type == "variable_name":
                name = self.text_of(child)
            else:
                continue
            if exports:
                self.exported.add(name)
        return True

    def _unset_command(self, node: Node) -> bool:
        for child in node.named_children:
            name = self.text_of(child)
            self.variables.pop(name, None)
            self.exported.discard(name)
        return True

    def _function_definition(self, node: Node) -> bool:
        name = self.text_of(node.child_by_field_name("name"))
        self.functions[name] = (node.child_by_field_name("body"), self.source)
        return True

    def _compound_statement(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            value: str = "0"
            for child in node.named_children:
                value = self.arithmetic(child)
            return None if unresolved(value) else value != "0"
        return self._children(node)

    def _list(self, node: Node) -> bool | None:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        status = self.run(left)
        known = status is not None or left.type not in ("test_command", "list")
        if operator == "&&" and status is not False:
            return self.run(right) if known else None
        if operator == "||" and status is False:
            return self.run(right)
        return status

    def _negated_command(self, node: Node) -> bool | None:
        status = self.run(node.named_children[-1])
        return None if status is None else not status

    def _pipeline(self, node: Node) -> bool | None:
        status: bool | None = True
        for child in node.named_children:
            status = self.run(child)
        return status

    def _if_statement(self, node: Node) -> bool:
        branches: list[tuple[list[Node], list[Node]]] = [([], [])]
        otherwise: list[Node] = []
        body = False
        for child in node.children:
            if child.type == "then":
                body = True
            elif child.type == "elif_clause":
                branches.append(self._clause(child))
            elif child.type == "else_clause":
                otherwise = [c for c in child.children if c.is_named]
            elif child.is_named:
                branches[0][body].append(child)
        for conditions, statements in branches:
            status: bool | None = True
            for condition in conditions:
                status = self.run(condition)
            if status is None:
                what = " ".join(self.text_of(conditions[-1]).split())
                self.note(node, f"the condition `{what}` is taken as not met")
            if status:
                self.run_all(statements)
                return True
        self.run_all(otherwise)
        return True

    def _clause(self, node: Node) -> tuple[list[Node], list[Node]]:
        parts: tuple[list[Node], list[Node]] = ([], [])
        body = False
        for child in node.children:
            if child.type == "then":
                body = True
            elif child.is_named:
                parts[body].append(child)
        return parts

    def run_all(self, nodes: list[Node]) -> None:
        """Read statements one after the other."""
        for node in nodes:
            self.run(node)

    def _case_statement(self, node: Node) -> bool:
        subject = self.plain(self.text(node.child_by_field_name("value")))
        for item in node.children:
            if item.type != "case_item":
                continue
            patterns, body, in_patterns = [], [], True
            for child in item.children:
                if child.type == ")" and in_patterns:
                    in_patterns = False
                elif in_patterns and child.is_named:
                    patterns.append(self.text(child))
                elif child.is_named:
                    body.append(child)
            if any(fnmatch.fnmatchcase(subject, pattern) for pattern in patterns):
                self.run_all(body)
                break
        return True

    def _for_statement(self, node: Node) -> bool:
        name = self.text_of(node.child_by_field_name("variable"))
        values = [
            word
            for child in node.children
            if child.is_named and child.type not in ("variable_name", "do_group", "comment")
            for word in self.fields(child)
        ]
        body = next(c for c in node.children if c.type == "do_group")
        for value in values[:MAX_ROUNDS]:
            self.variables[name] = value
            self.run(body)
        return True

    def _c_style_for_statement(self, node: Node) -> bool:
        self.note(node, "a counting loop is not followed")
        return True

    def _while_statement(self, node: Node) -> bool:
        body = next((c for c in node.children if c.type == "do_group"), None)
        conditions = [c for c in node.named_children if c is not body and c.type != "do_group"]
        until = node.children[0].type == "until"
        for _ in range(MAX_ROUNDS):
            status: bool | None = None
            for condition in conditions:
                status = self.run(condition)
            if status is None or status is until or body is None:
                break
            self.run(body)
        return True

    def _test_command(self, node: Node) -> bool | None:
        children = node.named_children
        if node.children[0].type == "((":
            value = self.arithmetic(children[0]) if children else "0"
            return None if unresolved(value) else value != "0"
        return self.test(children[0]) if children else False

    def _subshell(self, node: Node) -> bool | None:
        before = dict(self.variables)
        status = self._children(node)
        self.variables = before
        return status

    def _command(self, node: Node, heredoc: str | None = None) -> bool | None:
        prefix: dict[str, str] = {}
        words: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name = self.text_of(child.children[0])
                value = child.children[2] if len(child.children) > 2 else None
                prefix[name] = self.text(value) if value is not None else ""
            elif child.type in ("herestring_redirect", "file_redirect", "heredoc_redirect"):
                continue
            elif child.is_named:
                words += self.fields(child)
        if not words:
            for name, text in prefix.items():
                self.put(name, text)
            return True
        return self.start(words, prefix, self.line(node), heredoc)

    def start(
        self, words: list[str], prefix: dict[str, str], line: int, heredoc: str | None
    ) -> bool | None:
        """Read one command: a builtin, a function of the script, or a program."""
        name = {".": "source", ":": "true"}.get(words[0], words[0])
        builtin = getattr(self, f"builtin_{name}", None)
        if builtin is not None:
            return builtin(words[1:], line, heredoc)  # type: ignore[no-any-return]
        launches = words[0] in ("torchrun", "srun", "deepspeed", "accelerate", "python", "python3")
        if words[0] in self.functions and not launches:
            return self._call(words)
        env = {
            name: value
            for name in sorted(self.exported)
            if isinstance(value := self.variables.get(name), str)
        }
        self.script.commands.append(Command(tuple(words), {**env, **prefix}, line))
        for word in words[1:]:
            if _is_script(word):
                before = dict(self.variables)
                self.variables.update(prefix)
                self.exported.update(prefix)
                self.run_text(word, line)
                self.variables = before
        return None

    def _call(self, words: list[str]) -> bool:
        body, source = self.functions[words[0]]
        if self.depth >= MAX_DEPTH:
            return True
        before = self.source, self.arguments
        self.source, self.arguments = source, words[1:]
        self.depth += 1
        try:
            self.run(body)
        except _Return:
            pass
        finally:
            self.depth -= 1
            self.source, self.arguments = before
        return True

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.children[0]
        heredoc, target = None, ""
        for child in node.children[1:]:
            if child.type == "heredoc_redirect":
                heredoc = self._heredoc(child)
                target = self._target(child) or target
            elif child.type == "file_redirect" and any(
                c.type in (">", ">>", "&>") for c in child.children
            ):
                named = [c for c in child.named_children if c.type != "file_descriptor"]
                target = self.text(named[-1]) if named else target
        if body.type != "command":
            return self.run(body)
        words = [w for c in body.children if c.is_named and c.type != "variable_assignment"
                 for w in self.fields(c)]  # fmt: skip
        if target and heredoc is not None and words[:1] in (["cat"], ["tee"]):
            self.script.files[target] = heredoc
            return True
        if target and words[:1] in (["echo"], ["printf"]):
            text = " ".join(w for w in words[1:] if not re.fullmatch(r"-[neE]+", w))
            self.script.files[target] = text
            return True
        if heredoc is not None and words[:1] == ["tee"] and len(words) > 1:
            self.script.files[words[-1]] = heredoc
            return True
        return self._command(body, heredoc)

    def _heredoc(self, node: Node) -> str:
        raw = any(
            c.type == "heredoc_start" and self.text_of(c)[:1] in "'\"\\" for c in node.children
        )
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        if body is None:
            return ""
        return self.text_of(body) if raw else self._joined(body)

    def _target(self, node: Node) -> str:
        for child in node.children:
            if child.type == "file_redirect":
                named = [c for c in child.named_children if c.type != "file_descriptor"]
                return self.text(named[-1]) if named else ""
        return ""

    # ---- builtins

    def builtin_echo(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Print: nothing to read."""
        return True

    builtin_printf = builtin_echo
    builtin_trap = builtin_echo
    builtin_cd = builtin_echo
    builtin_mkdir = builtin_echo
    builtin_pwd = builtin_echo

    def builtin_true(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Succeed."""
        return True

    def builtin_false(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Fail."""
        return False

    def builtin_exit(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """End the script."""
        raise _Stop

    def builtin_return(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """End the function."""
        raise _Return

    def builtin_eval(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Read the words as a script."""
        self.run_text(" ".join(words), line)
        return True

    def builtin_exec(self, words: list[str], line: int, heredoc: str | None) -> bool | None:
        """Start the rest as a command."""
        return self.start(words, {}, line, heredoc) if words else True

    def builtin_let(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Compute."""
        for word in words:
            self.run_text(f"(({word}))", line)
        return True

    def builtin_set(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """`set -- words` replaces the positional arguments."""
        if "--" in words:
            self.arguments = words[words.index("--") + 1 :]
        return True

    def builtin_shift(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Drop positional arguments."""
        n = int(words[0]) if words and words[0].isdigit() else 1
        self.arguments = (self.arguments or [])[n:]
        return True

    def builtin_source(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """Read another file in place."""
        text = self.read_file(words[0]) if words and not unresolved(words[0]) else None
        if text is None:
            name = shown(words[0]) if words else ""
            self.script.notes.append(f"line {line}: `source {name}` is not followed")
        else:
            self.run_text(text)
        return True

    def builtin_read(self, words: list[str], line: int, heredoc: str | None) -> bool:
        """`read -r -d '' NAME <<EOF` sets NAME."""
        names = [w for w in words if re.fullmatch(r"[A-Za-z_]\w*", w)]
        if names:
            self.put(names[-1], heredoc if heredoc is not None else mark(names[-1]))
        return True

    # ---- tests

    def test(self, node: Node) -> bool | None:
        """Return what a `[[ ]]` or `[ ]` expression says, None where it cannot be known."""
        kind = node.type
        if kind == "parenthesized_expression":
            return self.test(node.named_children[0])
        if kind == "negation_expression" or (
            kind == "unary_expression" and node.children[0].type == "!"
        ):
            found = self.test(node.named_children[-1])
            return None if found is None else not found
        if kind == "unary_expression":
            return self._unary(node)
        if kind == "binary_expression":
            return self._binary(node)
        text = self.text(node)
        return None if _unknown(text) else bool(self.plain(text))

    def _unary(self, node: Node) -> bool | None:
        operator = self.text_of(node.children[0])
        operand = self.text(node.children[-1]) if len(node.children) > 1 else ""
        if operator == "-v":
            return operand in self.variables
        if operator not in ("-z", "-n") or _unknown(operand):
            return None
        return (self.plain(operand) == "") == (operator == "-z")

    def _binary(self, node: Node) -> bool | None:
        left, operator, right = node.children[0], node.children[1], node.children[-1]
        sign = self.text_of(operator)
        if sign in ("&&", "||", "-a", "-o"):
            first, second = self.test(left), self.test(right)
            both = (first, second)
            if sign in ("&&", "-a"):
                return False if False in both else None if None in both else True
            return True if True in both else None if None in both else False
        a, b = self.text(left), self.text(right)
        if _unknown(a) or _unknown(b):
            return None
        a, b = self.plain(a), self.plain(b)
        if sign in ("==", "=", "!="):
            bare = right.type not in ("string", "raw_string")
            same = fnmatch.fnmatchcase(a, b) if bare else a == b
            return same == (sign != "!=")
        if sign == "=~":
            try:
                return re.search(b, a) is not None
            except re.error:
                return None
        return _compared(a, sign, b)

    # ---- words

    def fields(self, node: Node) -> list[str]:
        """Return the words that a node becomes: expanded, then split where it is not quoted."""
        done: list[str] = []
        current: str | None = None
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
            yield from self._expanded(node, quoted)
        elif kind == "arithmetic_expansion":
            yield self._arithmetic_expansion(node), "quoted"
        elif kind in ("command_substitution", "process_substitution"):
            yield self._substituted(node), "quoted" if quoted else "split"
        elif kind == "array":
            words = [word for child in node.named_children for word in self.fields(child)]
            for i, word in enumerate(words):
                yield word, "item" if i else "first item"
        else:
            yield re.sub(r"\\(\r?\n|.)", _bare_escape, self.text_of(node), flags=re.S), "literal"

    def _string(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield the parts between double quotes; gaps between the nodes are literal text."""
        start, end = node.start_byte, node.end_byte - 1
        opening = self.source[start:end].index(b'"') + 1
        at = start + opening
        for child in node.named_children:
            if child.type == "string_content":
                continue
            yield self._quoted_text(at, self._begin(child)), "quoted"
            yield from self._pieces(child, quoted=True)
            at = child.end_byte
        yield self._quoted_text(at, end), "quoted"

    def _begin(self, node: Node) -> int:
        """Return where an expansion begins: its node may take in the blanks before it."""
        text = self.text_of(node)
        found = re.search(r"[$`]", text)
        blanks = text[: found.start()] if found else ""
        return int(node.start_byte) + len(blanks.encode())

    def _quoted_text(self, start: int, end: int) -> str:
        raw = self.source[start:end].decode()
        return re.sub(r'\\(\r?\n|[$"\\`])', _quoted_escape, raw)

    def _joined(self, node: Node) -> str:
        """Return a heredoc's text with its expansions."""
        out, at = "", node.start_byte
        for child in node.named_children:
            if child.type == "heredoc_content":
                continue
            out += self._quoted_text(at, self._begin(child))
            out += "".join(text for text, _ in self._pieces(child, quoted=True))
            at = child.end_byte
        return out + self._quoted_text(at, node.end_byte)

    def _expanded(self, node: Node, quoted: bool) -> Iterator[tuple[str, str]]:
        kind = "quoted" if quoted else "split"
        if node.type == "simple_expansion":
            name = self.text_of(node).lstrip()[1:]
            if name in ("@", "*"):
                yield from self._items(self._positional(), name, quoted)
                return
            yield self.value(name), kind
            return
        found = self._parameter(node)
        if isinstance(found, list):
            yield from self._items(found, "@" if "[@]" in self.text_of(node) else "*", quoted)
        else:
            yield found, kind

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
        if name.isdigit() and name != "0":
            given = self.arguments or []
            if int(name) <= len(given):
                return given[int(name) - 1]
            if name in self.variables:  # given from outside
                held = self.variables[name]
                return held if isinstance(held, str) else " ".join(held)
            return mark(name)
        if name == "#":
            return str(len(self.arguments or []))
        found = self.variables.get(name)
        if found is None:
            return mark(name)
        if isinstance(found, list):
            return found[0] if found else ""
        return found

    def _subscript(self, node: Node) -> tuple[str, str]:
        name = self.text_of(node.children[0])
        inner = node.named_children[1] if len(node.named_children) > 1 else None
        index = "@" if inner is None else self.text(inner)
        held = self.variables.get(index)
        if isinstance(held, str) and held.isdigit():
            index = held
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
        held: Value | None
        if target.type == "subscript":
            name, index = self._subscript(target)
            held = self._item(name, index)
        else:
            name = self.text_of(target)
            if name in ("@", "*"):
                held = self._positional()
            elif name.isdigit() or name in self.variables:
                held = self.value(name)
                held = None if held == mark(name) else held
            else:
                held = None
        if indirect and isinstance(held, str):
            name, held = held, self.variables.get(held)
        if length:
            return str(len(held)) if held is not None else "0"
        operator = rest[0].type if rest else ""
        operand = rest[1:]
        return self._applied(name, held, operator, operand)

    def _item(self, name: str, index: str) -> Value | None:
        held = self.variables.get(name)
        if index in ("@", "*"):
            if held is None:
                return []
            return list(held) if isinstance(held, list) else [held]
        items = held if isinstance(held, list) else [held] if held is not None else []
        if index.lstrip("-").isdigit() and -len(items) <= int(index) < len(items):
            return items[int(index)]
        return None

    def _applied(self, name: str, held: Value | None, operator: str, operand: list[Node]) -> Value:
        empty = held is None or not held
        if operator in (":-", "-", ":=", "="):
            if empty if operator.startswith(":") else held is None:
                default = "".join(self.text(c) for c in operand)
                if "=" in operator:
                    self.put(name, default)
                return default
            return held if held is not None else ""
        if operator in (":+", "+"):
            absent = empty if operator.startswith(":") else held is None
            return "" if absent else "".join(self.text(c) for c in operand)
        if held is None:
            return mark(name)
        if operator in (":?", "?", ""):
            return held
        if isinstance(held, list):
            return [self._changed(item, operator, operand) for item in held]
        return self._changed(held, operator, operand)

    def _changed(self, held: str, operator: str, operand: list[Node]) -> str:
        """Return a text cut, replaced or put into another case, as `${X%.py}` does."""
        operand = [c for c in operand if c.type != "/"]
        if operator in ("#", "##", "%", "%%"):
            return _trimmed(held, operator, self.text(operand[0]) if operand else "")
        if operator in ("/", "//", "/#", "/%"):
            patterns = [self.text(c) for c in operand]
            if operator in ("/#", "/%") and len(patterns) < 2:
                patterns.insert(0, "")
            return _replaced(held, operator, *(patterns + ["", ""])[:2])
        if operator in ("^^", ",,"):
            return held.upper() if operator == "^^" else held.lower()
        if operator == ":":
            numbers = [int(p) for p in (self.text(c) for c in operand) if p.lstrip("-").isdigit()]
            begin = numbers[0] if numbers else 0
            return held[begin : begin + numbers[1]] if len(numbers) > 1 else held[begin:]
        return held

    def _substituted(self, node: Node) -> str:
        """Return the output of a command where it can be told: echo and expr; else a mark."""
        inner = [c for c in node.named_children if c.type != "comment"]
        if len(inner) == 1 and inner[0].type == "command":
            words = [w for c in inner[0].named_children for w in self.fields(c)]
            if words[:1] == ["echo"] and len(words) > 1:
                return " ".join(words[1:])
            if words[:1] == ["expr"] and len(words) > 1:
                text = "".join("*" if w == r"\*" else w for w in words[1:])
                return self._computed(text)
        if len(inner) == 1 and inner[0].type == "pipeline":
            parts = inner[0].named_children
            last = self.text_of(parts[-1]).split()
            if last[:1] == ["bc"] and self.text_of(parts[0]).startswith("echo"):
                words = [w for c in parts[0].named_children for w in self.fields(c)]
                return self._computed("".join(words[1:]))
        return mark(" ".join(self.text_of(node).replace(",", ";").split()))

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
            root = _parser().parse(self.source).root_node
            found = [c for n in root.children for c in n.named_children]
            return self.arithmetic(found[0]) if found else "0"
        finally:
            self.source = before

    def arithmetic(self, node: Node) -> str:
        """Return the value of an arithmetic node as text, or the mark of what it depends on."""
        kind = node.type
        if kind == "parenthesized_expression":
            return self.arithmetic(node.named_children[0])
        if kind == "variable_name" or (kind == "word" and self.text_of(node).isidentifier()):
            return self._number(self.value(self.text_of(node)))
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
        """Return a whole number as text; names inside are looked up, fractions cut as bash does."""
        names = unresolved(text)
        if names:
            return mark(",".join(names))
        text = text.strip()
        if not text:
            return "0"
        if re.fullmatch(r"[-+]?\d+", text):
            return str(int(text))
        if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
            return str(int(text, 16))
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

    # ---- small

    def text_of(self, node: Node) -> str:
        """Return the source text of a node."""
        return self.source[node.start_byte : node.end_byte].decode()

    def line(self, node: Node) -> int:
        """Return the line of a node in the whole script."""
        return int(node.start_point[0]) + self.first_line

    def note(self, node: Node, text: str) -> None:
        """Keep something that the user should know."""
        self.script.notes.append(f"line {self.line(node)}: {text}")

    def plain(self, text: str) -> str:
        """Return a text as bash would see it with what is not set taken as empty."""
        return _MARK.sub("", text)


def _unknown(text: str) -> bool:
    """Tell whether a text depends on the output of a command."""
    return any(name.startswith(COMMAND_OUTPUT) or "`" in name for name in unresolved(text))


def _is_script(word: str) -> bool:
    """Tell whether an argument is itself a command line: `bash -c "torchrun ... train.py"`."""
    return bool(re.search(r"\s", word.strip())) and bool(
        re.search(r"(^|[\s;/])(torchrun|deepspeed|accelerate|python3?|bash)\s|\.py\s", word)
    )


def _bare_escape(found: re.Match[str]) -> str:
    return "" if found.group(1).endswith("\n") else found.group(1)


_quoted_escape = _bare_escape


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape")


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Return `${X#p}`, `${X##p}`, `${X%p}` or `${X%%p}`."""
    cuts = range(len(text) + 1)
    greedy = len(operator) == 2
    if operator[0] == "#":
        ends = [i for i in cuts if fnmatch.fnmatchcase(text[:i], pattern)]
        return text[(max(ends) if greedy else min(ends)) :] if ends else text
    starts = [i for i in cuts if fnmatch.fnmatchcase(text[i:], pattern)]
    return text[: (min(starts) if greedy else max(starts))] if starts else text


def _replaced(text: str, operator: str, pattern: str, new: str) -> str:
    """Return `${X/p/new}`, `${X//p/new}`, `${X/#p/new}` or `${X/%p/new}`."""
    expression = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    if operator in ("/#", "/%"):
        expression = rf"\A{expression}" if operator == "/#" else rf"{expression}\Z"
    elif not pattern:
        return text
    return re.sub(expression, lambda _: new, text, count=operator != "//")


def _compared(a: str, sign: str, b: str) -> bool | None:
    """Return a comparison of two numbers, or of two texts with < and >."""
    if sign in ("<", ">"):
        return a < b if sign == "<" else a > b
    try:
        x, y = int(a or 0), int(b or 0)
    except ValueError:
        return None
    results = {
        "-eq": x == y, "-ne": x != y, "-lt": x < y, "-le": x <= y, "-gt": x > y, "-ge": x >= y,
    }  # fmt: skip
    return results.get(sign)


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
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: quotient,
        "%": lambda: a - b * quotient, "**": lambda: a**b,
        "<<": lambda: a << min(b, 64), ">>": lambda: a >> min(b, 64),
        "&": lambda: a & b, "|": lambda: a | b, "^": lambda: a ^ b,
        "==": lambda: int(a == b), "!=": lambda: int(a != b), "<": lambda: int(a < b),
        "<=": lambda: int(a <= b), ">": lambda: int(a > b), ">=": lambda: int(a >= b),
        "&&": lambda: int(bool(a and b)), "||": lambda: int(bool(a or b)),
    }  # fmt: skip
    return str(results[sign]()) if sign in results else mark(f"an operator {sign}")
