"""Keys name their process, and the head of a request is read however it is cut."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.replicas.request_head import RequestHead, is_for_all, read_head
from runners.gateway.replicas.session_key import make_replica_key, replica_of

KEY = make_replica_key(7)
names = st.text("abcdefghijklmnopqrstuvwxyzABC-", min_size=1, max_size=12).map(lambda n: f"x{n}")
values = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=60)
other_headers = st.lists(st.tuples(names, values), max_size=6)
key_headers = st.sampled_from(
    [
        ("Authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer   {KEY}  "),
        ("X-Api-Key", KEY),
        ("x-api-key", f" {KEY}"),
    ]
)
paths = st.sampled_from(["/v1/messages", "/v1/messages?beta=true", "/v1/chat/completions"])


@given(st.data(), paths, other_headers, key_headers, st.binary(max_size=40))
def test_a_head_is_found_when_its_last_byte_is_there_and_not_before(
    data: st.DataObject,
    path: str,
    others: list[tuple[str, str]],
    key: tuple[str, str],
    body: bytes,
) -> None:
    headers = [*others, key]
    headers = data.draw(st.permutations(headers))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    whole = head + body
    cut = data.draw(st.integers(1, len(whole)))
    found = read_head(whole[:cut])
    if cut < len(head):
        assert found is None
    else:
        assert found == RequestHead(path.partition("?")[0], KEY)


def test_a_bearer_wins_over_an_api_key_and_the_first_of_two_wins() -> None:
    lines = ["GET / HTTP/1.1", "x-api-key: a", "Authorization: Bearer b", "authorization: Bearer c"]
    found = read_head("\r\n".join([*lines, "", ""]).encode())
    assert found == RequestHead("/", "b")
    basic = read_head(b"GET / HTTP/1.1\r\nauthorization: Basic b\r\nx-api-key: a\r\n\r\n")
    assert basic == RequestHead("/", "a")


@pytest.mark.parametrize(
    "first", [b"\x16\x03\x01", b"\r\nGET / HTTP/1.1", b"\0", b"GET / HTTP/1.1\n"]
)
def test_what_is_no_http_is_not_waited_for(first: bytes) -> None:
    assert read_head(first) == RequestHead()


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    for end in (b"", b"\r\n\r\n"):
        found = read_head(data + end)
        assert found is None or isinstance(found, RequestHead)


def test_paths_of_the_admin_and_of_health_are_for_all() -> None:
    for path in ("/admin/sessions", "/admin/sessions/s1/finish", "/health", "/health/", "/", ""):
        assert is_for_all(path), path
    for path in ("/v1/messages", "/administer", "/v1/models/admin/"):
        assert not is_for_all(path), path


@given(st.integers(0, 63))
def test_a_key_names_its_process(number: int) -> None:
    key = make_replica_key(number)
    assert replica_of(key) == number
    assert len(set(make_replica_key(number) for _ in range(4))) == 4


@pytest.mark.parametrize(
    "key",
    ["", secrets.token_urlsafe(32), "01-short", f"1-{KEY[3:]}", f"001-{KEY[3:]}", f"{KEY}\n"],
    ids=["none", "another", "short", "one digit", "three digits", "line"],  # the keys are random
)
def test_another_key_names_none(key: str) -> None:
    assert replica_of(key) is None
