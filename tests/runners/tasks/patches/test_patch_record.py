"""Patches in records: any bytes survive encoding and decoding."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from runners.records.store.run_store import RunStore
from runners.records.text import clean_text, dumps, loads
from runners.tasks.contract import Patch, make_refused_patch
from runners.tasks.patches.patch import (
    TOUCHED,
    decode_patch,
    encode_patch_extra,
    encode_patch_text,
)
from tests.fakes.records import CONFIG, a_rollout

LATIN_1 = "--- a/n.txt\n+++ b/n.txt\n@@ -1 +1 @@\n-ol\xe9\n+\xe0 la\r\n".encode("latin-1")


def make_patch(diff: bytes) -> Patch:
    return Patch(diff, hashlib.sha256(diff).hexdigest(), (), ())


@given(st.binary(max_size=64))
@example(b"diff --git a/\0\0b/\0")
def test_any_bytes_survive(diff: bytes) -> None:
    patch = make_patch(diff)
    extra = loads(dumps(encode_patch_extra(patch)))
    found = decode_patch(clean_text(encode_patch_text(patch)), extra)
    assert replace(found, files=()) == patch  # some bytes name a file


def test_a_patch_of_a_latin_1_file_survives_the_store(tmp_path: Path) -> None:
    patch = make_patch(LATIN_1)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        record = replace(
            a_rollout(), patch=encode_patch_text(patch), extra=dict(encode_patch_extra(patch))
        )
        store.put_rollout(record)
        found = store.rollout(record.rollout_id)
    assert found is not None
    rebuilt = decode_patch(found.patch, found.extra)
    assert rebuilt == replace(patch, files=rebuilt.files)
    assert len(rebuilt.files) == 1
    assert "\ufffd la" in found.patch


def test_utf8_text_is_not_stored_twice() -> None:
    assert encode_patch_extra(make_patch("ünïcode \U0001f600\n".encode())) == {}


def test_the_refusal_and_the_tampered_paths_survive() -> None:
    patch = make_refused_patch("too large", ("tests/a.py",))
    assert (
        decode_patch(
            encode_patch_text(patch), encode_patch_extra(patch) | {TOUCHED: ["tests/a.py"]}
        )
        == patch
    )
