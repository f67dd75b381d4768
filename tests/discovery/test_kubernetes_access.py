"""How the API server is reached: a service account, or a kubeconfig; and the section that says so."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.config import ConfigError, parse
from fairlead.discovery.kubernetes.access import from_kubeconfig, in_cluster
from fairlead.errors import UserError
from fairlead.serving.preflight import preflight
from tests.edge.certificates import Authority


def account(folder: Path) -> Path:
    (folder / "token").write_text("first\n")
    (folder / "namespace").write_text("models")
    (folder / "ca.crt").write_bytes(Authority(folder / "ca").pem)
    return folder


def kubeconfig(folder: Path, **changes: Any) -> Path:
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("client")
    document: dict[str, Any] = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "models"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://10.0.0.1:6443/",
                    "certificate-authority-data": base64.b64encode(authority.pem).decode(),
                },
            }
        ],
        "users": [{"name": "u", "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document | changes))
    return path


def test_a_pod_is_its_service_account_and_its_token_is_read_for_each_request(tmp_path: Path) -> None:
    folder = account(tmp_path)
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, folder)
    assert (access.url, access.namespace) == ("https://[fd00::1]:443", "models")
    assert access.headers() == {"authorization": "Bearer first"}
    (folder / "token").write_text("second")
    assert access.headers() == {"authorization": "Bearer second"}


def test_a_new_certificate_authority_counts_from_the_next_request(tmp_path: Path) -> None:
    folder = account(tmp_path)
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, folder)
    first = access.tls()
    assert access.tls() is first
    (folder / "ca.crt").unlink()
    (folder / "ca.crt").write_bytes(Authority(folder / "another").pem)
    assert access.tls() is not first


def test_outside_a_pod_the_error_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write kubeconfig"):
        in_cluster({}, tmp_path)
    with pytest.raises(UserError, match="automountServiceAccountToken"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_kubeconfig_names_server_authority_and_client_certificate(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path))
    assert (access.url, access.namespace, access.headers()) == ("https://10.0.0.1:6443", "models", {})
    assert access.tls().get_ca_certs()


def test_a_kubeconfig_may_have_a_token_file_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    access = from_kubeconfig(kubeconfig(tmp_path, users=[{"name": "u", "user": {"tokenFile": "token"}}]))
    assert access.headers() == {"authorization": "Bearer t"}


def test_a_kubeconfig_that_is_replaced_counts_from_the_next_request(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, users=[{"name": "u", "user": {"token": "old"}}])
    access = from_kubeconfig(path)
    assert access.renewed() is access
    path.rename(tmp_path / "before")  # its i-node is not given to the new one
    kubeconfig(tmp_path, users=[{"name": "u", "user": {"token": "new"}}])
    assert access.renewed().headers() == {"authorization": "Bearer new"}


def test_a_kubeconfig_that_is_replaced_while_it_is_read_counts_from_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load = kubeconfig(tmp_path, users=[{"name": "u", "user": {"token": "old"}}]), yaml.safe_load

    def replaced_after(text: bytes) -> object:
        path.rename(tmp_path / "before")
        kubeconfig(tmp_path, users=[{"name": "u", "user": {"token": "new"}}])
        return load(text)

    with monkeypatch.context() as patched:
        patched.setattr(yaml, "safe_load", replaced_after)
        access = from_kubeconfig(path)
    assert access.headers() == {"authorization": "Bearer old"}
    assert access.renewed().headers() == {"authorization": "Bearer new"}


def test_a_client_certificate_that_is_replaced_counts_from_the_next_request(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path))
    certificate, key = Authority(tmp_path / "another").issue("client")
    for file, new in (("client.pem", certificate), ("client.key", key)):
        new.replace(next(tmp_path.joinpath("ca").rglob(file)))
    renewed = access.renewed()
    assert renewed.client_certificate != access.client_certificate
    assert renewed.tls() is not access.tls()


def test_another_current_context_does_not_lead_to_another_cluster(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    access = from_kubeconfig(path)
    document = yaml.safe_load(path.read_text())
    document["contexts"].append({"name": "there", "context": {"cluster": "d", "user": "u"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "https://10.9.9.9"}})
    path.rename(tmp_path / "before")
    path.write_text(yaml.safe_dump(document | {"current-context": "there"}))
    assert access.renewed() is not access
    assert access.renewed().url == access.url


def test_a_kubeconfig_that_is_gone_is_explained_and_counts_again_when_it_is_back(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    access = from_kubeconfig(path)
    path.rename(tmp_path / "away")
    with pytest.raises(UserError, match="cannot be read"):
        access.renewed()
    (tmp_path / "away").rename(path)
    assert access.renewed() is access


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"current-context": "there"}, 'no context named "there"'),
        ({"users": []}, 'no user named "u"'),
        ({"users": [{"name": "u", "user": {"exec": {"command": "aws"}}}]}, "use a token"),
        ({"users": [{"name": "u", "user": {"client-certificate": "/nowhere"}}]}, "mend its path"),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, "write an https URL"),
        ({"contexts": "x"}, "no context"),
        ({"contexts": None}, "no context"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_explained(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_kubeconfig(kubeconfig(tmp_path, **changes))


def test_check_reads_the_kubeconfig(tmp_path: Path) -> None:
    section = "{inference_pool: llm, kubeconfig: config}"
    with pytest.raises(ConfigError, match="write the path of a kubeconfig"):
        preflight(parse(f"discovery: {{kubernetes: {section}}}"), tmp_path)
    kubeconfig(tmp_path)
    preflight(parse(f"discovery: {{kubernetes: {section}}}"), tmp_path)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "\t\x00"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UserError, match="write the path"):
        from_kubeconfig(path)


@pytest.mark.parametrize(
    "section",
    ["{inference_pool: vllm}", '{selector: "app=vllm,tier!=x", ports: [8000, 8001]}', "{service: vllm, port: http}"],
)
def test_the_section_names_one_kind(section: str) -> None:
    assert parse(f"discovery: {{kubernetes: {section}}}").discovery.is_used


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("{}", "discovery.kubernetes: needs one of inference_pool, selector, service; it has none"),
        ("{inference_pool: a, service: b}", "it has inference_pool and service"),
        ("{selector: app=a}", "discovery.kubernetes.ports: is required with a selector"),
        ("{service: a, ports: [1]}", "discovery.kubernetes.ports: only counts with selector"),
        ("{inference_pool: a, port: x}", "discovery.kubernetes.port: only counts with service"),
        ("{inference_pool: a, context: x}", "discovery.kubernetes.context: only counts with kubeconfig"),
        ("{inference_pool: ../pods}", "is not the name of an object"),
        ("{selector: a, ports: [70000]}", "must be 65535 or less"),
    ],
)
def test_a_section_that_cannot_be_used_is_explained(section: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"discovery: {{kubernetes: {section}}}")
    assert sentence in str(refused.value)
