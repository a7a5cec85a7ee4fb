"""Who else vouches for callers: OIDC issuers and a Kubernetes API server, as the file has them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """An issuer of OIDC tokens."""

    name: str
    """Before the names of its callers: `corp:ann`."""
    issuer: str
    """The claim `iss`, exactly; where no `jwks_url` is given its keys are found below it."""
    audience: str
    """What the claim `aud` must be or hold: a token for another service opens nothing here."""
    jwks_url: str = ""
    ca: Path | None = None
    """Certificates that the issuer's must come from; None for those of the system."""
    name_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class KubernetesProvider:
    """An API server that reviews tokens of its cluster."""

    api_server: str
    audience: str
    """What the token must be for."""
    name: str = "kubernetes"
    ca: Path | None = None
    token_file: Path | None = None
    """Token of this service for the API server; read again for every review."""
    cache_s: float = 60.0
    """How long a review holds."""


@dataclass(frozen=True, slots=True)
class Providers:
    """All of them."""

    oidc: tuple[OidcProvider, ...] = ()
    kubernetes: KubernetesProvider | None = None

    def __bool__(self) -> bool:
        """Tell whether there is one."""
        return bool(self.oidc) or self.kubernetes is not None
