"""A model that takes images, with weights at random: a Llama and an image tower joined as Idefics3's are.

It has the vocabulary of one of the lab's models and tokens for images. It says nothing that makes sense, but what it
says depends on the image, so an answer shows which image the engine computed it from. Models that are better known
(LLaVA, Qwen2-VL and later) do not load in the lab's environment, which has no torchvision.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from math import prod, sqrt
from pathlib import Path
from random import Random
from typing import Any, Final

from lab.servers import MODELS

IMAGE: Final = "<image>"
IMAGE_SIDE: Final = 64  # pixels; the processor makes every image this large
IMAGE_TOKENS: Final = 64  # whose values are of the image, whatever its size: two of vLLM's smallest blocks
# Tokens that the processor of Idefics3 needs: around an image, before a whole one, and one of its own template.
_OF_PROCESSOR: Final = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
_PATCH_SIDE: Final = 8
_TOWER_WIDTH: Final = 64
_TOWER_HEADS: Final = 2
_TOWER_LAYERS: Final = 1
_MODEL: Final = "heron"  # whose vocabulary and sizes it has

# A content part is an image or a text; a content that is a string is what most clients send.
_CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}" + IMAGE + "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
_PREPROCESSOR: Final = {
    "image_processor_type": "Idefics3ImageProcessor",
    "do_image_splitting": False,
    "size": {"longest_edge": IMAGE_SIDE},
    "max_image_size": {"longest_edge": IMAGE_SIDE},
}
_PROCESSOR: Final = {"processor_class": "Idefics3Processor", "image_seq_len": IMAGE_TOKENS}


def write_vision_model(folder: Path, seed: int = 0) -> Path:
    """All that vLLM reads of a model, in the files that it reads it from."""
    folder.mkdir()
    tokenizer = _read(MODELS / _MODEL / "tokenizer.json")
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for token in (IMAGE, *_OF_PROCESSOR):
        vocabulary[token] = len(vocabulary)
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": vocabulary[token], "content": token})
    text = _read(MODELS / _MODEL / "config.json") | {"vocab_size": len(vocabulary)}
    tower = {
        "model_type": "idefics3_vision",
        "hidden_size": _TOWER_WIDTH,
        "intermediate_size": 2 * _TOWER_WIDTH,
        "num_hidden_layers": _TOWER_LAYERS,
        "num_attention_heads": _TOWER_HEADS,
        "image_size": IMAGE_SIDE,
        "patch_size": _PATCH_SIDE,
    }
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": text,
        "vision_config": tower,
        "image_token_id": vocabulary[IMAGE],
        "pad_token_id": text["eos_token_id"],
        "scale_factor": 1,
        "tie_word_embeddings": True,
        "dtype": "float16",
    }
    _write(folder / "tokenizer.json", tokenizer)
    _write(
        folder / "tokenizer_config.json",
        _read(MODELS / _MODEL / "tokenizer_config.json") | {"chat_template": _CHAT_TEMPLATE},
    )
    _write(folder / "config.json", config)
    _write(folder / "preprocessor_config.json", _PREPROCESSOR)
    _write(folder / "processor_config.json", _PROCESSOR)
    _write_weights(folder / "model.safetensors", _shapes(text), Random(seed))
    return folder


def png(seed: int, side: int = IMAGE_SIDE) -> bytes:
    """A square image of pixels at random: another one for each seed."""
    rng = Random(seed)
    rows = b"".join(b"\0" + rng.randbytes(3 * side) for _ in range(side))  # each row as it is, without a filter
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_url(image: bytes) -> str:
    """The image itself, as a client that has it sends it."""
    return f"data:image/png;base64,{b64encode(image).decode()}"


def _shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[int]]]:
    """Every tensor, by its name in the file."""
    width, inner, seen = text["hidden_size"], text["intermediate_size"], _TOWER_WIDTH
    yield "model.text_model.embed_tokens.weight", (text["vocab_size"], width)
    yield "model.text_model.norm.weight", (width,)
    for n in range(text["num_hidden_layers"]):
        layer = f"model.text_model.layers.{n}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", (width,)
        for part in "qkvo":
            yield f"{layer}self_attn.{part}_proj.weight", (width, width)
        for part in ("gate", "up"):
            yield f"{layer}mlp.{part}_proj.weight", (inner, width)
        yield f"{layer}mlp.down_proj.weight", (width, inner)
    yield from _with_bias("model.vision_model.embeddings.patch_embedding", (seen, 3, _PATCH_SIDE, _PATCH_SIDE))
    yield "model.vision_model.embeddings.position_embedding.weight", (IMAGE_TOKENS, seen)
    for n in range(_TOWER_LAYERS):
        layer = f"model.vision_model.encoder.layers.{n}."
        for part in ("layer_norm1", "layer_norm2"):
            yield from _with_bias(f"{layer}{part}", (seen,))
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _with_bias(f"{layer}self_attn.{part}", (seen, seen))
        yield from _with_bias(f"{layer}mlp.fc1", (2 * seen, seen))
        yield from _with_bias(f"{layer}mlp.fc2", (seen, 2 * seen))
    yield from _with_bias("model.vision_model.post_layernorm", (seen,))
    yield "model.connector.modality_projection.proj.weight", (width, seen)


def _with_bias(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Sequence[int]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _write_weights(path: Path, shapes: Iterator[tuple[str, Sequence[int]]], rng: Random) -> None:
    header, data = dict[str, Any](), bytearray()
    for name, shape in shapes:
        begin = len(data)
        data += array("f", _weights(name, shape, rng)).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, len(data))}
    described = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(described)) + described + data)


def _weights(name: str, shape: Sequence[int], rng: Random) -> Iterator[float]:
    """Norms leave the scale as it is, and every product keeps it: what an image changes is still there at the end."""
    if "norm" in name:
        return iter([1.0 if name.endswith("weight") else 0.0] * shape[0])
    scale = 1 / sqrt(prod(shape[1:])) if len(shape) > 1 else 0.1
    return (rng.gauss(0, scale) for _ in range(prod(shape)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, contents: Mapping[str, object]) -> None:
    path.write_text(json.dumps(contents), encoding="utf-8")
