"""The server of the Model Context Protocol: tools and resources, whatever carries its messages."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from anyio.from_thread import run as run_in_loop
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

import planner
from planner.errors import PlannerError
from service.agents.resources import SCHEME, read_resource, resource_list
from service.agents.tool import Desk
from service.agents.tools import TOOLS, call_tool, refusal_json, refusal_text
from service.handlers.problems import Refusal

MOST_AT_ONCE = 2
"""Calls that are computed at the same time; others wait."""
MOST_WAITING = 40
"""Calls that are computed or wait for it, each in a thread; more wait for one."""
INSTRUCTIONS = """\
planner finds the fastest way to split an LLM training job over a cluster, and proves it.
Start with solve(model, cluster): a model is an example's name or a Hugging Face config.json, a
cluster is words such as 64xh100. Answers are short; details=full has everything. Plans are named
by their ref (RESULT_ID#RANK) in explain, neighbours, compare, replan, place, trace and emit.
Units are s, bytes, FLOP/s. A refusal says what to change; planner://docs/SKILL says more."""
READS = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def make_server(desk: Desk) -> Server[Any]:
    """Return the server over a desk."""
    limiter, slots = anyio.CapacityLimiter(MOST_WAITING), threading.Semaphore(MOST_AT_ONCE)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tool_list())

    async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _called(params, desk, context.session, Room(limiter, slots))

    async def list_resources(context: Any, params: Any) -> types.ListResourcesResult:
        rows = resource_list(desk.results)
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=uri, name=uri.removeprefix(SCHEME), title=about, mime_type=mime)
                for uri, about, mime in rows
            ]
        )

    async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=_templates())

    async def read(
        context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return _read(str(params.uri), desk)

    return Server(
        "planner",
        version=planner.__version__,
        title="Parallelism planner",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
    )


def tool_list() -> list[types.Tool]:
    """Return the tools as the protocol describes them."""
    return [
        types.Tool(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.input_schema(),
            output_schema=tool.output_schema(),
            annotations=READS,
        )
        for tool in TOOLS.values()
    ]


@dataclass(frozen=True, slots=True)
class Room:
    """How many calls a server takes."""

    threads: anyio.CapacityLimiter
    slots: threading.Semaphore
    """Held by the thread itself: one whose caller went away computes until it looks up."""


async def _called(
    params: types.CallToolRequestParams, desk: Desk, session: Any, room: Room
) -> types.CallToolResult:
    """Answer a call in a thread; a caller that goes away ends its search."""
    arguments, gone = params.arguments or {}, threading.Event()
    mine = desk.with_stop(gone.is_set).with_progress(_progress(session))

    def work() -> types.CallToolResult:
        with room.slots:
            if gone.is_set():
                return types.CallToolResult(content=[], is_error=True)
            return _result(params.name, arguments, mine)

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=room.threads)
    finally:
        gone.set()


def _progress(session: Any) -> Callable[[Mapping[str, Any]], None]:
    """Return what tells a caller who asked for it how far a search is."""

    def tell(event: Mapping[str, Any]) -> None:
        run_in_loop(
            session.report_progress, float(event["done"]), float(event["total"]), event["phase"]
        )

    return tell


def _result(name: str, arguments: Mapping[str, Any], desk: Desk) -> types.CallToolResult:
    """Return a tool's answer as the protocol has it; a refusal is an answer too."""
    try:
        text, data = call_tool(name, arguments, desk)
        is_error = False
    except Refusal as refusal:
        data, is_error = refusal_json(refusal, name, arguments), True
        text = refusal_text(data)
    content: list[Any] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=data, is_error=is_error)


def _templates() -> list[types.ResourceTemplate]:
    rows = (
        ("results/{result_id}", "An answer of solve or evaluate, whole", "application/json"),
        ("docs/{page}", "A page of the documentation", "text/markdown"),
        ("examples/models/{name}", "A model file to start from", "text/yaml"),
        ("examples/clusters/{name}", "A cluster file to start from", "text/yaml"),
    )
    return [
        types.ResourceTemplate(
            uri_template=f"{SCHEME}{uri}", name=uri.partition("/{")[0], title=title, mime_type=mime
        )
        for uri, title, mime in rows
    ]


def _read(address: str, desk: Desk) -> types.ReadResourceResult:
    """Return a resource; an error of the protocol where there is none."""
    try:
        text, mime = read_resource(address, desk.results)
    except PlannerError as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from None
    contents: list[Any] = [types.TextResourceContents(uri=address, mime_type=mime, text=text)]
    return types.ReadResourceResult(contents=contents)
