"""Who may call: the token file and the file of tenants, read again while the service runs."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import PlannerError
from service.access.auth import Auth, Token, check_exposure, tokens_of, warn_of_expiry
from service.identity.verifiers import Verifiers
from service.settings.file_stamps import LOOK_S, stamps_of
from service.settings.serving import Serving
from service.tenants.file import TenantsFile, read_tenants
from service.tenants.groups import Group, Tenants
from service.tenants.providers import Providers

log = logging.getLogger("planner.service")


@dataclass(frozen=True, slots=True)
class CallerFiles:
    """What the files say."""

    tokens: tuple[Token, ...] = ()
    tenants: TenantsFile | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups in the order of the file."""
        return self.tenants.to_groups() if self.tenants else ()

    @property
    def default_group(self) -> str:
        """Group of who belongs to none; empty where there is none."""
        return (self.tenants.default_group or "") if self.tenants else ""

    @property
    def providers(self) -> Providers:
        """Who else vouches for callers."""
        return self.tenants.to_providers() if self.tenants else Providers()


def read_files(serving: Serving) -> CallerFiles:
    """Return what the files say; `UsageError` or `SpecError` for what is wrong."""
    tokens = tokens_of(serving.token_file) if serving.token_file else ()
    warn_of_expiry(tokens, time.time())
    return CallerFiles(tokens, read_tenants(serving.tenants) if serving.tenants else None)


def claims_of(groups: tuple[Group, ...]) -> frozenset[str]:
    """Return the claims by which members are told."""
    return frozenset(each.claim for group in groups for each in group.members.claims)


class Callers:
    """Who may call, by the files as they are now.

    Files that are wrong change nothing: the service goes on with what it has, and the log says so.
    """

    def __init__(
        self,
        serving: Serving,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        """Read the files; `UsageError` or `SpecError` where they cannot be used.

        Also where everybody in the network could call. `told` hears of every change.
        """
        self._serving, self._told = serving, told
        named = (serving.token_file, serving.tenants)
        self._files = [file for file in named if file is not None]
        self._seen = stamps_of(self._files)
        found = read_files(serving)
        self._found = found
        self._verifiers: Verifiers | None = None
        check_exposure(serving.host, bool(found.tokens or found.providers), serving.insecure)
        self.tenants = Tenants(found.groups, found.default_group)
        if found.providers:
            self._verifiers = Verifiers(found.providers, claims_of(found.groups))
        self.auth = Auth(found.tokens, serving.limits.failed_logins, self.tenants, self._verifiers)

    def read_again(self) -> None:
        """Use the files as they are now, where they can be used."""
        if not self._files:
            return
        self._seen = stamps_of(self._files)
        try:
            self._use(read_files(self._serving))
        except PlannerError as error:
            self._stay(error)

    async def keep_fresh(self, every_s: float = LOOK_S) -> None:
        """Read the files again whenever they have changed, until this is cancelled."""
        while self._files:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Read the files again where they have changed since they were read last."""
        stamps = await asyncio.to_thread(stamps_of, self._files)
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._use(await asyncio.to_thread(read_files, self._serving))
        except PlannerError as error:
            self._stay(error)

    def _stay(self, error: PlannerError) -> None:
        log.error("callers and groups stay as they were: %s", " ".join(str(error).split()))
        self._told("callers-unreadable")

    def _use(self, found: CallerFiles) -> None:
        old = self._found
        providers, claims = found.providers, claims_of(found.groups)
        if (providers, claims) != (old.providers, claims_of(old.groups)):
            before, self._verifiers = self._verifiers, Verifiers(providers, claims)
            if before is not None or providers:
                self.auth.use_verifier(self._verifiers)  # never none where there was one
            if before is not None:
                before.close()
        self._found = found
        self.auth.replace(found.tokens)
        self.tenants.replace(found.groups, found.default_group)
        log.info("callers and groups were read again")
        self._told("callers-read")

    def close(self) -> None:
        """Ask no provider any more."""
        if self._verifiers is not None:
            self._verifiers.close()
