"""The library for Redis is optional, and its absence is said in a sentence."""

from __future__ import annotations

import subprocess
import sys

OPEN_WITHOUT_LIBRARY = """
import sys
class NotInstalled:
    def find_spec(self, name, *_):
        if name == "redis":
            raise ModuleNotFoundError("No module named 'redis'", name=name)
sys.meta_path.insert(0, NotInstalled())
from fairlead.errors import UserError
from fairlead.redis import open_store
from fairlead.redis.password import StorePassword
try:
    open_store(
        "redis://h:1",
        StorePassword(),
        router=None,
        apply=print,
        rates=None,
        admission=None,
        clock_s=float,
    )
except UserError as error:
    print(error)
"""


def test_without_the_library_the_user_learns_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_WITHOUT_LIBRARY], capture_output=True, text=True, check=True)
    assert "in a checkout of Fairlead run: pip install '.[redis]'" in done.stdout
