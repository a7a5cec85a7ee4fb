"""Where the API server is: kubeconfig, pod, address; and what the client makes of its answers."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.errors import UsageError
from service.kueue import connection
from service.kueue.api import ApiClient, ApiError, KueueResources
from service.kueue.connection import Connection, find_connection, read_kubeconfig
from tools.kubernetes_api.server import Access, ApiServer, api_server

KINDS = KueueResources.of("v1beta2")


def kubeconfig(folder: Path, cluster: Any = None, user: Any = None, **more: Any) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/base/"}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        **more,
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_kubeconfig_says_server_and_token(tmp_path: Path) -> None:
    found = read_kubeconfig(kubeconfig(tmp_path))
    assert (found.url, found.bearer, found.tls) == ("http://127.0.0.1:1/base", "secret", None)
    (tmp_path / "token").write_text("from a file\n")
    found = read_kubeconfig(kubeconfig(tmp_path, user={"tokenFile": "token"}))
    assert found.bearer == "from a file"
    (tmp_path / "token").write_text("renewed\n")
    assert found.bearer == "renewed"
    cluster = {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}
    found = read_kubeconfig(kubeconfig(tmp_path, cluster))
    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"current-context": "there"}, "no 'there' in contexts"),
        ({"clusters": []}, "no 'c' in clusters"),
        ({"users": None}, "no 'u' in users"),
        ({"user": {"exec": {"command": "x"}}}, "users.exec is not supported"),
        ({"cluster": {"server": "nowhere"}}, "'nowhere' is no address"),
        (
            {"cluster": {"server": "https://h:1", "certificate-authority-data": "?"}},
            "no certificate",
        ),
        ({"cluster": {"server": "https://h:1", "certificate-authority": "x"}}, "no certificate"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_kubeconfig(kubeconfig(tmp_path, **change))
    assert said in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize("text", ["[]", "a: [", "\x00"])
def test_what_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"kubeconfig|cannot be read"):
        read_kubeconfig(path)


def test_the_order_in_which_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(UsageError, match="no cluster is named"):
        find_connection()
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "token").write_text("of the pod")
    monkeypatch.setattr(connection, "IN_POD", pod)
    with pytest.raises(UsageError, match="KUBERNETES_SERVICE_HOST"):
        find_connection()
    path = kubeconfig(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert find_connection().bearer == "secret"
    assert find_connection("http://127.0.0.1:8001/").url == "http://127.0.0.1:8001"
    with pytest.raises(UsageError, match="is no address"):
        find_connection("127.0.0.1:8001")


def client(served: ApiServer, token: str = "") -> ApiClient:
    return ApiClient(Connection(served.url, token), "me")


def test_errors_are_those_of_the_server() -> None:
    with api_server(Access("secret", [])) as served:
        with pytest.raises(ApiError, match="Unauthorized") as refusal:
            client(served).list_all(KINDS.checks)
        assert (refusal.value.status, refusal.value.is_passing) == (401, False)
        with pytest.raises(ApiError, match="is forbidden: cannot list") as refusal:
            client(served, "secret").list_all(KINDS.checks)
        assert refusal.value.status == 403
        gone = served.url
    with pytest.raises(ApiError) as refusal:
        ApiClient(Connection(gone), "me").kueue()
    assert (refusal.value.status, refusal.value.is_passing) == (0, True)


def test_a_cluster_without_kueue() -> None:
    with api_server() as served:
        found = client(served)
        assert found.kueue() == KINDS
        assert found.get(KINDS.checks, "nothing") is None

    class Without(ApiClient):
        def _json(self, *args: Any) -> Any:
            return {"versions": [{"version": "v1alpha1"}]}

    with pytest.raises(ApiError, match="v1alpha1, not v1beta2"):
        Without(Connection("http://127.0.0.1:1"), "me").kueue()


def test_lists_come_in_pages(served: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.kueue import api

    monkeypatch.setattr(api, "MOST_PAGE", 2)
    from tools.kubernetes_api.kueue import CHECKS

    for i in range(5):
        spec = {"controllerName": "x"}
        served.store.create(CHECKS, {"metadata": {"name": f"c{i}"}, "spec": spec})
    items, version = client(served).list_all(KINDS.checks)
    assert [x["metadata"]["name"] for x in items] == [f"c{i}" for i in range(5)]
    assert version == str(served.store.version)


def test_certificates_stand_in_the_file_or_beside_it(tmp_path: Path) -> None:
    import subprocess

    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout k -out c"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    server = {"server": "https://127.0.0.1:6443", "certificate-authority": "c"}
    data = {
        f"client-{name}-data": base64.b64encode((tmp_path / file).read_bytes()).decode()
        for name, file in (("certificate", "c"), ("key", "k"))
    }
    found = read_kubeconfig(kubeconfig(tmp_path, server, data))
    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_REQUIRED
    assert [
        dict(x[0] for x in one["subject"])["commonName"] for one in found.tls.get_ca_certs()
    ] == ["x"]
    wrong = {"client-certificate": "k", "client-key": "c"}
    with pytest.raises(UsageError, match="no certificate"):
        read_kubeconfig(kubeconfig(tmp_path, server, wrong))
