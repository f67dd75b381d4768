"""The tokenizer of all tiny models: one token for each word and each fixed phrase, in the files that vLLM loads."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from lab import words

# A turn of the assistant ends with </s>; nothing else surrounds the message.
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


def make_tokenizer() -> Tokenizer:
    tokens = words.vocabulary()
    tokenizer = Tokenizer(WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=words.UNKNOWN))
    tokenizer.add_special_tokens([words.UNKNOWN, words.BOS, words.EOS])
    longest_first = sorted(tokens, key=len, reverse=True)
    tokenizer.pre_tokenizer = Split(Regex("|".join(re.escape(token) for token in longest_first)), behavior="isolated")
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words.BOS,
        "eos_token": words.EOS,
        "unk_token": words.UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")
