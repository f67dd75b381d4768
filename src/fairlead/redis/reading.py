"""Values out of Redis, each cut where it is longer than ours are: others may have written it, of 512 MB even."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from redis.asyncio import Redis

from fairlead.redis.link import SCRIPT_S, answered

# KEYS: what to read. ARGV: the most bytes of one value. Returns what is there; empty for what is no string, or is gone.
_READ: Final = """
local found = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GETRANGE', key, 0, ARGV[1] - 1)
  if value.err and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    return value
  end
  found[i] = value.err and '' or value
end
return found
"""


async def values(redis: Redis, keys: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """Those of `keys`, in their order; empty where there is none. One that is too long has `most_bytes`."""
    if not keys:
        return []
    return cast(list[bytes], await answered(redis.register_script(_READ)(keys, [most_bytes]), SCRIPT_S))
