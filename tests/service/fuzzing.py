"""Hostile and mutated requests, and what no answer to them may be: for scripts/fuzz and the tests.

Everything is drawn from one `random.Random`: the same seed makes the same requests.
"""

import contextlib
import copy
import json
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from service.worker_pool.process_memory import give_back

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
HANG_S = 20.0
"""Most time of this process for one request: its search is ended after `SEARCH_S`."""
ANSWER_S = 120.0
"""Longest wait for an answer, however busy the machine is."""
SEARCH_S = 2.0
WARM = 0.4
"""Part of a run after which growth is measured: until then caches fill."""
GROWTH_BYTES = 128_000_000
"""More memory than this, after the warm part of a run, is growth."""


# What is drawn from


HOSTILE_VALUES: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    3,
    7,
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    2**63,
    10**18,
    10**19,
    -(10**18),
    10**40,
    0.0,
    -0.0,
    0.5,
    1e-300,
    1e300,
    1e18,
    5e-324,
    float("inf"),
    float("-inf"),
    float("nan"),
    True,
    False,
    None,
    "",
    " ",
    "0",
    "1e999",
    "nan",
    "-",
    "8",
    "1_0",
    "0x10",
    "\u0000",
    "\ud800",
    "\u202e",
    "x" * 500,
    "a" * 5_000,
    "../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "meta-llama/Llama-3-8B",
    "~/.ssh/id_rsa",
    "$(id)",
    "`id`",
    "${HOME}",
    "%s%n",
    "{{7*7}}",
    "*",
    "&a",
    "!!python/object:os.system",
    "<<",
    "9**9**9",
    "1/0",
    "(" * 400,
    "n[1-99999999]",
    "n[1-9999][1-9999]",
    "[",
    "]",
    "{",
    "\n",
    "\r\n",
    "\x1b[31m",
    "é",
    "\U0001f600",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"a": {"a": {}}}},
    [1, "a", None],
    [0] * 300,
    {"x": 1},
    "bf16",
    "fp8-mxfp8",
    "h100-sxm-80gb",
    "llama3-8b",
    "h100-x8",
    "30d",
    "100%",
    "3-5",
    "[1, 2]",
)
"""Values that a field is given in place of its own."""

HOSTILE_TEXTS: tuple[str, ...] = (
    "",
    " ",
    "\n" * 1_000,
    "\t",
    "\ufeff",
    "\u0000",
    "a",
    "-",
    ":",
    "? ",
    "---\n---\n",
    "...",
    "%YAML 9.9\n",
    "%TAG ! tag:x,2000:\n",
    "a: &a [*a]",
    "&a a: *a",
    "*undefined",
    "&a *a",
    "? {a: b}\n: c",
    "a: 1\na: 2",
    "<<: {a: 1}",
    "a: !!binary aGk=",
    "!!python/object/apply:os.system ['id']",
    "a: !!int x",
    "a: !!float 1e9999",
    "a: !!set {x}",
    "a: !<tag:yaml.org,2002:null> 1",
    "!!map []",
    "a: 0x" + "f" * 60,
    "a: " + "9" * 4_000,
    "a: 1e" + "9" * 50,
    "a: .nan",
    "a: -.inf",
    "a: 0o17",
    "a: 2001-01-01",
    "a: 1:30",
    "a: |\n" + " x\n" * 500,
    "a: >\n" + "  x\n\n" * 500,
    "a: 'x",
    'a: "\\',
    'a: "\\ud800"',
    'a: "\\uDFFF\\U0010FFFF"',
    "[" * 150 + "]" * 150,
    "{" * 150,
    "[" * 100_000,
    "- " * 3_000 + "x",
    "? " * 3_000,
    "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 400)),
    "&a " * 100 + "x",
    "a: " + "'" * 9_999,
    "a: " + '"' * 9_999,
    "#" * 100_000,
    "a: b" * 9_999,
    "\n".join(f"k{i}: {i}" for i in range(9_999)),
    "\n".join(["k: 1"] * 2_000),
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "a: &a {k: v}\n" + "".join(f"k{i}: *a\n" for i in range(99)),
    "\x85\u2028\u2029",
    "\x07",
    "a:\x0bb",
    '{"pools": [' * 30,
    '{"a": ' * 199 + "1" + "}" * 199,
    "{" + '"a": 1, ' * 5_000 + '"b": 2}',
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "xxxxxxxxxx">'
    + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + ']><system version="1">&i;</system>',
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><system>&e;</system>',
    "<system>" * 5_000,
    "NodeName=n[0-999999999] CPUs=1 Gres=gpu:h100:8\n",
    "NodeName=" + "n[1-9]" * 9,
    '{"apiVersion": "v1", "kind": "List", "items": ' + "[" * 150,
    "\x1b[31m" * 500,
    "#!/bin/bash\n" + "(" * 5_000,
    "#!/bin/bash\n" + "$(" * 2_000,
    "A=$A$A\n" * 200,
    "while true; do :; done",
    '#!/bin/bash\neval "$(curl http://127.0.0.1:1)"\ntorchrun x.py --num-layers $((9**9))',
)
"""Texts that are given in place of a document."""


def kind_of(text: str) -> str:
    """Return `mapping` for a text of YAML or JSON that holds one, else `text`."""
    try:
        return "mapping" if isinstance(yaml.safe_load(text), dict) else "text"
    except (yaml.YAMLError, ValueError):
        return "text"


@dataclass(frozen=True, slots=True)
class Real:
    """A real document: what mutations begin with."""

    name: str
    text: str
    data: Any
    """What it holds where it is YAML or JSON; None for other formats."""


def real_documents() -> list[Real]:
    """Return the packaged examples and the documents of other tools that the tests have."""
    folders = [
        ROOT / "examples" / "models",
        ROOT / "examples" / "clusters",
        ROOT / "examples" / "imports",
        TESTS / "planner" / "specs" / "importers" / "data",
        TESTS / "planner" / "specs" / "importers" / "data" / "clusters",
    ]
    return [
        _real(path)
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.is_file() and path.stat().st_size < 12_000
    ]


def real_sweeps() -> list[Real]:
    """Return the sweep files of the examples."""
    return [_real(path) for path in sorted((ROOT / "examples" / "sweeps").glob("*.yaml"))]


def real_runs() -> list[Real]:
    """Return launch scripts and configurations of other frameworks."""
    folder = TESTS / "planner" / "frameworks" / "runs" / "data"
    paths = [*sorted((folder / "megatron").glob("*.sh")), *sorted(folder.glob("*.txt"))]
    return [_real(path) for path in paths if path.stat().st_size < 12_000]


def _real(path: Path) -> Real:
    text = path.read_text(errors="replace")
    return Real(path.name, text, yaml.safe_load(text) if kind_of(text) == "mapping" else None)


class Mutator:
    """Changes data and texts by a few steps, each drawn from `rng`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self) -> Any:
        """Return a value that no field expects, or one near its bounds."""
        return copy.deepcopy(self.rng.choice(HOSTILE_VALUES))

    def data(self, data: Any, steps: int = 3) -> Any:
        """Return a copy of plain data with some places changed."""
        holder = {"": copy.deepcopy(data)}
        for _ in range(self.rng.randint(1, steps)):
            places = list(_places(holder))
            box, key = self.rng.choice(places)
            self._change(box, key, places)
        return holder[""]

    def _change(self, box: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
        old = box[key]
        what = self.rng.randrange(9)
        if what <= 2:
            box[key] = self.value()
        elif what == 3 and isinstance(old, int | float) and not isinstance(old, bool):
            scale = self.rng.choice((0, -1, 2, 3, 0.5, 1e3, 1e9, 1.0000001))
            box[key] = type(old)(old * scale) if abs(old) < 1e300 and old == old else 0
        elif what == 4 and key != "":
            del box[key]
        elif what == 5:
            other, at = self.rng.choice(places)
            box[key] = copy.deepcopy(other[at])
        elif what == 6 and isinstance(old, dict):
            old[self.rng.choice(("x", "", "nodes", "a.b", "\u0000", "y" * 300, "0"))] = (
                self.value()
            )
        elif what == 7 and isinstance(old, list):
            old.extend([self.value() if self.rng.random() < 0.5 else copy.deepcopy(old[:1])])
        elif what == 8 and isinstance(old, str) and old:
            box[key] = self.text(old, 1)
        else:
            box[key] = [old] if self.rng.random() < 0.5 else {"x": old}

    def text(self, text: str, steps: int = 4) -> str:
        """Return a text with some characters, words or lines changed."""
        for _ in range(self.rng.randint(1, steps)):
            at = self.rng.randrange(len(text) + 1)
            end = min(len(text), at + self.rng.choice((1, 1, 2, 8, 40, 400)))
            line = text.rfind("\n", 0, at) + 1
            piece = self.rng.choice(_PIECES)
            what = self.rng.randrange(8)
            if what == 0:
                text = text[:at] + text[end:]
            elif what == 1:
                text = text[:at] + text[at:end] * self.rng.choice((2, 3, 50)) + text[end:]
            elif what in (2, 3):
                text = text[:at] + piece + text[at:]
            elif what == 4:
                text = text[:line] + piece + text[line:]
            elif what == 5:
                text = text[:at]
            elif what == 6:
                text = text[:line] + self.rng.choice((" ", "  ", "- ", "\t", "#")) + text[line:]
            else:
                number = self.rng.choice(
                    ("0", "-1", "1e9", str(2**63), "9" * 70, ".inf", "0.0001")
                )
                text = _replace_number(text, at, number)
            text = text[:400_000]
        return text

    def document(self, real: Real) -> str:
        """Return a text made of a real document."""
        what = self.rng.random()
        if what < 0.05:
            return self.rng.choice(HOSTILE_TEXTS)
        if real.data is None or what < 0.4:
            return self.text(real.text)
        return self.dumped(self.data(real.data))

    def dumped(self, data: Any) -> str:
        """Return plain data as YAML or JSON, now and then with words of YAML in it."""
        if self.rng.random() < 0.3:
            return json.dumps(data)
        try:
            text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        except (yaml.YAMLError, ValueError):
            text = json.dumps(data)
        return self.text(text, 1) if self.rng.random() < 0.2 else text


_PIECES = (
    "\u0000",
    "\ud800",
    "\t",
    "\r",
    "\x85",
    "&a ",
    "*a",
    "!!str ",
    "!!int ",
    "!!python/none ",
    "<<: *a\n",
    "? ",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "|",
    ">",
    "'",
    '"',
    "\\",
    "#",
    "%",
    "@",
    "`",
    "---\n",
    "...\n",
    "~",
    "null",
    "9" * 30,
    "1e400",
    ".nan",
    "0x",
    "x" * 300,
    "\n",
    "\n\n\n",
    "  ",
    "\ufeff",
    "é",
    "\U0001f600",
    "$",
    "$(",
    "${",
    "))",
    "((",
    "<<EOF\n",
    "&&",
    ";",
    "--",
    "=",
    ",",
    "/",
    "..",
    "\x1b[0m",
    "<",
    ">",
    "&lt;",
)


_NUMBERS = (
    "0",
    "-1",
    "1e9",
    str(2**63),
    "9" * 70,
    "9" * 5_000,
    ".inf",
    "0.0001",
    "\u00b2",
    "\u0663",
)
"""Texts in place of a number; the last two are digits to Python, of which one is no number."""


def _replace_number(text: str, at: int, number: str) -> str:
    for i in range(at, len(text)):
        if text[i].isdigit():
            end = i
            while end < len(text) and text[end].isdigit():
                end += 1
            return text[:i] + number + text[end:]
    return text


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (mapping or list, key) below a mapping."""
    waiting = [holder]
    while waiting:
        box = waiting.pop()
        keys = list(box) if isinstance(box, dict) else range(len(box))
        for key in keys:
            yield box, key
            if isinstance(box[key], dict | list):
                waiting.append(box[key])


# Requests of every call


DOCUMENTS = ("model", "cluster", "result", "evaluate", "spec", "run", "a", "b")
"""Fields with most of the places of a body."""


class Requests:
    """Valid bodies of every call, and mutated ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mutator = Mutator(self.rng)
        self.documents = real_documents()
        self.sweeps = real_sweeps()
        self.runs = real_runs()
        models = [r for r in self.documents if isinstance(r.data, dict) and "model" in r.data]
        clusters = [r for r in self.documents if isinstance(r.data, dict) and "pools" in r.data]
        self.models, self.clusters = models, clusters
        self.results: list[dict[str, Any]] = []
        """Answers of evaluate, once there are some: what explain, emit and place are asked of."""

    def valid(self, name: str) -> dict[str, Any]:
        """Return a body that a call answers."""
        rng = self.rng
        job: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100-x8"}
        pins: dict[str, Any] = rng.choice(
            ({"tp": 8}, {"tp": 2, "pp": 2}, {"tp": 4, "recompute": "full"})
        )
        evaluated: dict[str, Any] = {"evaluate": {**job, "pins": pins}}
        plan: dict[str, Any] = evaluated
        if self.results and rng.random() < 0.7:
            plan = {"result": rng.choice(self.results)}
        few = {"tp": 8, "pp": 1}
        bodies: dict[str, Callable[[], dict[str, Any]]] = {
            "solve": lambda: {
                **job,
                "pins": few,
                "top": 1,
                "only": {"zero": [0, 1]},
                "max": {"mbs": 2},
                "set": {"pools.0.nodes": 1},
                "objective": "",
                "pareto": [],
                "time_limit_s": SEARCH_S,
            },
            "evaluate": lambda: {**job, "pins": pins, "set": {"training.global_batch": 64}},
            "explain": lambda: {**plan, "plan": 1, "term": rng.choice(("", "bubble", "tp"))},
            "emit": lambda: {**plan, "for": ["megatron"], "launcher": ["torchrun", "slurm"]},
            "check": lambda: {
                "run": {"text": rng.choice(self.runs).text, "name": "run.sh"},
                "cluster": "h100-x8",
                "env": {"NNODES": "1"},
                "files": {},
            },
            "diff": lambda: {"a": evaluated, "b": {"evaluate": {**job, "pins": {"tp": 1}}}},
            "scale": lambda: {**job, "points": 2, "to": 8, "pins": few, "time_limit_s": SEARCH_S},
            "allocate": lambda: {
                "free": {"h100": 8, "a100": rng.choice((0, 4))},
                "jobs": [
                    {
                        "name": name,
                        "weight": rng.choice((0.5, 2.0)),
                        "tokens": 1e9,
                        "deadline_s": rng.choice((0.0, 1e5)),
                        "curve": [
                            {"pool": "h100", "nodes": n, "tokens_per_s": 9e3 * n**0.9}
                            for n in (1, 2, 4)
                        ],
                    }
                    for name in ("one", "two", "three")
                ],
                "objective": rng.choice(("throughput", "fairness")),
            },
            "batch-solve": lambda: {
                "jobs": {"a": "llama3-8b"},
                "clusters": {"b": "h100-x8"},
                "counts": [8],
                "time_limit_s": SEARCH_S,
            },
            "sweep": lambda: {
                "spec": {
                    **job,
                    "vary": {"training.global_batch": [64]},
                    "search": {"pin": few, "top": 1},
                },
                "point_limit_s": 1.0,
                "time_limit_s": SEARCH_S,
            },
            "replan": lambda: {
                "evaluate": {
                    "model": "llama3-8b",
                    "cluster": "h100-x8",
                    "pins": pins,
                    "set": {"pools.0.nodes": 2},
                },
                "lost": 1,
                "gained": 0,
                "time_limit_s": SEARCH_S,
            },
            "place": lambda: {**plan, "hosts": "n1"},
            "trace": lambda: {**plan, "micro_batches": rng.choice((0, 1, 4))},
            "catalogue": lambda: {"name": rng.choice(("h100-sxm-80gb", "", "ib-ndr"))},
            "rules": lambda: {"code": rng.choice(("TP002", "PP001"))},
            "check-spec": lambda: {"document": rng.choice(self.models).data},
        }
        return bodies[name]()

    def mutated(self, name: str) -> dict[str, Any]:
        """Return a body near a valid one."""
        body = self.valid(name)
        what = self.rng.random()
        for key, reals in (("model", self.models), ("cluster", self.clusters)):
            if key in body and self.rng.random() < 0.25:
                real = self.rng.choice(reals)
                body[key] = (
                    self.mutator.data(real.data) if what < 0.5 else self.mutator.document(real)
                )
        if name == "check-spec":
            body["document"] = self.mutator.document(self.rng.choice(self.documents))
        if name == "check" and self.rng.random() < 0.7:
            body["run"]["text"] = self.mutator.document(self.rng.choice(self.runs))
        if name == "sweep" and self.rng.random() < 0.3:
            body["spec"] = self.rng.choice(self.sweeps).data
        if what < 0.85:
            # A whole result or model has so many places that the options would hardly be drawn.
            documents = {key: body.pop(key) for key in DOCUMENTS if key in body}
            body = self.mutator.data(body, 2)
            if isinstance(body, dict):
                body = {**documents, **body}
            if what < 0.2:
                body = self.mutator.data(body, 2)
        return body if isinstance(body, dict) else {"x": body}


# What no answer may be


@dataclass(slots=True)
class Found:
    """What a run of the fuzzer has seen."""

    n: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    """Each kind of fault once, with the first request that showed it."""
    n_faults: int = 0
    slowest_s: float = 0.0
    slowest: str = ""
    begin: dict[str, float] = field(default_factory=dict)
    """Memory, files and threads after the warm part."""
    end: dict[str, float] = field(default_factory=dict)

    def fault(self, kind: str, request: str) -> None:
        """Note a fault."""
        self.n_faults += 1
        self.faults.setdefault(kind, request[:20_000])

    def timed(self, seconds: float, request: str) -> None:
        """Note how long a request took."""
        if seconds > self.slowest_s:
            self.slowest_s, self.slowest = seconds, request[:2_000]
        if seconds > HANG_S:
            self.fault(f"hang: {seconds:.0f} s", request)

    def check_growth(self) -> None:
        """Note growth between the warm part of the run and its end."""
        grown = self.end["rss_bytes"] - self.begin["rss_bytes"]
        if grown > GROWTH_BYTES:
            self.fault(f"growth: {grown / 1e6:.0f} MB", "")
        for what in ("files", "threads"):
            more = self.end[what] - self.begin[what]
            if more > 4:
                self.fault(f"growth: {more:.0f} {what}", "")

    def to_json(self) -> dict[str, Any]:
        """Return what is to be reported."""
        return {
            "requests": self.n,
            "statuses": dict(sorted(self.statuses.items())),
            "faults": self.n_faults,
            "kinds": list(self.faults),
            "slowest_s": round(self.slowest_s, 2),
            "begin": self.begin,
            "end": self.end,
        }


def resources(pids: tuple[int, ...] = ()) -> dict[str, float]:
    """Return resident memory, open files and threads of this process and others.

    Of this process what is in use: free memory between it depends on how threads took turns.
    """
    give_back()
    rss = files = 0.0
    for pid in (os.getpid(), *pids):
        try:
            pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
            rss += int(pages) * os.sysconf("SC_PAGE_SIZE")
            files += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # it was replaced
            continue
    return {"rss_bytes": rss, "files": files, "threads": float(threading.active_count())}


def where(error: BaseException) -> str:
    """Return the kind of an exception and the line that raised it: the same defect, once."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if "/site-packages/" not in f.filename and "/lib/python" not in f.filename
    ]
    last = (own or frames)[-1] if frames else None
    at = f"{Path(last.filename).name}:{last.lineno} in {last.name}" if last else "?"
    return f"{type(error).__name__} at {at}: {str(error)[:120]}"


class Hang(BaseException):
    """A request took too long; no handler of the library catches it."""


def in_time(work: Callable[[], Any]) -> Any:
    """Return what some work returns; `Hang` after `HANG_S` (in the main thread)."""

    def ring(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def ask_in_process(found: Found, name: str, body: Any) -> dict[str, Any] | None:
    """Ask a call in this process and note what must not be; return its answer if there is one."""
    from dataclasses import replace

    from service.handlers.calls import call, dumps
    from service.handlers.limits import DEFAULTS
    from service.handlers.problems import Refusal
    from service.handlers.running_call import RunningCall

    settings = replace(DEFAULTS, solve_s=SEARCH_S)
    begun_s = time.process_time()
    shown = f"{name} {json.dumps(body, default=str)}"
    found.n += 1
    answer = None
    try:
        answer = in_time(lambda: call(name, body, RunningCall(settings)))
        dumps(answer, name)
        status = "200"
    except Refusal as problem:
        status = str(problem.status)
        said = json.dumps(problem.to_json("id"), allow_nan=False)
        if problem.status >= 500:
            found.fault(where(problem), shown)
        elif "Traceback" in said or "/site-packages/" in said:
            found.fault(f"a trace in {problem.code}", shown)
    except Hang as hang:
        status = "hang"
        found.fault("hang " + where(hang), shown)
    except RecursionError as error:
        status = "crash"
        found.fault("RecursionError " + where(error), shown)
    except Exception as error:
        status = "crash"
        found.fault(where(error), shown)
    found.statuses[f"{name} {status}"] += 1
    found.timed(time.process_time() - begun_s, shown)
    return answer


# Targets


def fuzz_yaml(n_requests: int, seed: int, note: Callable[[Found], None] = lambda _: None) -> Found:
    """Read mutated and hostile documents of every format: what a file may hold, in process."""
    found, requests = Found(), Requests(seed)
    rng, mutator = requests.rng, requests.mutator
    for i in range(n_requests):
        if i == int(WARM * n_requests):
            found.begin = resources()
        if i < len(HOSTILE_TEXTS):
            text = HOSTILE_TEXTS[i]
        else:
            text = mutator.document(rng.choice(requests.documents))
        what = rng.random()
        if what < 0.70:
            body: Any = text if what < 0.5 else {"text": text, "name": "job.yaml"}
            ask_in_process(found, "check-spec", {"document": body})
        elif what < 0.85:
            run = mutator.document(rng.choice(requests.runs))
            ask_in_process(found, "check-spec", {"document": {"text": run, "name": "a.sh"}})
        elif what < 0.95:
            spec = rng.choice(requests.sweeps).data
            body = {"spec": mutator.data(spec), "time_limit_s": 0.01, "point_limit_s": 0.01}
            ask_in_process(found, "sweep", body)
        else:
            calibration = {"name": "x", "values": mutator.data({"gemm_efficiency": 1.0})}
            ask_in_process(
                found,
                "evaluate",
                {
                    "model": "llama3-8b",
                    "cluster": "h100-x8",
                    "pins": {"tp": 8},
                    "calibration": rng.choice((calibration, mutator.dumped(calibration), text)),
                },
            )
        note(found)
    found.end = resources()
    found.check_growth()
    return found


def fuzz_calls(
    n_requests: int, seed: int, note: Callable[[Found], None] = lambda _: None
) -> Found:
    """Ask every call with bodies near valid ones, in process."""
    from service.handlers.calls import CALLS

    found, requests = Found(), Requests(seed)
    names = sorted(CALLS)
    for i in range(n_requests):
        if i == int(WARM * n_requests):
            found.begin = resources()
        name = names[i % len(names)]
        answer = ask_in_process(found, name, requests.mutated(name))
        keep_result(requests, name, answer)
        note(found)
    found.end = resources()
    found.check_growth()
    return found


def keep_result(requests: Requests, name: str, answer: Any) -> None:
    """Remember an answer of evaluate: later requests are about it."""
    if name == "evaluate" and answer and answer.get("plans") and len(requests.results) < 20:
        requests.results.append(answer)


# REST


TOKEN = "fuzz-0123456789abcdef"
SECRET = "whsec_" + "A" * 32
SELECTORS = (
    "team=a",
    "a!=b,!c",
    "a in (b,c)",
    "a notin ()",
    "a in (",
    "=",
    ",",
    "a=b,,c",
    "x" * 300,
    "a/b/c",
    "\u00e9=1",
)
LABEL_TEXTS = ("team", "example.com/stage", "a" * 64, "", "-a", "a b", "a/", "A.b_c-1", "\u00e9")
URLS = (
    "https://hooks.invalid/x",
    "http://127.0.0.1:9/",
    "https://[::1]:1/",
    "https://127.1/",
    "https://0x7f000001/",
    "https://hooks.invalid:99999/",
    "https://a@hooks.invalid/",
    "https://hooks.invalid\\@127.0.0.1/",
    "file:///etc/passwd",
    "https://hooks.invalid/\r\nx: y",
    "",
)
ANSWER_TYPES = ("application/json", "application/problem+json", "text/plain", "text/event-stream")


@dataclass(slots=True)
class Sent:
    """One HTTP request."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    known: str = ""
    """Operation that it is for, where it is nearly valid."""

    def shown(self) -> str:
        """Return the request as a report shows it."""
        return f"{self.method} {self.path} {self.headers} {self.body[:10_000]!r}"


class RestRequests:
    """Requests near valid ones of every operation of the OpenAPI document."""

    def __init__(self, seed: int) -> None:
        from service.rest.operations import OPERATIONS

        self.bodies = Requests(seed)
        self.rng, self.mutator = self.bodies.rng, self.bodies.mutator
        self.operations = OPERATIONS
        self.jobs: list[str] = ["0" * 32]
        self.webhooks: list[str] = ["0" * 32]

    def next(self) -> Sent:
        """Return the next request."""
        rng = self.rng
        operation = rng.choice(self.operations)
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + TOKEN.encode())]
        body = b""
        if operation.request is not None:
            headers.append((b"content-type", b"application/json"))
            webhook = operation.id == "createWebhook"
            body = self._webhook() if webhook else self._body(operation.call)
        path = operation.path.replace("{job_id}", self._job_id())
        if operation.id == "watchJob":  # of a job that runs, the stream would last as long
            headers.append((b"last-event-id", b"999999999"))
            path = operation.path.replace("{job_id}", rng.choice(self.jobs))
        known = rng.random() < 0.8
        webhook_id = rng.choice(self.webhooks[-20:]) if known else self._job_id()
        path = path.replace("{webhook_id}", webhook_id)
        query = self._query([p.name for p in operation.parameters if p.where == "query"])
        if operation.id == "watchJobs":  # without an end it would last for ever
            query = f"?timeout_s=0&labels={quote(rng.choice(SELECTORS))}"
        for parameter in operation.parameters:
            if parameter.where == "header" and rng.random() < 0.3:
                name = parameter.name.lower().encode()
                headers.append((name, self._header(parameter.name)))
        if rng.random() < 0.1:
            name = rng.choice(
                (
                    b"traceparent",
                    b"x-request-id",
                    b"origin",
                    b"accept",
                    b"content-type",
                    b"content-encoding",
                    b"content-length",
                    b"host",
                    b"authorization",
                )
            )
            headers.append((name, self._header("")))
        method = operation.method
        if rng.random() < 0.03:
            method = rng.choice(("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "GET", "POST", "X"))
        if rng.random() < 0.03:
            path = self.mutator.text(path, 2).replace("\x00", "%00")
        return Sent(method, path + query, headers, body, operation.id)

    def _webhook(self) -> bytes:
        rng = self.rng
        usual = rng.random() < 0.5
        url, selector = (URLS[0], "") if usual else (rng.choice(URLS), rng.choice(SELECTORS))
        asked: Any = {"url": url, "secret": SECRET, "states": ["FAILED"], "labels": selector}
        asked = self.mutator.data(asked) if rng.random() < 0.5 else asked
        return json.dumps(asked).encode("utf-8", "surrogatepass")

    def _body(self, call: str) -> bytes:
        rng = self.rng
        from service.handlers.calls import CALLS

        name = call or rng.choice(sorted(CALLS))
        request: Any = self.bodies.mutated(name) if rng.random() < 0.9 else self.bodies.valid(name)
        if not call:
            request = {"call": name, "request": request, "time_limit_s": 1}
            if rng.random() < 0.3:
                request["labels"] = {rng.choice(LABEL_TEXTS): rng.choice(LABEL_TEXTS)}
            if rng.random() < 0.2:
                request["webhook"] = {"url": rng.choice(URLS), "secret": SECRET}
            request = self.mutator.data(request) if rng.random() < 0.2 else request
        text = json.dumps(request)
        if rng.random() < 0.1:
            text = self.mutator.text(text, 3)
        body = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.05:
            at = rng.randrange(len(body) + 1)
            body = body[:at] + rng.randbytes(rng.randrange(8)) + body[at + rng.randrange(8) :]
        return body

    def _job_id(self) -> str:
        if self.rng.random() < 0.8:
            return self.rng.choice(self.jobs[-20:])
        return self.rng.choice(
            (
                "%00",
                "%ff",
                "%0a",
                "x" * 3_000,
                "..",
                "%2e%2e",
                "'",
                "a:b",
                "\u0130",
                "1 OR 1=1",
                "%F0%9F%98%80",
                "-1",
                "null",
                "%ed%a0%80",
            )
        )

    def _query(self, names: list[str]) -> str:
        parts = []
        for name in (*names, "x"):
            if self.rng.random() < (0.5 if name != "x" else 0.05):
                value = self.rng.choice(
                    (
                        "1",
                        "0",
                        "1000",
                        "-1",
                        "99999999999999999999",
                        "%00",
                        "%ff",
                        "SUCCEEDED",
                        *map(quote, SELECTORS),
                        "tp002",
                        "TP002",
                        "h100-sxm-80gb",
                        "a&a=b",
                        "",
                        "&",
                        "=",
                        "%",
                        "x" * 2_000,
                    )
                )
                parts.append(f"{name}={value}")
        return "?" + "&".join(parts) if parts else ""

    def _header(self, name: str) -> bytes:
        known = {
            "Prefer": (
                b"wait=1",
                b"respond-async",
                b"wait=",
                b"wait=1e9",
                b"wait=0.01",
                b"handling=x",
            ),
            "Idempotency-Key": (b"k", b"k" * 201, b"\xff", b"", b"a b", b"k2", b"k3"),
            "If-None-Match": (b"*", b'"x"', b'W/"x", "y"', b"," * 500),
            "Last-Event-ID": (b"0", b"-1", b"x", b"9" * 12, b"1e3"),
        }.get(name, ())
        hostile = (
            b"",
            b"\xff\xfe",
            b"x" * 5_000,
            b"00-" + b"f" * 32 + b"-" + b"0" * 16 + b"-01",
            b"Bearer ",
            b"null",
            b"http://evil",
            b"99999999999",
            b"-5",
            b"text/html",
            b"gzip",
            b"application/json; charset=utf-7",
            b"\xc3\xa9",
        )
        return self.rng.choice((*known, *known, *hostile))


async def ask_asgi(app: Any, sent: Sent) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send a request to an ASGI application as the HTTP server does; return what it answers."""
    import asyncio
    from urllib.parse import unquote

    path, _, query = sent.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("ascii", "replace"),
        "root_path": "",
        "headers": sent.headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    parts = [{"type": "http.request", "body": sent.body, "more_body": False}]
    never = asyncio.Event()
    status, headers, body = 0, {}, []

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            body.append(message.get("body", b""))

    await asyncio.wait_for(app(scope, receive, send), ANSWER_S)
    return status, headers, b"".join(body)


def check_answer(
    found: Found, sent: Sent, status: int, headers: dict[bytes, bytes], body: bytes
) -> Any:
    """Note what no answer may be; return its JSON, if it has any."""
    shown = sent.shown()
    media = headers.get(b"content-type", b"").decode().partition(";")[0]
    data = None
    late = status == 504 and sent.known == "getResult"  # the job's own: it was killed in time
    if status >= 500 and not late:
        found.fault(f"{sent.known} {status} {body[:150]!r}", shown)
    if not status:
        found.fault(f"{sent.known}: no answer", shown)
    if b"x-request-id" not in headers:
        found.fault(f"{sent.known} {status} without a request id", shown)
    if b"Traceback" in body or b"/site-packages/" in body or b'File "/' in body:
        found.fault(f"{sent.known} {status}: a trace in the answer", shown)
    if body and media not in ANSWER_TYPES:
        found.fault(f"{sent.known} {status}: Content-Type {media!r}", shown)
    if media in ("application/json", "application/problem+json"):
        try:
            data = json.loads(body) if body else None
        except ValueError:
            found.fault(f"{sent.known} {status}: no JSON", shown)
    if status >= 400 and sent.method != "HEAD":
        fields = {"type", "title", "status", "detail", "code", "instance"}
        if not isinstance(data, dict) or not fields <= data.keys() or data["status"] != status:
            found.fault(f"{sent.known} {status}: no problem document", shown)
    return data


async def check_schema(found: Found, sent: Sent, status: int, body: bytes) -> None:
    """Note an answer that is not of the schema that the document promises."""
    from pydantic import ValidationError

    from service.rest.operations import OPERATIONS

    each = next(each for each in OPERATIONS if each.id == sent.known)
    model = each.answers.get(status, ("", None))[1]
    if model is None or sent.method not in (each.method, "HEAD") or not body:
        return
    try:
        model.model_validate_json(body)
    except ValidationError as error:
        found.fault(f"{sent.known} {status}: not of its schema: {str(error)[:200]}", sent.shown())


def fuzz_rest(
    n_requests: int,
    seed: int,
    note: Callable[[Found], None] = lambda _: None,
    *,
    folder: Path | None = None,
    workers: bool = False,
) -> Found:
    """Ask the REST application, without a network; calls in this process or in real workers."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        return asyncio.run(_rest(n_requests, seed, note, folder or Path(made), workers))


@contextlib.asynccontextmanager
async def _engine(
    found: Found, folder: Path, workers: bool
) -> AsyncIterator[tuple[Any, Callable[[], tuple[int, ...]]]]:
    """Yield an engine, and what returns the ids of its worker processes."""
    from service.engine import Engine
    from service.jobs.store import Store
    from tests.service import serving

    if not workers:

        def defect(error: BaseException) -> None:
            found.fault(where(error), "in a call")

        async with serving.calls_engine(folder, defect) as engine:
            yield engine, tuple
        return
    store = Store(f"sqlite:///{folder}/service.sqlite")
    engine = Engine(store, serving.SETTINGS, serving.OPTIONS)

    def pids() -> tuple[int, ...]:
        return tuple(id for pool in engine._pools for id in pool.process_ids())

    await engine.start()
    try:
        yield engine, pids
        if engine._pool.n_deaths:
            found.statuses["workers that died"] = engine._pool.n_deaths
    finally:
        await engine.close()
        store.close()


async def _rest(
    n_requests: int, seed: int, note: Callable[[Found], None], folder: Path, workers: bool
) -> Found:
    from service.access.auth import Auth, read_tokens
    from service.rest.application import Rest
    from tests.service import serving

    found, requests = Found(), RestRequests(seed)
    async with _engine(found, folder, workers) as (engine, pids):
        auth = Auth(read_tokens(f"fuzz admin {TOKEN}", "tokens"), 10**9)
        app = Rest(engine, auth, serving.SETTINGS)
        for i in range(n_requests):
            if i == int(WARM * n_requests):
                found.begin = resources(pids())
            sent = requests.next()
            begun_s = time.process_time()
            found.n += 1
            try:
                status, headers, body = await ask_asgi(app, sent)
            except TimeoutError:
                found.fault(f"{sent.known}: no answer in {ANSWER_S:g} s", sent.shown())
                continue
            except Exception as error:
                found.fault(where(error), sent.shown())
                continue
            found.timed(time.process_time() - begun_s, sent.shown())
            found.statuses[f"{sent.known} {status}"] += 1
            data = check_answer(found, sent, status, headers, body)
            await check_schema(found, sent, status, body)
            if status == 202 and isinstance(data, dict):
                requests.jobs.append(data["job_id"])
            if status == 201 and isinstance(data, dict):
                requests.webhooks.append(data["webhook_id"])
            if sent.known == "evaluate" and status == 200:
                keep_result(requests.bodies, "evaluate", data)
            note(found)
        found.end = resources(pids())
    found.check_growth()
    return found


# gRPC


class Context:
    """What gRPC gives a handler, without a network."""

    def __init__(
        self, metadata: tuple[tuple[str, Any], ...], left_s: float | None, message: bytes = b""
    ) -> None:
        self._metadata, self._left_s, self._message = metadata, left_s, message
        self.code: Any = None
        self.details = ""
        self.written: list[bytes] = []

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return self._left_s

    def set_trailing_metadata(self, metadata: Any) -> None:
        assert all(isinstance(value, str | bytes) for _, value in metadata)

    async def read(self) -> bytes:
        return self._message

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def abort(self, code: Any, details: str = "", metadata: Any = ()) -> None:
        import grpc

        self.code, self.details = code, details
        self.set_trailing_metadata(metadata)
        raise grpc.aio.AbortError


def keep_ids(requests: Any, message: Any) -> None:
    """Remember a job and a webhook that an answer names: later requests are about them."""
    if getattr(message, "job_id", ""):
        requests.jobs.append(message.job_id)
    if getattr(message, "webhook_id", ""):
        requests.webhooks.append(message.webhook_id)


class GrpcRequests:
    """Messages near valid ones of every method, and bytes that are none."""

    def __init__(self, seed: int) -> None:
        from service.rpc.gate import CALL_OF, SERVICE

        self.bodies = Requests(seed)
        self.rng, self.mutator = self.bodies.rng, self.bodies.mutator
        self.methods = [method.name for method in SERVICE.methods]
        self.call_of = CALL_OF
        self.jobs: list[str] = ["0" * 32]
        self.webhooks: list[str] = ["0" * 32]

    def next(self) -> tuple[str, bytes, tuple[tuple[str, Any], ...]]:
        """Return the method, the bytes and the metadata of the next request."""
        from service.rpc.messages import _REQUESTS

        rng = self.rng
        method = rng.choice(self.methods)
        message = _REQUESTS[method]()
        name = self.call_of.get(method)
        if method == "SubmitJob":
            name = rng.choice(sorted(set(self.call_of.values())))
            field = name.replace("-", "_")
            self._fill(getattr(message, field), self.bodies.mutated(name))
            message.time_limit_s = rng.choice((0.0, 1.0, -1.0, 1e9, float("nan"), float("inf")))
            if rng.random() < 0.3:
                message.labels[rng.choice(LABEL_TEXTS)] = rng.choice(LABEL_TEXTS)
            if rng.random() < 0.2:
                message.webhook.url, message.webhook.secret = rng.choice(URLS), SECRET
        elif name:
            self._fill(message, self.bodies.mutated(name))
        for field in message.DESCRIPTOR.fields:
            if field.name == "job_id":
                known = rng.random() < 0.8
                message.job_id = (
                    rng.choice(self.jobs[-20:])
                    if known
                    else rng.choice(("", "\0", "x" * 999, "é"))
                )
            elif field.name in ("limit", "after") and rng.random() < 0.5:
                setattr(message, field.name, rng.choice((0, 1, -1, 1_000, 2**31 - 1, 5)))
            elif field.name in ("labels", "url", "webhook_id") and method != "SubmitJob":
                usual = {"labels": SELECTORS[0], "url": URLS[0]}
                usual["webhook_id"] = rng.choice(self.webhooks[-20:])
                hostile = rng.choice((*SELECTORS, *LABEL_TEXTS, *URLS))
                value = usual[field.name] if rng.random() < 0.8 else hostile
                setattr(message, field.name, value)
            elif field.name == "call" and rng.random() < 0.2:
                message.call = rng.choice((*LABEL_TEXTS, "solve"))
            elif field.name == "resource_version" and rng.random() < 0.2:
                message.resource_version = rng.choice((1, -1, 2**53, 2**63 - 1))
            elif field.name == "cursor" and rng.random() < 0.3:
                message.cursor = rng.choice(("1", "x", "9" * 30, "\0"))
            elif field.name == "delivery" and rng.random() < 0.2:
                message.delivery.job = rng.random() < 0.5
                message.delivery.form = rng.choice((0, 1, 2, 99))
        if method == "WatchJob":
            message.job_id = self.rng.choice(self.jobs)
        if method == "WatchJobs":  # without an end it would last for ever
            message.timeout_s = rng.choice((0.0, 0.0, 0.01, 0.01, -1.0, float("nan")))
        data = message.SerializeToString()
        if rng.random() < 0.25:
            data = self._mutated(data)
        metadata: list[tuple[str, Any]] = [("authorization", f"Bearer {TOKEN}")]
        if rng.random() < 0.2:
            key = rng.choice(
                (
                    "idempotency-key",
                    "if-none-match",
                    "x-request-id",
                    "traceparent",
                    "authorization",
                )
            )
            metadata.append((key, rng.choice(("k", "x" * 500, "*", "", "Bearer x", b"\xff"))))
        return method, data, tuple(metadata)

    def _fill(self, message: Any, body: Any) -> None:
        """Fill a request from its JSON, as far as it goes; or hand it over as JSON."""
        from service.rpc.convert import fill

        if not isinstance(body, dict) or self.rng.random() < 0.4:
            text = json.dumps(body)
            if self.rng.random() < 0.1:
                text = self.mutator.text(text, 2)
            message.json = text.encode("utf-8", "replace").decode()
            return
        for name in ("model", "cluster", "document", "calibration", "run"):
            value = body.get(name)
            if name not in message.DESCRIPTOR.fields_by_name or value is None:
                continue
            place = getattr(message, name)
            del body[name]
            try:
                if isinstance(value, str) and "\n" not in value and name != "run":
                    place.name = value
                elif isinstance(value, dict) and hasattr(place, "content"):
                    place.content.update(value)
                else:
                    target = place.text if hasattr(place, "content") else place
                    target.text = value if isinstance(value, str) else str(value.get("text"))
            except (TypeError, ValueError, AttributeError):
                place.SetInParent()
        plain = {
            k: v
            for k, v in body.items()
            if isinstance(k, str) and k in message.DESCRIPTOR.fields_by_name
        }
        for name, value in plain.items():
            try:
                fill(message, {name: value})
            except (TypeError, ValueError, AttributeError, OverflowError, UnicodeError):
                continue

    def _mutated(self, data: bytes) -> bytes:
        rng = self.rng
        if rng.random() < 0.2:
            return rng.randbytes(rng.randrange(200))
        if rng.random() < 0.1:  # groups, lengths beyond the end, deep nesting
            return rng.choice(
                (b"\x0b" * 200, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x7f" * 5_000, b"\xff" * 20)
            )
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data) + 1)
            what = rng.randrange(4)
            piece = rng.randbytes(rng.randrange(1, 5)) if what < 3 else data[at : at + 40]
            data = data[:at] + piece + data[at + rng.randrange(6) :]
        return data


async def ask_grpc(
    handler: Any, method: str, data: bytes, metadata: Any
) -> tuple[str, list[bytes], str]:
    """Send a request to the handler of a method; return status, messages and refusal."""
    import asyncio

    import grpc

    from service.rpc.gate import NAME

    context = Context(metadata, 5.0, data)

    @dataclass
    class Details:
        method: str
        invocation_metadata: Any

    found = handler.service(Details(f"/{NAME}/{method}", metadata))
    try:
        if found.response_streaming:
            await asyncio.wait_for(found.stream_stream(None, context), ANSWER_S)
            return "OK", context.written, ""
        return "OK", [await asyncio.wait_for(found.stream_unary(None, context), ANSWER_S)], ""
    except grpc.aio.AbortError:
        return context.code.name, context.written, context.details


def fuzz_grpc(
    n_requests: int,
    seed: int,
    note: Callable[[Found], None] = lambda _: None,
    *,
    folder: Path | None = None,
    workers: bool = False,
) -> Found:
    """Ask the methods of planner.v1.Planner, without a network."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        return asyncio.run(_grpc(n_requests, seed, note, folder or Path(made), workers))


async def _grpc(
    n_requests: int, seed: int, note: Callable[[Found], None], folder: Path, workers: bool
) -> Found:
    from service.access.auth import Auth, read_tokens
    from service.rpc.messages import _RESPONSES
    from service.rpc.methods import Grpc
    from service.telemetry.metrics import Metrics
    from tests.service import serving

    found, requests = Found(), GrpcRequests(seed)
    auth = Auth(read_tokens(f"fuzz admin {TOKEN}", "tokens"), 10**9)
    async with _engine(found, folder, workers) as (engine, pids):
        handler = Grpc(engine, auth, serving.SETTINGS, Metrics(engine)).handler()
        for i in range(n_requests):
            if i == int(WARM * n_requests):
                found.begin = resources(pids())
            method, data, metadata = requests.next()
            shown = f"{method} {data[:10_000]!r} {metadata}"
            begun_s = time.process_time()
            found.n += 1
            try:
                status, written, details = await ask_grpc(handler, method, data, metadata)
            except TimeoutError:
                found.fault(f"{method}: no answer in {ANSWER_S:g} s", shown)
                continue
            except Exception as error:
                found.fault(where(error), shown)
                continue
            found.timed(time.process_time() - begun_s, shown)
            found.statuses[f"{method} {status}"] += 1
            if status in ("INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"):
                found.fault(f"{method} {status} {details[:150]}", shown)
            if "Traceback" in details or 'File "/' in details:
                found.fault(f"{method} {status}: a trace", shown)
            for each in written:
                message = _RESPONSES[method].FromString(each)
                keep_ids(requests, message)
            note(found)
        found.end = resources(pids())
    found.check_growth()
    return found
