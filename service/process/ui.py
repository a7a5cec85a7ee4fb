"""`planner ui`: the page of a service that runs, or of one that is started here."""

import json
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from dataclasses import replace

from planner.errors import UsageError
from service.process.serve import serve_forever
from service.settings.serving import Serving

PROBE_S = 2.0
"""How long a service may take to say what it is."""
MOST_BYTES = 5_000_000


def is_planner(address: str) -> bool:
    """Tell whether a service of planner answers at an address."""
    try:
        with urllib.request.urlopen(f"{address}/openapi.json", timeout=PROBE_S) as answer:
            result = json.loads(answer.read(MOST_BYTES))
    except (OSError, ValueError):
        return False
    info = result.get("info") if isinstance(result, dict) else None
    return isinstance(info, dict) and info.get("title") == "planner"


def show_ui(address: str, browser: bool, opened: Callable[[str], bool] = webbrowser.open) -> None:
    """Print the address of a page, and open a browser at it where one is wanted and there."""
    print(address, flush=True)
    if browser and not opened(address):
        print("no browser could be opened: open the address yourself", file=sys.stderr, flush=True)


def page_address(address: str) -> str:
    """Return the address of the page of a service; `UsageError` where nothing is there."""
    base = address.rstrip("/").removesuffix("/ui")
    if not base.startswith(("http://", "https://")):
        raise UsageError(f"{address[:80]!r} is no address", "such as https://planner.example")
    if not is_planner(base):
        raise UsageError(
            f"no planner answers at {base}",
            "start one with planner serve; or without an address, planner ui starts one here",
        )
    return f"{base}/ui"


async def start_service(serving: Serving, browser: bool) -> None:
    """Serve on this machine until a signal, and show the page once it answers."""

    def ready(address: str, grpc_address: str) -> None:
        # A browser may take seconds, or never return: the service must not wait for it.
        page = f"{address}{serving.root_path}/ui"
        threading.Thread(target=show_ui, args=(page, browser), daemon=True).start()
        print("planner serves it (Ctrl-C stops it)", file=sys.stderr, flush=True)

    await serve_forever(serving, ready)


def ui_main(address: str, serving: Serving, browser: bool) -> None:
    """Run `planner ui`."""
    import asyncio

    if address:
        return show_ui(page_address(address), browser)
    here = f"http://{serving.host}:{serving.port}"
    if is_planner(here):
        return show_ui(f"{here}/ui", browser)
    try:
        asyncio.run(start_service(serving, browser))
    except UsageError as error:
        if f"port {serving.port}" not in error.message:
            raise
        asyncio.run(
            start_service(replace(serving, port=0), browser)
        )  # the port is somebody else's
    return None
