"""How one process of the service is started: what `planner serve` was told."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from service.handlers.limits import DEFAULTS, RequestLimits
from service.settings.options import Options

HOST, PORT, GRPC_PORT, PROBE_PORT = "127.0.0.1", 8642, 8643, 8644


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """How callers reach a service over HTTP."""

    root_path: str = ""
    """Prefix of all paths, such as `/planner`, where a proxy shows the service below one."""
    tls: bool = False
    only_hosts: frozenset[str] | None = None
    """Names under which it is called; others are refused, so that a page in a browser cannot reach
    a service without tokens by a name of its own. None for any."""


def is_own_name(host: str, only_hosts: frozenset[str] | None) -> bool:
    """Tell whether a header Host names the service."""
    return only_hosts is None or re.sub(r":\d*$", "", host.strip()).lower() in only_hosts


@dataclass(frozen=True, slots=True)
class Serving:
    """How a process of the service is started."""

    host: str = HOST
    port: int = PORT
    """0: any that is free."""
    grpc_port: int = GRPC_PORT
    """0: no gRPC."""
    probe_port: int | None = None
    """Of /livez and /readyz alone; 0: none. None: the usual one, where it is free."""
    database: str = ""
    data: Path | None = None
    token_file: Path | None = None
    tenants: Path | None = None
    """File of groups, quotas and providers of identities."""
    audit_log: str = ""
    """File, or `-` for stdout; empty: none."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """Callers must have a certificate of it."""
    insecure: bool = False
    share_port: bool = False
    """Several processes listen at the same ports; one that stops leaves them to the others."""
    root_path: str = ""
    """Prefix of all paths, such as `/planner`, where a proxy shows the service below one."""
    limits: RequestLimits = DEFAULTS
    options: Options = field(default_factory=Options)

    @property
    def scheme(self) -> Literal["http", "https"]:
        """Scheme of the addresses."""
        return "https" if self.tls_cert else "http"
