"""How Envoy reaches engines that want TLS or a key: by what a host's metadata name, so that a cluster has all kinds.

A host names its TLS setting to `transport_socket_matches`, and its key to the filters here, which run once an attempt's
host is known: on a fallback and without the sidecar, too. The keys themselves are secrets that Envoy reads from files;
its admin page does not show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fairlead.access import Access
from fairlead.api.headers import API_KEY, AUTHORIZATION
from fairlead.config import Config
from fairlead.gateway.parts import Part, type_url

NAMESPACE: Final = "fairlead"  # of a host's metadata
KEY: Final = "key"
LISTED: Final = "listed"  # in envoy.lb: the names that a host answers to
TLS_NAMESPACE: Final = "envoy.transport_socket_match"
TLS: Final = "tls"
_HEADER: Final = "x-fairlead-engine-key"  # names a key, inside Envoy only


def metadata(model: str, access: Access, names: Sequence[str] = ()) -> dict[str, dict[str, str | list[str]]]:
    """Of a host, by namespace. `names`: others that it answers to."""
    found: dict[str, dict[str, str | list[str]]]
    found = {"envoy.lb": {"model": model, LISTED: list(dict.fromkeys((model, *names)))}}
    if access.key_name:
        found[NAMESPACE] = {KEY: access.key_name}
    if access.tls_name:
        found[TLS_NAMESPACE] = {TLS: access.tls_name}
    return found


def secrets(config: Config) -> list[Part]:
    """The keys, by name."""
    keys = {access.key_name: access.api_key_file for access in _all(config) if access.key_name}
    return [{"name": name, "generic_secret": {"secret": {"filename": file}}} for name, file in keys.items()]


def sockets(config: Config) -> Part:
    """What a cluster of engines needs for TLS; plain hosts match none of them."""
    settings = {access.tls_name: access for access in _all(config) if access.tls_name}
    matches = [
        {
            "name": name,
            "match": {TLS: name},
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": _verified(access)},
        }
        for name, access in settings.items()
    ]
    return {"transport_socket_matches": matches} if matches else {}


def filters(config: Config) -> list[Part]:
    """Upstream filters, before the codec, that take a client's key away and add a host's; none where nobody has one."""
    # A client's key is for this gateway. A cascade's own requests show it again, so it goes here and not before.
    of_clients = (
        [] if config.clients is None else [_mutation(*({"remove": name.decode()} for name in (AUTHORIZATION, API_KEY)))]
    )
    names = [secret["name"] for secret in secrets(config)]
    if not names:
        return of_clients
    value = f"%UPSTREAM_METADATA({NAMESPACE}:{KEY})%"
    named = {"header": {"key": _HEADER, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    # Removed first: of a host without a key the value is empty, and Envoy then leaves what a client sent.
    mark = _mutation({"remove": _HEADER}, {"append": named})
    return [*of_clients, mark, *map(_injector, names), _mutation({"remove": _HEADER})]


def _all(config: Config) -> Iterable[Access]:
    return dict.fromkeys(config.pool.accesses().values())


def _verified(access: Access) -> Part:
    name = {"san_type": "DNS", "matcher": {"exact": access.server_name}}
    validation = {"trusted_ca": {"filename": access.ca}, "match_typed_subject_alt_names": [name]}
    return {
        "@type": type_url("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"),
        "sni": access.server_name,
        "common_tls_context": {"validation_context": validation},
    }


def _mutation(*mutations: Part) -> Part:
    name = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
    config = {"@type": type_url(name), "mutations": {"request_mutations": list(mutations)}}
    return {"name": "envoy.filters.http.header_mutation", "typed_config": config}


def _injector(name: str) -> Part:
    """Puts the key `name` in place of whatever a client sent, for hosts that want this key."""
    generic = "envoy.extensions.http.injected_credentials.generic.v3.Generic"
    injector = {
        "@type": type_url("envoy.extensions.filters.http.credential_injector.v3.CredentialInjector"),
        "overwrite": True,
        "credential": {
            "name": "envoy.http.injected_credentials.generic",
            "typed_config": {
                "@type": type_url(generic),
                "credential": {"name": name},
                "header": AUTHORIZATION.decode(),
                "header_value_prefix": "Bearer ",
            },
        },
    }
    header = {"@type": type_url("envoy.type.matcher.v3.HttpRequestHeaderMatchInput"), "header_name": _HEADER}
    is_this = {"single_predicate": {"input": {"name": "key", "typed_config": header}, "value_match": {"exact": name}}}
    skip = type_url("envoy.extensions.filters.common.matcher.action.v3.SkipFilter")
    otherwise = {"action": {"name": "skip", "typed_config": {"@type": skip}}}
    return {
        "name": name,
        "typed_config": {
            "@type": type_url("envoy.extensions.common.matching.v3.ExtensionWithMatcher"),
            "extension_config": {"name": "envoy.filters.http.credential_injector", "typed_config": injector},
            "xds_matcher": {
                "matcher_list": {"matchers": [{"predicate": {"not_matcher": is_this}, "on_match": otherwise}]}
            },
        },
    }
