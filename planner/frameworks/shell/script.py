"""Reads bash scripts without running them: assignments, arrays, conditions, functions, heredocs.

The syntax tree comes from tree-sitter's grammar of bash. What the script would be told from
outside (positional arguments, variables that it does not set, output of commands) stays in the
text as a mark with its name, so that a value that depends on it can be asked for by name. Nothing
is executed and no file is read but those that the caller's `read_file` gives (for `source`).
"""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.frameworks.shell.expansion import Node, Value, Words, parser
from planner.frameworks.shell.marks import (
    depends_on_output,
    mark,
    unmarked,
    unresolved,
    without_marks,
)
from planner.frameworks.shell.wrappers import (
    Inner,
    filtered,
    inner_script,
    reads_its_input,
    with_placeholders,
    written_file_name,
)

MAX_STEPS = 200_000
"""Statements after which reading stops: a script cannot keep the reader busy for ever."""
MAX_DEPTH = 20
"""Deepest nesting of function calls, `eval` and `bash -c`."""
MAX_ROUNDS = 1000
"""Most rounds of one loop."""
STATEMENTS = frozenset(
    (
        "variable_assignment",
        "variable_assignments",
        "declaration_command",
        "unset_command",
        "function_definition",
        "compound_statement",
        "list",
        "negated_command",
        "pipeline",
        "if_statement",
        "case_statement",
        "for_statement",
        "c_style_for_statement",
        "while_statement",
        "test_command",
        "subshell",
        "command",
        "redirected_statement",
    )
)
"""Kinds of nodes that are read as statements; a script with faults may have others in their place.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it would be started."""

    argv: tuple[str, ...]
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
    texts: list[str] = field(default_factory=list)
    """Of the scripts in other files that it starts."""
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

    `read_file` returns the text of a file that the script sources or starts, or None.
    """
    reader = _Reader(dict(env or {}), read_file or (lambda name: None))
    reader.run_text(with_placeholders(text))
    out = reader.script
    out.variables = dict(reader.variables)
    out.ignored_env = tuple(name for name in (env or {}) if name in reader.overwritten)
    return out


class _Reader(Words):
    """Walks the tree; one per script."""

    def __init__(self, env: dict[str, str], read_file: Callable[[str], str | None]) -> None:
        super().__init__(env)
        self.exported: set[str] = set(env)
        self.functions: dict[str, tuple[Node, bytes]] = {}
        self.script = Script()
        self.prints: list[str] = []
        self.read_file = read_file
        self.wrappers: tuple[str, ...] = ()
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
            self.run(parser().parse(self.source).root_node)
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
        if name in STATEMENTS:
            return getattr(self, f"_{name}")(node)  # type: ignore[no-any-return]
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

    def _assign_item(self, target: Node, value: str) -> None:
        name, index = self._subscript(target)
        current = self.variables.get(name, [])
        items = list(current) if isinstance(current, list) else [current]
        if index.isdecimal() and int(index) <= len(items):
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
        is_known = status is not None or left.type not in ("test_command", "list")
        if operator == "&&" and status is not False:
            return self.run(right) if is_known else None
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

    def _filter(self, body: Node, target: str) -> bool:
        """Keep the file that `sed s/A/B/ FILE | sed ... > OTHER` writes; False for others."""
        commands = body.named_children if body.type == "pipeline" else [body]
        if not target or any(command.type != "command" for command in commands):
            return False
        text: str | None = None
        for command in commands:
            tokens = [w for c in command.named_children for w in self.fields(c)]
            text = filtered(tokens, text, self._file)
            if text is None:
                return False
        self.script.files[target] = text or ""
        return True

    def _file(self, name: str) -> str | None:
        """Return the text of a file: written by the script, or beside it."""
        result = self.script.files.get(name)
        return result if result is not None else self.read_file(unmarked(name))

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
        subject = without_marks(self.text(node.child_by_field_name("value")))
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
        tokens: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name = self.text_of(child.children[0])
                value = child.children[2] if len(child.children) > 2 else None
                prefix[name] = self.text(value) if value is not None else ""
            elif child.type in ("herestring_redirect", "file_redirect", "heredoc_redirect"):
                continue
            elif child.is_named:
                tokens += self.fields(child)
        if not tokens:
            for name, text in prefix.items():
                self.put(name, text)
            return True
        return self.start(tokens, prefix, self.line(node), heredoc)

    def start(
        self, tokens: list[str], prefix: dict[str, str], line: int, heredoc: str | None
    ) -> bool | None:
        """Read one command: a builtin, a function of the script, or a program."""
        name = {".": "source", ":": "true"}.get(tokens[0], tokens[0])
        builtin = getattr(self, f"builtin_{name}", None)
        if builtin is not None:
            return builtin(tokens[1:], line, heredoc)  # type: ignore[no-any-return]
        launches = tokens[0] in (
            "torchrun",
            "srun",
            "deepspeed",
            "accelerate",
            "python",
            "python3",
        )
        if tokens[0] in self.functions and not launches:
            return self._call(tokens)
        env = {
            name: value
            for name in sorted(self.exported)
            if isinstance(value := self.variables.get(name), str)
        }
        command = Command((*self.wrappers, *tokens), {**env, **prefix}, line)
        inner = inner_script(tokens)
        if heredoc and reads_its_input(tokens):
            inner = Inner((), heredoc, (), is_file=False)
        if inner is not None:
            self._inner(inner, prefix, command)
            return None
        self.script.commands.append(command)
        for word in tokens[1:]:
            if _is_script(word):
                before = dict(self.variables)
                self.variables.update(prefix)
                self.exported.update(prefix)
                self.run_text(word, line)
                self.variables = before
        return None

    def _inner(self, inner: Inner, prefix: dict[str, str], outer: Command) -> None:
        """Read the script that a command starts; its commands begin with what starts them.

        The command itself is kept where its script cannot be read or starts nothing.
        """
        text: str | None = inner.text
        if inner.is_file:
            name = written_file_name(inner.text)
            text = self.read_file(unmarked(inner.text)) if name else None
            text = None if text is None else with_placeholders(text)
            self.script.texts += [text] if text else []
        n = len(self.script.commands)
        if text is not None:
            before = dict(self.variables), self.arguments, self.wrappers
            self.variables.update(prefix)
            self.exported.update(prefix)
            self.arguments = list(inner.arguments)
            self.wrappers = (*self.wrappers, *inner.wrappers)
            self.run_text(text, 1 if inner.is_file else outer.line)
            self.variables, self.arguments, self.wrappers = before
        if len(self.script.commands) == n:
            self.script.commands.append(outer)

    def _call(self, tokens: list[str]) -> bool:
        body, source = self.functions[tokens[0]]
        if self.depth >= MAX_DEPTH:
            return True
        before = self.source, self.arguments
        self.source, self.arguments = source, tokens[1:]
        self.depth += 1
        try:
            self.run(body)
        except _Return:
            pass
        finally:
            self.depth -= 1
            self.source, self.arguments = before
        return True

    def printed(self, tokens: list[str]) -> str | None:
        """Return what a function of the script prints, None where that cannot be told."""
        if tokens[0] not in self.functions or self.depth >= MAX_DEPTH:
            return None
        before = self.script.commands, dict(self.variables), self.prints
        self.script.commands, self.prints = [], []
        try:
            self._call(tokens)
            is_known, text = not self.script.commands, "\n".join(self.prints)
        finally:
            self.script.commands, self.variables, self.prints = before
        return text if is_known else None

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
        if heredoc is None and self._filter(body, target):
            return True
        if body.type != "command":
            return self.run(body)
        tokens = [
            w
            for c in body.children
            if c.is_named and c.type != "variable_assignment"
            for w in self.fields(c)
        ]
        if target and heredoc is not None and tokens[:1] in (["cat"], ["tee"]):
            self.script.files[target] = heredoc
            return True
        if target and tokens[:1] in (["echo"], ["printf"]):
            text = " ".join(w for w in tokens[1:] if not re.fullmatch(r"-[neE]+", w))
            self.script.files[target] = text
            return True
        if heredoc is not None and tokens == ["cat"]:
            self.prints.append(heredoc)
            return True
        if heredoc is not None and tokens[:1] == ["tee"] and len(tokens) > 1:
            self.script.files[tokens[-1]] = heredoc
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

    def builtin_echo(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Print: kept for a function whose output is used."""
        self.prints.append(" ".join(w for w in arguments if not re.fullmatch(r"-[neE]+", w)))
        return True

    def builtin_printf(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Print; a format with more than `%s` is not followed."""
        form, *rest = arguments or [""]
        text = form.replace("\\n", "\n")
        for word in rest if "%" in text else []:
            text = text.replace("%s", word, 1)
        self.prints.append(mark("$(printf)") if re.search(r"%(?!%)", text) else text)
        return True

    def builtin_true(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Succeed."""
        return True

    builtin_trap = builtin_true
    builtin_cd = builtin_true
    builtin_mkdir = builtin_true
    builtin_pwd = builtin_true

    def builtin_false(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Fail."""
        return False

    def builtin_exit(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """End the script."""
        if arguments and arguments[0] not in ("0", "$?") and not unresolved(arguments[0]):
            self.script.notes.append(f"line {line}: it ends there, with status {arguments[0]}")
        raise _Stop

    def builtin_return(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """End the function."""
        raise _Return

    def builtin_eval(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Read the words as a script."""
        self.run_text(" ".join(arguments), line)
        return True

    def builtin_exec(self, arguments: list[str], line: int, heredoc: str | None) -> bool | None:
        """Start the rest as a command."""
        return self.start(arguments, {}, line, heredoc) if arguments else True

    def builtin_let(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Compute."""
        for word in arguments:
            self.run_text(f"(({word}))", line)
        return True

    def builtin_set(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """`set -- words` replaces the positional arguments."""
        if "--" in arguments:
            self.arguments = arguments[arguments.index("--") + 1 :]
        return True

    def builtin_shift(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Drop positional arguments."""
        n = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
        self.arguments = (self.arguments or [])[n:]
        return True

    def builtin_source(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """Read another file in place."""
        text = (
            self.read_file(unmarked(arguments[0]))
            if arguments and written_file_name(arguments[0])
            else None
        )
        if text is None:
            name = unmarked(arguments[0]) if arguments else ""
            self.script.notes.append(
                f"line {line}: `source {name}` is not followed: no such file beside it"
            )
        else:
            before = self.arguments
            self.arguments = arguments[1:] or before
            self.run_text(with_placeholders(text))
            self.arguments = before
        return True

    def builtin_read(self, arguments: list[str], line: int, heredoc: str | None) -> bool:
        """`read -r -d '' NAME <<EOF` sets NAME."""
        names = [w for w in arguments if re.fullmatch(r"[A-Za-z_]\w*", w)]
        if names:
            text = mark(names[-1]) if heredoc is None else heredoc
            self.put(names[-1], text.strip())
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
            result = self.test(node.named_children[-1])
            return None if result is None else not result
        if kind == "unary_expression":
            return self._unary(node)
        if kind == "binary_expression":
            return self._binary(node)
        text = self.text(node)
        return None if depends_on_output(text) else bool(without_marks(text))

    def _unary(self, node: Node) -> bool | None:
        operator = self.text_of(node.children[0])
        operand = self.text(node.children[-1]) if len(node.children) > 1 else ""
        if operator == "-v":
            return operand in self.variables
        if operator not in ("-z", "-n") or depends_on_output(operand):
            return None
        return (without_marks(operand) == "") == (operator == "-z")

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
        if depends_on_output(a) or depends_on_output(b):
            return None
        a, b = without_marks(a), without_marks(b)
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

    def line(self, node: Node) -> int:
        """Return the line of a node in the whole script."""
        return int(node.start_point[0]) + self.first_line

    def note(self, node: Node, text: str) -> None:
        """Keep something that the user should know."""
        self.script.notes.append(f"line {self.line(node)}: {text}")


def _is_script(word: str) -> bool:
    """Tell whether an argument is itself a command line: `bash -c "torchrun ... train.py"`."""
    return bool(re.search(r"\s", word.strip())) and bool(
        re.search(r"(^|[\s;/])(torchrun|deepspeed|accelerate|python3?|bash)\s|\.py\s", word)
    )


def _compared(a: str, sign: str, b: str) -> bool | None:
    """Return a comparison of two numbers, or of two texts with < and >."""
    if sign in ("<", ">"):
        return a < b if sign == "<" else a > b
    try:
        x, y = int(a or 0), int(b or 0)
    except ValueError:
        return None
    results = {
        "-eq": x == y,
        "-ne": x != y,
        "-lt": x < y,
        "-le": x <= y,
        "-gt": x > y,
        "-ge": x >= y,
    }
    return results.get(sign)
