"""vLLM's NIXL connector on a machine of few cores; vLLM loads it by `kv_connector_module_path`.

NIXL's own thread asks the network for news without a pause: a core for each server, with nothing to do, too. Here it
pauses for a millisecond. It cannot be left out: a server that is idle would not send what another fetches.
"""

from typing import Any

from nixl import _api
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector

_PAUSE_US = 1000

_agent = _api.nixlBind.nixlAgent


def _pausing(name: str, config: Any) -> Any:
    config.pthrDelay = _PAUSE_US
    return _agent(name, config)


_api.nixlBind.nixlAgent = _pausing


class PausingNixlConnector(NixlConnector):
    """The same connector, by a name that vLLM looks for in this module."""
