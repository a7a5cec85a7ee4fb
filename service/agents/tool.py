"""What a tool is, and what it may use: one record for each, from which the server is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.client.requests import document, run_of
from service.agents.arguments import Arguments, Detailed
from service.agents.results import Results
from service.agents.short_answers import ShortAnswer
from service.handlers.calls import call
from service.handlers.running_call import RunningCall

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Desk:
    """What all calls of a server share: its results, whether files are opened, and limits."""

    results: Results
    opens_files: bool
    """Whether a text may be the path of a file of this machine: over stdio alone."""
    running: RunningCall = field(default_factory=RunningCall)

    def ask(self, name: str, body: Mapping[str, Any]) -> Data:
        """Return the answer of a handler; `Refusal` for what is refused."""
        return call(name, body, self.running)

    def document(self, value: Any, kind: Any) -> Any:
        """Return a model or a cluster as requests hold it; files are read where that is allowed.

        A text that begins as JSON is what a file holds.
        """
        if isinstance(value, str) and value.lstrip().startswith("{"):
            return {"text": value}
        if not isinstance(value, str) or not self.opens_files:
            return {"text": value} if isinstance(value, str) and "\n" in value else value
        return document(value, kind)

    def run(self, text: str, name: str, files: Mapping[str, str]) -> Data:
        """Return the fields `run` and `files` of a check: a text, or over stdio a file."""
        is_text = "\n" in text.strip() or text.lstrip().startswith("{") or bool(name)
        if is_text:
            return {"run": {"text": text, "name": name}, "files": dict(files)}
        if not self.opens_files:
            return {"run": text, "files": dict(files)}
        return run_of(text, dict(files) or None)

    def with_stop(self, stop: Callable[[], bool]) -> "Desk":
        """Return the desk of one call, whose searches end when `stop` says so."""
        return replace(self, running=replace(self.running, stop=stop))

    def with_progress(self, progress: Callable[[Mapping[str, Any]], None]) -> "Desk":
        """Return the desk of one call, whose progress is told."""
        return replace(self, running=replace(self.running, progress=progress))


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a tool: a text for the reader of the conversation, and its figures."""

    text: str
    short: ShortAnswer
    full: Data

    def to_json(self, arguments: Detailed) -> Data:
        """Return the structured answer, whole where that was asked for."""
        data = self.short.model_dump(mode="json", by_alias=True, exclude={"full"})
        return {**data, "full": self.full} if arguments.details == "full" else data


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    title: str
    arguments: type[Arguments]
    answer: type[ShortAnswer]
    function: Callable[[Any, Desk], Answered]
    description: str
    """What it answers, when to take it, in a few sentences."""
    command: str = ""
    """The command of the command line that answers the same; empty: its name."""

    def input_schema(self) -> Data:
        """Return the JSON schema of its arguments."""
        return without_titles(self.arguments.model_json_schema(by_alias=True))

    def output_schema(self) -> Data:
        """Return the JSON schema of its structured answer."""
        return without_titles(self.answer.model_json_schema(mode="serialization"))


def without_titles(schema: Data) -> Data:
    """Return a schema without the titles that repeat names: an agent reads every word of it."""
    kept = {key: x for key, x in schema.items() if key != "title" or not isinstance(x, str)}
    return {key: _inner_without_titles(x) for key, x in kept.items()}


def _inner_without_titles(value: Any) -> Any:
    if isinstance(value, list):
        return [_inner_without_titles(item) for item in value]
    return without_titles(value) if isinstance(value, dict) else value
