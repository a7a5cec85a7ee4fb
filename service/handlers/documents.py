"""From what a request holds to what the library reads: contents, never files and addresses."""

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Literal

from planner.solver.calibration.file import Calibration, calibration_of
from planner.specs.cluster.words import (
    EXAMPLES,
    cluster_words,
    document_of_words,
)
from planner.specs.examples import example_content, example_names
from planner.specs.inputs import Content
from planner.specs.yaml.document import Document as YamlDocument
from planner.specs.yaml.document import close_names, parse_yaml
from service.handlers.limits import (
    RequestLimits,
    check_document_text,
    check_input_limits,
    too_large,
)
from service.handlers.problems import Fault, Refusal, refused
from service.handlers.schemas import Text

Kind = Literal["model", "cluster"]
_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_ENDINGS = (
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".py",
    ".sh",
    ".sbatch",
    ".slurm",
    ".txt",
    ".csv",
    ".xml",
    ".conf",
    ".lst",
    ".hosts",
)
_FILE_NAME = re.compile(r"[A-Za-z0-9._+#@-]{1,128}")


def looks_like_path(text: str) -> bool:
    """Tell whether a text that should be a name or a document names a file or an address.

    >>> [looks_like_path(x) for x in ("../job.yaml", "http://host/x", "llama3-70b", "model: {}")]
    [True, True, False, False]
    """
    if _URL.match(text):
        return True
    line = text.strip()
    if not line or line.startswith(("{", "[")) or any(blank in line for blank in " \n\t"):
        return False
    leads = "/" in line or "\\" in line or line[0] in "~."
    return leads or line.lower().endswith(_ENDINGS)


def path_refused(field: str, text: str) -> Refusal:
    """Return the refusal of a file or an address."""
    shown = text.strip()[:80]
    detail = f"{field}: {shown!r} names a file or an address, and none is ever opened"
    fix = "send what it holds: its text, or a mapping; or the name of a packaged example"
    return refused("path-or-url", detail, 422, [Fault(detail, fix, field=field)])


def content_of(document: Any, kind: Kind, field: str, settings: RequestLimits) -> Content:
    """Return a document of a request; `Refusal` where it is none.

    A text of one word is the name of a packaged example, or a cluster said in words (`64xh100`),
    else the text of a file. Raises `SpecError` for words of parts that are none.
    """
    if isinstance(document, Mapping):
        return Content(document, label=field)
    if isinstance(document, Text):
        return Content(
            _text(document.text, field, settings), document_name(document, field), field
        )
    if looks_like_path(document):
        raise path_refused(field, document)
    word = document.strip()
    words = cluster_words(word) if "\n" not in word and word not in _names("cluster") else None
    if words:
        return Content(document_of_words(words).data, label=field, shown=word)
    if "\n" not in word and ":" not in word and not word.startswith("{"):
        return _example(word, kind, field)
    return Content(_text(document, field, settings), label=field)


def _example(name: str, kind: Kind, field: str) -> Content:
    others: tuple[Kind, Kind] = (kind, "cluster" if kind == "model" else "model")
    for one in others:
        if name in _names(one):
            return example_content(one, name)
    names = _names(kind)
    close = close_names(name, names, 2)
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    detail = f"{field}: no example called {name[:80]!r}"
    in_words = f"; or in words: {EXAMPLES}" if kind == "cluster" else ""
    fix = f"{guess}{kind} examples: {', '.join(names)}{in_words}; or send what the file holds"
    raise refused("bad-specification", detail, 422, [Fault(detail, fix, field=field)])


@cache
def _names(kind: Kind) -> list[str]:
    return example_names(kind)


def _text(text: str, field: str, settings: RequestLimits) -> str:
    check_document_text(text, field, settings)
    if not text.strip():
        detail = f"{field}: the text is empty"
        fix = "send what the file holds; the folder examples/ has complete ones"
        raise refused("bad-specification", detail, 422, [Fault(detail, fix, field=field)])
    return text.removeprefix("\ufeff")


def document_name(text: Text, field: str) -> str:
    """Return what a text is called; a name that leads into folders is refused."""
    if text.name and (not _FILE_NAME.fullmatch(text.name) or text.name.startswith(".")):
        detail = f"{field}.name: {text.name[:80]!r} is no plain file name"
        fix = "letters, digits and . _ + # @ -, such as job.yaml; it names the text in messages"
        raise refused("path-or-url", detail, 422, [Fault(detail, fix, field=f"{field}.name")])
    return text.name


def run_document(document: Any, settings: RequestLimits) -> Content:
    """Return the launch script or configuration of a request."""
    if isinstance(document, Text):
        return Content(_run_text(document.text, settings), document_name(document, "run"), "run")
    if looks_like_path(document):
        raise path_refused("run", document)
    return Content(_run_text(document, settings), label="run")


def _run_text(text: str, settings: RequestLimits, field: str = "run") -> str:
    if not text.strip():
        detail = f"{field}: the text is empty"
        fix = "send what the file holds"
        raise refused("bad-specification", detail, 422, [Fault(detail, fix, field=field)])
    n_bytes = len(text.encode("utf-8"))
    if n_bytes > settings.document_bytes:
        fix = "a launch script has some hundred lines"
        what = f"bytes of the {field}"
        raise too_large(what, n_bytes, settings.document_bytes, field, fix)
    return text.removeprefix("\ufeff")


def files_of(files: Mapping[str, str], settings: RequestLimits) -> dict[str, str]:
    """Return the texts of the files that a run names."""
    return {name: _run_text(text, settings, f"files.{name}") for name, text in files.items()}


def calibration_in(document: Any, settings: RequestLimits) -> Calibration | None:
    """Return the calibration of a request, read from its content; None for the one that ships."""
    if document is None:
        return None
    return calibration_of(*_yaml_document(document, "calibration", settings))


def reference_in(document: Any, files: Mapping[str, str], settings: RequestLimits) -> Any:
    """Return the measured runs of a request as the library takes them; empty where it has none."""
    from planner.solver.calibration.reference import ReferenceContent

    if document is None:
        if files:
            detail = "files: texts of the files that a reference names, and there is no reference"
            raise refused("malformed", detail, 422, [Fault(detail, "leave them out", "files")])
        return ""
    content, name = _yaml_document(document, "reference", settings)
    texts = {
        key: Content(_text(text, f"files.{key}", settings), key, f"files.{key}")
        for key, text in files.items()
    }
    check = partial(check_input_limits, settings=settings)
    return ReferenceContent(content, texts, name, check)


def _yaml_document(document: Any, field: str, settings: RequestLimits) -> tuple[YamlDocument, str]:
    """Return what a field holds, read, and what its text is called; `Refusal` for a path."""
    name = ""
    if isinstance(document, Text):
        name, document = document_name(document, field), document.text
    elif isinstance(document, str) and looks_like_path(document):
        raise path_refused(field, document)
    if isinstance(document, Mapping):
        return YamlDocument(dict(document), field), name
    return parse_yaml(_text(document, field, settings), name or field), name


def hosts_in(text: str | None) -> tuple[str, ...] | None:
    """Return the host names of a request, None where it names none."""
    from planner.frameworks.launchers.hosts import hosts_of_text

    if text is None:
        return None
    if "/" in text or "\\" in text or _URL.match(text) or text.strip().endswith(_ENDINGS):
        raise path_refused("hosts", text)
    return hosts_of_text(text)
