"""Start an SGLang server on a CPU, in the lab's environment for SGLang: `python serve.py` with SGLang's own flags.

Run as a script, so that its folder with the stand-in for `sgl_kernel` is on the path, of SGLang's child processes too.
They run this file again up to the last line.
"""

from __future__ import annotations

import sys

import torch

if torch.version.cuda is None:  # then torchvision's build, which is for GPUs, does not load, and declares nothing
    for _operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if "--disaggregation-mode" in sys.argv:  # one half of each request: its indices wait in memory that a GPU has pinned
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
