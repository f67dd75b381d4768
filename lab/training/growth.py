"""A deeper model that computes the same as a shallower one, to continue training from.

Source: Net2Net (Chen, Goodfellow and Shlens, 2016), its Net2DeeperNet: a new layer starts as the identity. Here its two
output projections start at zero, so that the residual stream passes unchanged until training changes them.
"""

from __future__ import annotations

import torch
from torch import nn

from lab.training.model import TinyLlama
from lab.training.weights import MAX_MODEL_LEN


def deepened(model: TinyLlama, layers: int) -> TinyLlama:
    """`model` with `layers` layers in all; the old ones are spread evenly among the new."""
    vocabulary, width = model.embed_tokens.weight.shape
    grown = TinyLlama(vocabulary, width, layers, MAX_MODEL_LEN)
    grown.embed_tokens.load_state_dict(model.embed_tokens.state_dict())
    grown.norm.load_state_dict(model.norm.state_dict())
    old = {(index + 1) * layers // (len(model.layers) + 1): layer for index, layer in enumerate(model.layers)}
    for place, layer in enumerate(grown.layers):
        if place in old:
            layer.load_state_dict(old[place].state_dict())
        else:
            with torch.no_grad():
                nn.init.zeros_(layer.self_attn.o_proj.weight)
                nn.init.zeros_(layer.mlp.down_proj.weight)
    return grown
