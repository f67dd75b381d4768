"""An object store as its own process: moto's server, with its buckets in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Final

from fairlead.processes import free_ports

SECRET: Final = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"
KEY: Final = "AKIAIOSFODNN7EXAMPLE"
BUCKET: Final = "decisions"


class ObjectStore:
    """`with ObjectStore() as store:`; `kill` and `start` make it go and come back, without what it had."""

    def __init__(self) -> None:
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What an operator sets for clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def __enter__(self) -> ObjectStore:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *buckets: str) -> None:
        """With BUCKET, or with `buckets`."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | {"NO_COLOR": "1"}
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "Running on" in line:
                break
        else:
            raise AssertionError("moto's server ended")
        os.set_blocking(self._process.stderr.fileno(), False)
        for bucket in buckets or (BUCKET,):
            self.put(bucket)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def put(self, path: str, data: bytes = b"") -> None:
        """A bucket, or an object in one."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{path}", data, method="PUT")):
            pass

    def names(self, bucket: str = BUCKET) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/{bucket}") as listing:
            return sorted(part.split("</Key>")[0] for part in listing.read().decode().split("<Key>")[1:])
