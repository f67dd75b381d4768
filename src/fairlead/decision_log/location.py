"""Where a decision log lies: a folder, or a bucket of an object store that speaks S3's protocol.

polars itself writes and reads `s3://`, with Rust's object_store: nothing more to install. Credentials and the endpoint
come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), from ~/.aws, or from the machine's or pod's role;
never from a configuration, and never into a log.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Final

_BUCKET: Final = "s3://"
_CODE: Final = re.compile(r"<Code>(\w{1,100})</Code>")
_KINDS: Final = (
    ("timed out", "no answer in time"),
    ("Connection refused", "connection refused"),
    ("dns error", "its name is not known"),
    ("certificate", "its certificate is not trusted"),
)
# Tried once: what is sent waits in a spool, from which it is sent again.
ONE_TRY: Final[dict[str, Any]] = {"max_retries": 0, "connect_timeout": "3s", "timeout": "10s"}


def in_bucket(location: str | PurePath) -> bool:
    """Whether `location` is in an object store and not in a file system."""
    return str(location).startswith(_BUCKET)


def why_not(error: Exception) -> str:
    """Why the store refused, in a few words: what it says may hold the access key, so only its code is repeated."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None:
        return code.group(1)
    for sign, meaning in _KINDS:
        if sign in text:
            return meaning
    return type(error).__name__
