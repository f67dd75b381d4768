"""vLLM's NIXL connector on a machine of few cores; vLLM loads it by `kv_connector_module_path`.

NIXL's own thread asks the network for news without a pause: a core for each server, with nothing to do, too. Without it
the server asks between steps.
"""

from functools import partial

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector, base_worker

base_worker.nixl_agent_config = partial(base_worker.nixl_agent_config, enable_prog_thread=False)


class QuietNixlConnector(NixlConnector):
    """The same connector, by a name that vLLM looks for in this module."""
