"""vLLM's Mooncake connector on a machine without an accelerator; vLLM loads it by `kv_connector_module_path`.

vLLM 0.32 asks torch for the index of the current accelerator, which raises where there is none. On a CPU it is 0.
"""

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0


class CpuMooncakeConnector(MooncakeConnector):
    """The same connector, by a name that vLLM looks for in this module."""
