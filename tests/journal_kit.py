"""Journals that tests write themselves."""

import re


def unsealed(text: str) -> str:
    """The lines of a journal without their numbers and checksums, so that they can be changed."""
    return re.sub(r',"n":\d+,"c":"[0-9a-f]{8}"}$', "}", text, flags=re.MULTILINE)
