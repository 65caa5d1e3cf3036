"""Loading tokenizers and renderers, and the errors that name the keys to fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import ConfigError
from runners.records.tokenizer import (
    Tokenizer,
    load_renderer,
    load_tokenizer,
    tiny_tokenizer,
    write_tiny_tokenizer,
)
from tests.fakes.family_tokenizer import load_family

TINY = Tokenizer(tiny_tokenizer(), name_or_path="tiny", eos_token_id=None)


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert TINY.decode(TINY.encode(text)) == text


@given(st.text(st.sampled_from("a b'\n\r\t1é漢🙂<|im_end|>") | st.characters()))
def test_a_text_has_the_ids_that_it_has_with_offsets(text: str) -> None:
    assert TINY.encode(text) == TINY.backend.encode(text, add_special_tokens=False).ids


def test_special_tokens_are_single_ids_and_can_be_left_out(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.encode("a<|im_end|>")[-1] == end == tokenizer.eos_token_id
    assert tokenizer.decode([*tokenizer.encode("a"), end], skip_special_tokens=True) == "a"
    assert tokenizer.decode(end) == "<|im_end|>"
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "no such token"]) == [end, None]
    assert max(tokenizer.encode("<think></think>")) < tokenizer.vocab_size


def test_a_misspelt_family_is_answered_with_the_nearest(tokenizer_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.renderer='qwen-3'.*Did you mean 'qwen3'\?"):
        load_renderer(load_tokenizer(tokenizer_dir), "qwen-3")


def test_a_family_without_a_bridge_of_its_own_is_not_offered(tokenizer_dir: Path) -> None:
    with pytest.raises(ConfigError, match="'default' is unknown"):
        load_renderer(load_tokenizer(tokenizer_dir), "default")


def test_a_family_that_does_not_fit_the_tokenizer_names_both_keys(tokenizer_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.renderer='glm-4\.5' does not fit .*\[gMASK\]"):
        load_renderer(load_tokenizer(tokenizer_dir), "glm-4.5")


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.tokenizer=.*no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / name).write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=name):
        load_tokenizer(tmp_path)


def test_earlier_thoughts_stay_when_a_new_user_message_comes(tokenizer_dir: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    renderer = load_renderer(tokenizer, "qwen3")
    prompt = renderer.render_ids([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    output = tokenizer.encode("<think>\nhm\n</think>\n\nhello<|im_end|>")
    bridged = renderer.bridge_to_next_turn(prompt, output, [{"role": "user", "content": "more"}])
    assert bridged is not None
    assert bridged.token_ids[: len(prompt) + len(output)] == prompt + output


def test_gpt_oss_without_its_vocabulary_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    with pytest.raises(ConfigError, match="TIKTOKEN_ENCODINGS_BASE"):
        load_family("gpt-oss")
