"""A small tokenizer with the special tokens of any family of ``model.renderer``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from conf.errors import ConfigError
from runners.gateway.texts.family_renderer import FamilyRenderer
from runners.gateway.texts.text_work import TextWork
from runners.records.tokenizer import (
    Renderer,
    Tokenizer,
    load_renderer,
    load_tokenizer,
    tiny_tokenizer,
    write_tiny_tokenizer,
)

_MISSING = re.compile(r"oken (?:for )?'([^']+)'")


@cache
def load_family(family: str) -> tuple[TextWork, Renderer, Tokenizer]:
    """Return the work, renderer and tokenizer of a family.

    Its tokens are those that the renderer asks for, one by one.
    """
    backend = Backend.from_str(tiny_tokenizer().to_str())
    with TemporaryDirectory() as folder:
        while True:
            tokenizer = load_tokenizer(write_tiny_tokenizer(Path(folder), backend))
            try:
                renderer = load_renderer(tokenizer, family)
            except ConfigError as error:
                missing = _MISSING.search(str(error))
                if missing is None or backend.token_to_id(missing[1]) is not None:
                    raise
                token = AddedToken(missing[1], special=True, normalized=False)
                backend.add_special_tokens([token])
                continue
            mended = FamilyRenderer(renderer, tokenizer, family)
            return TextWork(tokenizer, mended, family), renderer, tokenizer
