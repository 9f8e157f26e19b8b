"""Masks passwords in URLs: the one function for whatever is stored or printed."""

from __future__ import annotations

import re

MASK = "***"
# A password may contain /, # and @, so it ends at the last @ of the word.
_IN_USER_INFO = re.compile(r"(?P<before>[A-Za-z][\w+.\-]*://[^\s:/?#@]*:)[^\s'\"]+(?=@)")
_IN_QUERY = re.compile(
    r"(?P<before>[?&](?:\w*password|passwd|pwd|\w*token|\w*secret|api_?key)=)[^&\s'\"]+", re.IGNORECASE
)


def is_masked(text: str) -> bool:
    """Whether a password was replaced in this text."""
    return MASK in text


def mask_secrets(text: str) -> str:
    """The text with the passwords of its URLs replaced: in `user:password@host` and in `?password=`."""
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\g<before>{MASK}", _IN_USER_INFO.sub(rf"\g<before>{MASK}", text))
