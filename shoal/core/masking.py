"""Values that are shown to nobody: of keys named like a password, and passwords in addresses.

They stay in the journal, for trials train with them. What is shown or exported for others goes
through here.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MASK = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = frozenset({"secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd"})
_ALWAYS |= {"credential", "credentials", "apikey", "apikeys"}
# These name a secret as the last word of a name, and only if the value is a text: max_tokens=512,
# tokenizer="bpe" and key_dim=64 do not.
_LAST = frozenset({"key", "keys", "token", "tokens"})
_OF_TEXTS = frozenset({"bos", "cls", "eos", "mask", "pad", "sep", "special", "unk"})
_IN_ADDRESS = re.compile(r"(\w://[^\s/@:]*:)[^\s/@]+(?=@)")
_IN_QUERY = re.compile(r"([?&][\w-]*(?:key|token|secret|password)=)[^&\s#]+", re.IGNORECASE)


@lru_cache(4096)
def _words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in small letters."""
    return tuple(word.lower() for word in _WORDS.findall(name))


def is_secret(name: str, value: Any) -> bool:
    """Whether the value of this name is shown to nobody."""
    words = _words_of(name)
    if value is None or isinstance(value, bool) or not words:
        return False
    if not _ALWAYS.isdisjoint(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    return words[-1] in _LAST and before not in _OF_TEXTS and _has_text(value)


def masked(name: str, value: Any) -> Any:
    """What to show of a value: `MASK` for a secret one."""
    if is_secret(name, value):
        return MASK
    if isinstance(value, Mapping):
        return masked_config(value)
    if isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping):
            return [value[0], masked(*value)]  # a dimension, as a journal's head has it
        return type(value)([masked("", item) for item in value])
    if isinstance(value, str):
        return without_passwords(value)
    return value


def masked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What to show of a configuration."""
    return {name: masked(str(name), value) for name, value in config.items()}


def without_passwords(text: str) -> str:
    """The text with `MASK` for the passwords and tokens of addresses in it."""
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{MASK}", _IN_ADDRESS.sub(rf"\1{MASK}", text))


def _has_text(value: Any) -> bool:
    """Whether this is a text, or holds one."""
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str)
