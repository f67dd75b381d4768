"""The salt that keeps what a tenant has cached from the others."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.cache_salt import LONGEST_NAME_BYTES, salt_of

_OWN = st.one_of(st.just(b""), st.text(max_size=300).map(lambda text: json.dumps(text).encode()))
_TENANTS = st.binary(max_size=100)


@given(_TENANTS, _OWN)
def test_vllm_takes_it(tenant: bytes, own: bytes) -> None:
    written = salt_of(tenant, own)
    if written:
        salt = json.loads(written)
        assert 1 <= len(salt) <= 128
        assert not set(salt) & set("@/\\\0")


@given(_TENANTS, _OWN, _TENANTS, _OWN)
def test_no_two_tenants_have_the_same_whatever_their_clients_write(
    tenant: bytes, own: bytes, other: bytes, others_own: bytes
) -> None:
    mine, theirs = salt_of(tenant, own), salt_of(other, others_own)
    if tenant != other:
        assert mine != theirs or not mine  # who is of no tenant and writes no salt has none
        assert salt_of(tenant, theirs) != theirs


def test_a_tenants_own_salts_stay_apart() -> None:
    salts = {salt_of(b"acme", own) for own in (b"", b'"a"', b'"b"', b'["a","b"]')}
    assert len(salts) == 4
    assert salt_of(b"acme", b"null") == salt_of(b"acme", b'""') == salt_of(b"acme", b"")


def test_without_a_tenant_a_clients_salt_is_no_tenants() -> None:
    assert salt_of(b"", b"") == b""
    assert salt_of(b"", salt_of(b"acme", b"")) != salt_of(b"acme", b"")


def test_long_names_differ_too() -> None:
    long = b"x" * (LONGEST_NAME_BYTES + 1)
    assert len({salt_of(long, b""), salt_of(long + b"x", b""), salt_of(long[1:], b"")}) == 3
