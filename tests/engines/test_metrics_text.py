"""The numbers read from metrics pages of vLLM and SGLang, good ones and bad ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.reported import AnswerSums, EngineReport
from fairlead.engines.metrics_text import read_metrics
from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_metrics import EngineMetrics
from fairlead.tools.simulate.parameters import EngineParameters

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.2e+06
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27000"} 1.0
process_start_time_seconds 1.7e+09
"""

SGLANG = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 471258.0
sglang:page_size{engine_type="unified",model_name="m",tp_rank="0"} 64.0
sglang:cache_hit_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.33
sglang:prompt_tokens_total{model_name="m"} 900.0
sglang:generation_tokens_total{model_name="m"} 80.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 30.0
"""


def read(text: bytes) -> EngineReport:
    report = read_metrics(text, 12.5)
    assert report is not None
    return report


def test_a_page_of_vllm() -> None:
    assert read(VLLM) == EngineReport(
        running_requests=3,
        waiting_requests=2,
        kv_usage=0.25,
        kv_capacity_tokens=16 * 27000,
        kv_block_tokens=16,
        kv_dtype="auto",
        prefix_queried_tokens=1_200_000,
        prefix_hit_tokens=400,
        prompt_tokens=1000,
        generated_tokens=50,
        process_start_s=1.7e9,
        read_s=12.5,
        changed_s=12.5,
        stale=False,
    )


def test_a_page_of_sglang() -> None:
    assert read(SGLANG) == EngineReport(
        running_requests=4,
        waiting_requests=1,
        kv_usage=0.5,
        kv_capacity_tokens=471258,
        kv_block_tokens=64,
        prefix_queried_tokens=900,
        prefix_hit_tokens=330,
        prompt_tokens=900,
        generated_tokens=80,
        read_s=12.5,
        changed_s=12.5,
        stale=False,
    )


def test_data_parallel_ranks_of_vllm_are_one_engine() -> None:
    report = read(VLLM + VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75"))
    assert (report.running_requests, report.waiting_requests, report.prompt_tokens) == (6, 4, 2000)
    assert report.kv_usage == 0.5
    assert (report.kv_capacity_tokens, report.kv_block_tokens) == (2 * 16 * 27000, 16)


def test_tensor_parallel_workers_of_sglang_that_tell_the_same_count_once() -> None:
    report = read(SGLANG + SGLANG.split(b"sglang:prompt")[0].replace(b'tp_rank="0"', b'tp_rank="1"'))
    assert (report.running_requests, report.kv_capacity_tokens) == (4, 471258)


def test_data_parallel_ranks_of_sglang_add_up() -> None:
    ranks = [SGLANG.replace(b'tp_rank="0"', b'dp_rank="%d",tp_rank="%d"' % (n, n)) for n in range(2)]
    report = read(ranks[0] + ranks[1].split(b"sglang:prompt")[0])
    assert (report.running_requests, report.kv_capacity_tokens, report.prompt_tokens) == (8, 2 * 471258, 900)


def test_the_old_name_of_the_kv_usage_is_known() -> None:
    assert read(b'vllm:gpu_cache_usage_perc{model_name="m"} 0.125\n').kv_usage == 0.125


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-1", b"1e300", b"", b"x", b"0x10", b"\xff", b"--3"])
def test_a_value_that_no_engine_can_have_is_unknown_and_spoils_no_other(value: bytes) -> None:
    report = read(b"vllm:num_requests_running %b\nvllm:num_requests_waiting 2\n" % value)
    assert (report.running_requests, report.waiting_requests) == (None, 2)


def test_half_a_line_is_not_read() -> None:
    report = read(b"vllm:num_requests_waiting 2\nvllm:num_requests_running 12")
    assert (report.running_requests, report.waiting_requests) == (None, 2)


def test_a_time_after_the_value_and_windows_line_ends_do_no_harm() -> None:
    report = read(b"vllm:num_requests_running 3 1395066363000\r\nvllm:num_requests_waiting 2\r\n")
    assert (report.running_requests, report.waiting_requests) == (3, 2)


def test_braces_and_quotes_in_labels_do_no_harm() -> None:
    report = read(b'vllm:num_requests_running{model_name="a} 9 \\" {b",engine="0"} 3\n')
    assert report.running_requests == 3


@pytest.mark.parametrize("blocks", [b"None", b"0", b"-5", b"1" * 400])
def test_a_cache_configuration_that_is_not_known_yet_is_unknown(blocks: bytes) -> None:
    report = read(b'vllm:cache_config_info{block_size="32",num_gpu_blocks="%b"} 1.0\n' % blocks)
    assert (report.kv_block_tokens, report.kv_capacity_tokens) == (32, None)


@pytest.mark.parametrize(("said", "caches"), [(b"False", False), (b"True", True), (b"None", True)])
def test_an_engine_without_prefix_caching_says_so(said: bytes, caches: bool) -> None:
    labels = b'block_size="16",enable_prefix_caching="%b",num_gpu_blocks="100"' % said
    report = read(b"vllm:cache_config_info{%b} 1.0\n" % labels)
    assert (report.caches_prefixes, report.kv_capacity_tokens) == (caches, 1600)


def test_a_block_or_a_cache_of_no_token_is_unknown() -> None:
    report = read(b"sglang:page_size 0.3\nsglang:max_total_num_tokens 0\n")
    assert (report.kv_block_tokens, report.kv_capacity_tokens) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>not found</html>\n",
        b"process_start_time_seconds 1.7e9\npython_info 1\n",
        b"tgi_queue_size 4\n",
        b"# HELP vllm:num_requests_running vllm:num_requests_running 5\n",
        b"xvllm:num_requests_running 5\n",
    ],
)
def test_a_page_of_another_program_is_no_report(text: bytes) -> None:
    assert read_metrics(text, 0) is None


@given(st.binary(max_size=2000))
def test_no_bytes_raise(text: bytes) -> None:
    read_metrics(text, 0)


PIECES = st.sampled_from([*VLLM.split(b"\n"), *SGLANG.split(b"\n"), b"{", b"}", b'"', b" ", b"1e999", b"9" * 30])


@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=40), st.sampled_from([b"", b"\n", b" "]))
def test_no_mixture_of_broken_lines_raises_or_gives_a_number_out_of_range(pieces: list[bytes], joint: bytes) -> None:
    report = read_metrics(joint.join(pieces) + b"\n", 0)
    if report is not None:
        assert report.kv_usage is None or 0 <= report.kv_usage <= 1
        assert report.running_requests is None or report.running_requests >= 0
        assert report.kv_block_tokens is None or report.kv_block_tokens > 0


@given(st.integers(0, len(VLLM)))
def test_a_page_cut_anywhere_gives_right_numbers_or_none(length: int) -> None:
    whole, cut = read(VLLM), read_metrics(VLLM[:length], 12.5)
    if cut is not None:
        for name in EngineReport.__struct_fields__:
            assert getattr(cut, name) in (getattr(whole, name), None)


@pytest.mark.parametrize(("kind", "count"), [("vllm", 0), ("sglang", None)])  # SGLang shows no counter before it counts
def test_the_simulated_engine_is_read_like_a_real_one(kind: str, count: int | None) -> None:
    engine = Engine(EngineParameters(block_size=16, num_blocks=100))
    report = read(EngineMetrics(kind, "m", engine).page())
    assert (report.running_requests, report.waiting_requests, report.kv_usage) == (0, 0, 0.0)
    assert report.kv_capacity_tokens == 1600
    assert (report.prefix_queried_tokens, report.prefix_hit_tokens, report.generated_tokens) == (count,) * 3


def test_what_vllm_sums_up_of_the_answers_that_it_ended() -> None:
    """As vLLM 0.32 writes it."""
    page = (
        VLLM
        + b"""vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 264.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 265.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 16.77407096001116
vllm:request_decode_time_seconds_count{engine="0",model_name="m"} 265.0
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 39.615436577987566
vllm:request_prefill_kv_computed_tokens_count{engine="0",model_name="m"} 265.0
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="m"} 111646.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 4106.0
"""
    )
    assert read(page).sums == AnswerSums(265, 16.77407096001116, 111_646, 39.615436577987566, 4106 - 265)


def test_what_sglang_sums_up_of_the_answers_that_it_ended() -> None:
    """As SGLang 0.5.23 writes it; each of its tensor-parallel workers may tell the stages."""
    stage = 'sglang:per_stage_req_latency_seconds_sum{model_name="m",pp_rank="0",stage="%s",tp_rank="%d"} %s\n'
    stages = [("request_process", 0, 0.5), ("prefill_forward", 0, 2.5), ("chunked_prefill", 0, 1.5)]
    stages += [("prefill_forward", 1, 2.4), ("chunked_prefill", 1, 1.4)]
    page = SGLANG + "".join(stage % each for each in stages).encode()
    page += b"""sglang:uncached_prompt_tokens_histogram_sum{engine_type="unified",model_name="m"} 5924.0
sglang:uncached_prompt_tokens_histogram_count{engine_type="unified",model_name="m"} 26.0
sglang:inter_token_latency_seconds_sum{engine_type="unified",model_name="m"} 9.5
sglang:inter_token_latency_seconds_count{engine_type="unified",model_name="m"} 512.0
"""
    assert read(page).sums == AnswerSums(26, 4.0, 5924, 9.5, 512)


def test_sums_of_several_ranks_are_added_up() -> None:
    series = b'vllm:request_prefill_time_seconds_%b{engine="%d",model_name="m"} %d\n'
    lines = [(b"count", 0, 4), (b"count", 1, 5), (b"sum", 0, 7), (b"sum", 1, 8)]
    page = VLLM + b"".join(series % each for each in lines)
    assert read(page).sums == AnswerSums(9, prefill_s=15.0, ranks=2)


def in_use(running: str, waiting: str, at: str, slots: int = 2, rank: int = 0) -> bytes:
    labels = f'engine="{rank}",max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at}\n".encode()


def test_slots_and_adapters_in_use_are_those_of_the_series_that_was_set_last() -> None:
    """As vLLM 0.32 writes them: a series for each set of adapters that was ever in use, and the time as its value."""
    series = in_use("legal", "", "1.7000000001e+09")
    series += in_use("legal,medical", "sql", "1.7000000003e+09") + in_use("", "", "1.7000000002e+09")
    report = read(VLLM + series)
    assert (report.adapter_slots, report.running_adapters, report.waiting_adapters) == (
        2,
        ("legal", "medical"),
        ("sql",),
    )


def test_of_several_ranks_the_adapters_of_each_and_the_slots_of_one() -> None:
    series = in_use("a", "", "1.7e+09", slots=4) + in_use("b,a", "", "1.6e+09", slots=4, rank=1)
    report = read(VLLM + series)
    assert (report.adapter_slots, report.running_adapters) == (4, ("a", "b"))


def test_sglang_counts_its_slots_and_names_no_adapter() -> None:
    report = read(SGLANG + b'sglang:lora_pool_slots_total{model_name="m"} 8.0\n')
    assert (report.adapter_slots, report.running_adapters) == (8, ())


def test_an_engine_without_adapters_has_no_slots_to_report() -> None:
    assert read(VLLM).adapter_slots is None
