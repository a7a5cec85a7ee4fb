"""Certificates that are replaced while the service runs."""

import asyncio
import logging
import os
import shutil
import ssl
from pathlib import Path

import grpc

from service.rpc.server import credentials_of
from service.settings.certificates import LOOK_S, Certificates
from service.settings.serving import Serving
from tests.service.process.test_serve_hardened import certificate


def made(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    return certificate(folder)


def test_files_that_change_are_read_again_and_broken_ones_are_not_used(tmp_path, caplog):
    cert, key = made(tmp_path / "now")
    later = made(tmp_path / "later")
    now_s = 0.0
    found = Certificates(Serving(tls_cert=cert, tls_key=key), monotonic=lambda: now_s)
    first = found.context()
    now_s = LOOK_S + 1.0
    assert found.context() is first
    cert.write_text("no certificate")
    os.utime(cert, ns=(1, 1))
    now_s *= 2
    with caplog.at_level(logging.ERROR, logger="planner.service"):
        assert found.context() is first
    assert "stay as they were" in caplog.text
    for source, target in zip(later, (cert, key), strict=True):
        shutil.copy(source, target)
    assert found.context() is first  # not looked at yet
    now_s *= 2
    second = found.context()
    assert second is not first
    assert found.version == 1
    found.read_again()
    assert found.version == 2


def test_without_tls_there_is_no_context():
    found = Certificates(Serving())
    assert found.context() is None
    found.read_again()
    assert found.version == 0


def test_grpc_speaks_with_the_certificate_of_the_moment(tmp_path):
    cert, key = made(tmp_path / "now")
    later = made(tmp_path / "later")
    now_s = 0.0
    serving = Serving(tls_cert=cert, tls_key=key)
    certificates = Certificates(serving, monotonic=lambda: now_s)

    async def presented() -> list[bool]:
        nonlocal now_s
        server = grpc.aio.server()
        port = server.add_secure_port("127.0.0.1:0", credentials_of(serving, certificates))
        await server.start()
        seen = []
        for files in (None, later):
            if files is not None:
                shutil.copy(files[0], cert)
                shutil.copy(files[1], key)
                now_s += LOOK_S + 1.0
            wire = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
            seen.append(ssl.PEM_cert_to_DER_cert(wire) == der_of(later[0]))
        await server.stop(0)
        return seen

    assert asyncio.run(presented()) == [False, True]


def der_of(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())
