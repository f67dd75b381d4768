"""The keys of a JSON body that routing reads, and what is in the short ones.

Each value stays an undecoded slice of the body (`msgspec.Raw`) until somebody asks for it.
"""

from __future__ import annotations

import re
from math import inf, isnan
from typing import Final

import msgspec

from fairlead.api.body_limits import MOST_ANSWERS, MOST_ATTEMPTED, MOST_NAME_CHARACTERS
from fairlead.api.cache_keys import CacheKeys

Slice = msgspec.Raw | msgspec.UnsetType  # of the body, undecoded
UNSET: Final = msgspec.UNSET
NULL: Final = msgspec.Raw(b"null")
_QUOTE: Final = ord('"')
_LIST_OF_PROMPTS: Final = re.compile(rb'\s*\[\s*(["\[])')
_LIST_OF_LISTS: Final = re.compile(rb"\[\s*\[")
_MOST_COUNTED: Final = 4096  # lists, exactly: some 0.3 ms
_LEAST_TOO_MANY: Final = 1e9  # tokens
_MOST_NUMBER_BYTES: Final = 64
_NOT_ASKED: Final = frozenset({b"null", b"false", b"-1"})  # SGLang's default of where log-probabilities start is -1
_OPENING_BRACKET: Final = ord("[")
_MOST_SHORT_BYTES: Final = 1 << 14  # of a value that is decoded: OpenAI's metadata has at most 16 pairs of 576
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Message(msgspec.Struct, gc=False):
    role: msgspec.Raw = NULL
    content: msgspec.Raw = NULL
    tool_calls: Slice = UNSET
    reasoning: Slice = UNSET  # vLLM's name for it
    reasoning_content: Slice = UNSET  # SGLang's, and vLLM takes it too


class Reserved(CacheKeys, gc=False):
    kv_transfer_params: Slice = UNSET
    ec_transfer_params: Slice = UNSET
    bootstrap_host: Slice = UNSET
    bootstrap_port: Slice = UNSET
    bootstrap_room: Slice = UNSET
    bootstrap_pair_key: Slice = UNSET
    decode_tp_size: Slice = UNSET
    disagg_prefill_dp_rank: Slice = UNSET
    data_parallel_rank: Slice = UNSET
    routed_dp_rank: Slice = UNSET
    kv_hints: Slice = UNSET
    mm_hashes: Slice = UNSET
    mm_content_hashes: Slice = UNSET
    http_worker_ipc: Slice = UNSET
    encoder_urls: Slice = UNSET
    need_wait_for_mm_inputs: Slice = UNSET
    num_items_assigned: Slice = UNSET
    sampling_params: Slice = UNSET  # these three may hold further ones
    vllm_xargs: Slice = UNSET
    features: Slice = UNSET


class Body(Reserved, gc=False):
    model: str | None = None
    messages: list[Message] | None = None
    system: Slice = UNSET  # Anthropic
    instructions: Slice = UNSET  # Responses
    tools: Slice = UNSET
    documents: Slice = UNSET  # chat templates write them before the messages
    prompt: Slice = UNSET  # completions
    input: Slice = UNSET  # Responses, embeddings
    text: Slice = UNSET  # SGLang
    input_ids: Slice = UNSET  # SGLang
    token_ids: Slice = UNSET  # vLLM's /inference/v1/generate
    content_parts: Slice = UNSET  # the same: the media of those tokens
    max_tokens: Slice = UNSET
    max_completion_tokens: Slice = UNSET
    max_output_tokens: Slice = UNSET
    metadata: Slice = UNSET
    stream: Slice = UNSET
    stream_options: Slice = UNSET
    n: Slice = UNSET
    best_of: Slice = UNSET
    echo: Slice = UNSET
    prompt_logprobs: Slice = UNSET
    logprob_start_len: Slice = UNSET  # SGLang


class OtherBody(Reserved, gc=False):
    """Of an API that does not generate: reranking, scoring, pooling, classifying, moderating, tokenizing, speaking."""

    model: Slice = UNSET
    input: Slice = UNSET
    query: Slice = UNSET
    documents: Slice = UNSET
    text_1: Slice = UNSET
    text_2: Slice = UNSET
    prompt: Slice = UNSET
    messages: Slice = UNSET


class Sampling(msgspec.Struct, gc=False):
    max_new_tokens: Slice = UNSET
    max_tokens: Slice = UNSET
    n: Slice = UNSET
    prompt_logprobs: Slice = UNSET
    prompt_logprob_token_ids: Slice = UNSET
    skip_reading_prefix_cache: Slice = UNSET
    beam_width: Slice = UNSET  # SGLang


class _Metadata(msgspec.Struct, gc=False):
    attempted_models: Slice = UNSET


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: Slice = UNSET


decode = msgspec.json.Decoder(Body).decode
decode_other = msgspec.json.Decoder(OtherBody).decode
_decode_sampling = msgspec.json.Decoder(Sampling).decode
_decode_samplings = msgspec.json.Decoder(list[Sampling]).decode
_UNCOUNTED: Final = Sampling(n=msgspec.Raw(b"1e9"))
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_stream_options = msgspec.json.Decoder(_StreamOptions).decode
_decode_value = msgspec.json.Decoder().decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def attempted(metadata: msgspec.Raw) -> tuple[str, ...]:
    """`metadata.attempted_models`, a list of names or one string with commas; anything else counts as none."""
    try:
        raw = _decode_metadata(metadata).attempted_models
        value = _decode_value(raw) if raw is not UNSET and len(memoryview(raw)) <= _MOST_SHORT_BYTES else None
    except UNREADABLE:
        return ()
    if isinstance(value, str):
        return split_models(value)
    if isinstance(value, list):
        return tuple([name[:MOST_NAME_CHARACTERS] for name in value[:MOST_ATTEMPTED] if isinstance(name, str)])
    return ()


def split_models(value: str) -> tuple[str, ...]:
    """Model names of a comma-separated list; empty ones are dropped, repeated ones kept, and all cut and capped."""
    names = [name.strip()[:MOST_NAME_CHARACTERS] for name in value.split(",", MOST_ATTEMPTED) if name.strip()]
    return tuple(names[:MOST_ATTEMPTED])


def output_limit(read: Body, sampling: Sampling | None) -> int | None:
    for value in (read.max_completion_tokens, read.max_output_tokens, read.max_tokens):
        if value is not UNSET and (limit := _limit(value)):
            return limit
    return None if sampling is None else _most_tokens(sampling)


def asks_of_prompt(read: Body, sampling: Sampling | None) -> bool:
    """Whether engines compute all of the prompt, cached or not: most often as the answer tells something of each token.

    Engines take more than `true` for true, so all that is not plainly absent counts as asked.
    """
    if read.echo is read.prompt_logprobs is read.logprob_start_len is UNSET and sampling is None:
        return False
    wanted = [read.echo, read.prompt_logprobs, read.logprob_start_len]
    if sampling is not None:
        wanted += [sampling.prompt_logprobs, sampling.prompt_logprob_token_ids, sampling.skip_reading_prefix_cache]
    return any(value is not UNSET and bytes(value) not in _NOT_ASKED for value in wanted)


def answers_of(read: Body, sampling: Sampling | None) -> int:
    """How many answers it asks for: some for each of its prompts. An engine decodes all of them at once."""
    if sampling is None and read.n is read.best_of is read.prompt is read.text is read.input_ids is UNSET:
        return 1
    wanted = [read.n, read.best_of]
    if sampling is not None:
        wanted += [sampling.n, sampling.beam_width]
    each = max([_answers(value) for value in wanted if value is not UNSET], default=1)
    prompts = [_count_of_prompts(value) for value in (read.prompt, read.text, read.input_ids) if value is not UNSET]
    return min(each * max(prompts, default=1), MOST_ANSWERS)


def _answers(value: msgspec.Raw) -> int:
    number = _number(value)
    return 1 if number is None or number < 1 else int(min(number, MOST_ANSWERS))


def conversations_in(messages: Slice) -> int:
    """Of vLLM's /v1/chat/completions/batch, whose messages are a list of conversations; 1 of any other."""
    if messages is UNSET or not _LIST_OF_LISTS.match(memoryview(messages)):
        return 1
    brackets = bytes(messages).count(b"[")
    return min(len(_decode_items(messages)) if brackets <= _MOST_COUNTED else brackets, MOST_ANSWERS)


def _count_of_prompts(value: msgspec.Raw) -> int:
    """Of a list of texts, or of lists of token ids; that of texts to within those that end with a backslash."""
    found = _LIST_OF_PROMPTS.match(value)
    if found is None:
        return 1
    prompts = bytes(value)
    if found[1] == b"[":
        return max(1, prompts.count(b"[") - 1)
    return max(1, (prompts.count(b'"') - prompts.count(b'\\"')) // 2)


def sampling_of(read: Body) -> Sampling | None:
    """SGLang's `sampling_params`, and those of vLLM's tokens in and out; None where there are none to read.

    Of SGLang's list, one for each prompt: the first, which says how many answers, with the longest answer of any.
    """
    if read.sampling_params is UNSET:
        return None
    value = bytes(read.sampling_params)
    try:
        if value[0] != _OPENING_BRACKET:
            return _decode_sampling(value)
        if value.count(b"{") > _MOST_COUNTED:
            return _UNCOUNTED
        of_each = _decode_samplings(value)
    except UNREADABLE:
        return None
    if not of_each:
        return None
    longest = max(of_each, key=lambda each: _most_tokens(each) or 0)
    return msgspec.structs.replace(of_each[0], max_new_tokens=longest.max_new_tokens, max_tokens=longest.max_tokens)


def _most_tokens(sampling: Sampling) -> int | None:
    for value in (sampling.max_new_tokens, sampling.max_tokens):
        if value is not UNSET and (limit := _limit(value)):
            return limit
    return None


def _limit(value: msgspec.Raw) -> int | None:
    """A whole number above 0, of at most nine digits."""
    number = _number(value)
    return int(number) if number is not None and 1 <= number < _LEAST_TOO_MANY else None


def _number(value: msgspec.Raw) -> float | None:
    """As pydantic reads it for engines, which take `128.0` and `" 1_28 "` for 128; None for what is no number.

    Infinite where it is too long to be converted: a client that wants many answers must not seem to want one.
    """
    written = bytes(value)
    if len(written) > _MOST_NUMBER_BYTES:
        return inf
    try:
        text = text_of(value)
        number = float(written if text is None else text.encode())
    except ValueError:
        return None
    return None if isnan(number) else number


def wants_usage(options: msgspec.Raw) -> bool:
    try:
        wanted = _decode_stream_options(options).include_usage
    except UNREADABLE:
        return False
    return wanted is not UNSET and bytes(wanted) == b"true"


def text_of(value: Slice) -> str | None:
    """A JSON string; None for any other value."""
    if value is UNSET or memoryview(value)[0] != _QUOTE:
        return None
    try:
        return _decode_text(value)
    except UNREADABLE:
        return None
