"""Certificates of TLS: checked before a start, and read again while the service runs."""

import contextlib
import logging
import ssl
import time
from collections.abc import Callable

from planner.errors import UsageError
from service.settings.file_stamps import LOOK_S, stamps_of
from service.settings.serving import Serving

log = logging.getLogger("planner.service")

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and no CBC; those of 1.3 are all of that kind."""


def _no_password() -> str:
    raise ValueError("the key has a password")


def check_tls(serving: Serving) -> None:
    """Raise `UsageError` for certificates and keys that cannot be used."""
    if bool(serving.tls_cert) != bool(serving.tls_key):
        raise UsageError("TLS needs a certificate and its key", "--tls-cert FILE --tls-key FILE")
    if serving.tls_client_ca and not serving.tls_cert:
        raise UsageError("--tls-client-ca without TLS", "--tls-cert FILE --tls-key FILE")
    if not serving.tls_cert:
        return
    with contextlib.suppress(OSError, TypeError):
        if serving.tls_key and serving.tls_key.stat().st_mode & 0o007:
            log.warning("%s can be read by every user of this machine", serving.tls_key)
    tls_context(serving)


def tls_context(serving: Serving) -> ssl.SSLContext:
    """Return the context of TLS; `UsageError` for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    where = f"{serving.tls_cert}, {serving.tls_key}"
    try:
        context.load_cert_chain(serving.tls_cert or "", serving.tls_key, password=_no_password)
        if serving.tls_client_ca:
            where = str(serving.tls_client_ca)
            context.load_verify_locations(serving.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{where}: {reason}", "PEM files, the key without a password") from None


class Certificates:
    """The context of TLS for new connections, of the files as they are now.

    Files that cannot be used change nothing: the service goes on with those that it has.
    """

    def __init__(self, serving: Serving, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the files; `UsageError` where they cannot be used."""
        self._serving, self._monotonic = serving, monotonic
        named = (serving.tls_cert, serving.tls_key, serving.tls_client_ca)
        self._files = [file for file in named if file is not None]
        self._seen = stamps_of(self._files)
        self._looked_s = monotonic()
        self._context = tls_context(serving) if serving.tls_cert else None
        self.version = 0
        """How often they were read again."""

    def context(self) -> ssl.SSLContext | None:
        """Return the context of the next connection; None without TLS."""
        if self._files and self._monotonic() - self._looked_s > LOOK_S:
            self._looked_s = self._monotonic()
            if stamps_of(self._files) != self._seen:
                self.read_again()
        return self._context

    def read_again(self) -> None:
        """Use the files as they are now, where they can be used."""
        if not self._files:
            return
        self._seen = stamps_of(self._files)
        try:
            self._context = tls_context(self._serving)
        except UsageError as error:
            log.error("the certificates stay as they were: %s", error.message)
            return
        self.version += 1
        log.info("the certificates were read again")
