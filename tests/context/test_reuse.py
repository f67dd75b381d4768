"""What becomes of requests: the conversation's prefix stays, nothing is lost, nothing crosses tenants or sessions."""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fairlead.context.index import ContextIndex
from fairlead.context.reuse import ContextReuse
from tests.context.world import (
    ALL,
    ANSWER,
    DEDUP,
    ORDER,
    Message,
    ask,
    body_of,
    chat,
    document,
    new_reuse,
    order_of,
    settings,
    texts,
)

SYSTEM: Message = {"role": "system", "content": "You answer."}

# ---- order ----------------------------------------------------------------------------------------------------------


def test_the_first_request_goes_on_as_it_is() -> None:
    body = chat(ask([2, 1, 3]))
    assert new_reuse().rewrite(body, ALL) == body


def test_a_later_request_begins_with_the_documents_of_an_earlier_one_and_the_question_stays_last() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1, 3])), ALL)
    (text,) = texts(reuse.rewrite(chat(ask([1, 4, 2], "How?")), ALL))
    assert order_of(text) == ["2", "1", "4"]
    assert text.endswith(
        "</documents>\nPlease read the context in the following priority order: [Doc_1] > [Doc_4] > [Doc_2] "
        "and answer the question.\n\nQuestion: How?"
    )


def test_later_requests_align_to_what_was_sent_not_to_what_was_received() -> None:
    reuse = new_reuse()
    for received in ([1, 2, 3], [3, 2, 1, 4]):
        sent = reuse.rewrite(chat(ask(received)), ALL)
    assert order_of(texts(sent)[0]) == ["1", "2", "3", "4"]
    assert order_of(texts(reuse.rewrite(chat(ask([4, 3, 2, 1])), ALL))[0]) == ["1", "2", "3", "4"]


def test_documents_and_all_around_them_survive_byte_for_byte() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL)
    (before,), (after,) = texts(chat(ask([1, 2]))), texts(reuse.rewrite(chat(ask([1, 2])), ALL))
    annotation = "\nPlease read the context in the following priority order: [Doc_1] > [Doc_2] and answer the question."
    swapped = before.replace(document(1), "@").replace(document(2), document(1)).replace("@", document(2))
    assert after == swapped.replace("</documents>", "</documents>" + annotation)


def test_after_another_system_prompt_nothing_is_moved() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(SYSTEM, ask([2, 1])), ALL)
    body = chat({"role": "system", "content": "You joke."}, ask([1, 2]))
    assert reuse.rewrite(body, ALL) == body


def test_two_requests_of_equal_sets_have_one_order_but_each_its_own_priorities() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([1, 2, 3])), ALL)
    one, other = (texts(reuse.rewrite(chat(ask(names)), ALL))[0] for names in ([3, 2, 1], [2, 3, 1]))
    assert order_of(one) == order_of(other)
    assert "[Doc_3] > [Doc_2] > [Doc_1]" in one
    assert "[Doc_2] > [Doc_3] > [Doc_1]" in other


def test_numbers_of_a_list_stay_in_their_places_and_the_priorities_name_them() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat({"role": "user", "content": f"[1] {body_of('a')}\n[2] {body_of('b')}\n\nWhy?"}), ALL)
    body = chat({"role": "user", "content": f"[1] {body_of('b')}\n[2] {body_of('c')}\n[3] {body_of('a')}\n\nWhy?"})
    (text,) = texts(reuse.rewrite(body, ALL))
    assert text == (
        f"[1] {body_of('a')}\n[2] {body_of('b')}\n[3] {body_of('c')}\n"
        "Please read the context in the following priority order: [2] > [3] > [1] and answer the question.\n\nWhy?"
    )


def test_results_of_a_tool_stay_json_with_the_order_in_them() -> None:
    def tool(*ids: int) -> Message:
        results = [{"id": i, "text": body_of(i)} for i in ids]
        return {"role": "tool", "tool_call_id": "t", "content": json.dumps({"results": results, "n": 2})}

    reuse = new_reuse()
    reuse.rewrite(chat(tool(1, 2)), ALL)
    (text,) = texts(reuse.rewrite(chat(tool(2, 1)), ALL))
    read = json.loads(text)
    assert [item["id"] for item in read["results"]] == [1, 2]
    assert read["reading_order"].startswith(
        "Please read the context in the following priority order: [Doc_2] > [Doc_1]"
    )


def test_a_block_format_that_is_not_asked_for_is_left_alone() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([1, 2])), settings("numbered"))
    body = chat(ask([2, 1]))
    assert reuse.rewrite(body, settings("numbered", "json")) == body


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"system": text, "messages": [{"role": "user", "content": "Why?"}]},
        lambda text: {"system": [{"type": "text", "text": text}], "messages": []},
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        lambda text: {
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": text}]}]
        },
        lambda text: {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": text}]}]}
            ]
        },
        lambda text: {"prompt": text},
        lambda text: {"text": text},
        lambda text: {"input": text, "instructions": "Be brief."},
        lambda text: {"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]},
        lambda text: {"input": [{"type": "function_call_output", "call_id": "c", "output": text}]},
    ],
)
def test_blocks_are_found_wherever_an_api_has_text(wrap: Any) -> None:
    reuse = new_reuse()
    reuse.rewrite(json.dumps(wrap(ask([1, 2])["content"])).encode(), ALL)
    sent = reuse.rewrite(json.dumps(wrap(ask([2, 1])["content"])).encode(), ALL)
    assert order_of(sent.decode().replace('\\"', '"')) == ["1", "2"]


def test_what_the_model_said_itself_is_never_changed() -> None:
    reuse = new_reuse()
    said = {"role": "assistant", "content": ask([1, 2])["content"]}
    reuse.rewrite(chat(said), ALL)
    body = chat({"role": "assistant", "content": ask([2, 1])["content"]}, ask([3]))
    assert reuse.rewrite(body, ALL) == body


# ---- de-duplication -------------------------------------------------------------------------------------------------


def test_a_document_that_was_read_in_an_earlier_turn_becomes_a_reference_in_the_papers_words() -> None:
    body = chat(ask([1, 2]), ANSWER, ask([2, 5], "And?"))
    first, _, second = texts(new_reuse().rewrite(body, ALL))
    assert first == ask([1, 2])["content"]
    assert '<document id="2" lang="en">\nPlease refer to [Doc_2] in the previous conversation\n</document>' in second
    assert body_of(5) in second
    assert second.endswith("Question: And?")


def test_a_document_of_which_one_character_differs_is_no_duplicate() -> None:
    changed = {"role": "user", "content": ask([1])["content"].replace("1-30", "1-3O")}
    text = texts(new_reuse().rewrite(chat(ask([1]), ANSWER, changed), DEDUP))[2]
    assert "1-3O" in text


def test_of_a_changed_long_document_only_what_changed_is_read_again() -> None:
    lines = [f"{number}: {body_of(number)}" for number in range(60)]
    changed = [*lines[:30], "30: new", *lines[31:]]
    tool = [{"role": "tool", "content": "\n".join(content)} for content in (lines, changed)]
    text = texts(new_reuse().rewrite(chat(tool[0], ANSWER, tool[1]), DEDUP))[2]
    assert "30: new" in text
    assert len(text) < 0.3 * len(tool[1]["content"])
    assert text.startswith('[Please refer to the passage from "0: 0-0 0-1')


def test_a_document_twice_in_one_list_is_kept_once_before_its_reference() -> None:
    (text,) = texts(new_reuse().rewrite(chat(ask([1, 2, 1])), ALL))
    assert text.count(body_of(1)) == 1
    assert text.index(body_of(1)) < text.index("Please refer to [Doc_1] above")


def test_a_document_of_another_list_in_the_same_message_is_referred_to_as_above() -> None:
    message = {"role": "user", "content": f"<doc>{body_of(1)}</doc>\nAnd also:\n<doc>{body_of(1)}</doc>\nWhy?"}
    (text,) = texts(new_reuse().rewrite(chat(message), ALL))
    reference = 'Please refer to [Doc: "1-0 1-1 1-2 1-3 1-4 1-5 1-6 1-7 1-8 1-9 1-10 1-11 1-12 1-13"] above'
    assert text == f"<doc>{body_of(1)}</doc>\nAnd also:\n<doc>{reference}</doc>\nWhy?"


def test_where_documents_move_references_come_last() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL)
    (text,) = texts(reuse.rewrite(chat(ask([1, 1, 2])), ALL))
    assert order_of(text) == ["2", "1", "1"]
    assert text.index(body_of(1)) < text.index("Please refer to [Doc_1] above")


def test_nothing_refers_to_another_session_or_an_earlier_request() -> None:
    reuse = new_reuse()
    for session in (b"a", b"b"):
        (text,) = texts(reuse.rewrite(chat(ask([1, 2])), ALL, session=session))
        assert "refer to" not in text


def test_a_short_document_is_repeated_as_a_reference_would_be_as_long() -> None:
    message = {"role": "user", "content": "<doc>short</doc>\n<doc>text</doc>" + " " * 100}
    body = chat(message, ANSWER, message)
    assert new_reuse().rewrite(body, ALL) == body


# ---- from turn to turn ----------------------------------------------------------------------------------------------


def test_a_conversation_resent_turn_by_turn_keeps_its_prefix_whatever_was_sent_meanwhile() -> None:
    reuse = new_reuse()
    history: list[Message] = [SYSTEM]
    before = b""
    for turn, names in enumerate([[1, 2, 3], [2, 4, 5], [5, 6, 1], [7, 8]]):
        reuse.rewrite(chat(SYSTEM, ask(list(reversed(names)))), ALL, session=b"other")
        sent = reuse.rewrite(chat(*history, ask(names, f"{turn}?")), ALL, session=b"mine")
        assert sent.startswith(before)
        before = sent.removesuffix(b"]}")
        history += [ask(names, f"{turn}?"), ANSWER]


def test_a_turn_that_went_on_as_it_was_stays_so_when_it_is_resent() -> None:
    reuse = new_reuse()
    first = chat(ask([1, 2, 3]))
    assert reuse.rewrite(first, ALL, session=b"mine") == first
    reuse.index = ContextIndex()  # what was sent is forgotten, and another order is known now
    reuse.rewrite(chat(ask([3, 2, 1])), ALL, session=b"other")
    later = reuse.rewrite(chat(ask([1, 2, 3]), ANSWER, ask([4, 5])), ALL, session=b"mine")
    assert later.startswith(first.removesuffix(b"]}"))


def test_tenants_share_no_orders() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL, tenant=b"a")
    body = chat(ask([1, 2]))
    assert reuse.rewrite(body, ALL, tenant=b"b") == body


def test_memory_is_bounded() -> None:
    reuse = ContextReuse(clock_s=lambda: 0.0, memory_bytes=20_000)
    for number in range(200):
        reuse.rewrite(chat(ask([number])), ALL)
    assert reuse.used_bytes <= 20_000


# ---- faults and time ------------------------------------------------------------------------------------------------


def test_over_the_time_limit_a_request_goes_on_as_it_is_and_stays_so() -> None:
    ticks = iter(range(1000))
    late = new_reuse(lambda: next(ticks) * 1.0)
    body = chat(ask([1, 2]), ANSWER, ask([2, 1]))
    assert late.rewrite(body, ALL) == body
    assert late.counts.late == 1
    assert late.rewrite(body, ALL) == body


def test_ordinary_texts_are_not_remembered() -> None:
    reuse = new_reuse()
    assert reuse.plan(chat({"role": "user", "content": "What is the capital of France? " * 9}), ALL) is None
    assert reuse.used_bytes == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [1]}', b"\xff", b'{"messages": [{"content": null}]}'],
)
def test_what_is_no_request_goes_on_as_it_is(body: bytes) -> None:
    assert new_reuse().rewrite(body, ALL) == body


def test_half_a_surrogate_pair_does_no_harm() -> None:
    body = chat(ask([1, 2])).replace(b"Why?", rb"\ud800 Why? and so on, long enough to be looked at by us")
    assert new_reuse().rewrite(body, ALL) == body


def test_a_thousand_requests_without_a_common_document_neither_fail_nor_slow_down() -> None:
    reuse = new_reuse()

    def milliseconds(requests: range) -> float:
        times = []
        for request in requests:
            body = chat(ask([f"{request}-{place}" for place in range(10)]))
            started_s = time.thread_time()
            assert reuse.rewrite(body, ALL) == body
            times.append(time.thread_time() - started_s)
        return 1e3 * median(times)

    first = milliseconds(range(200))
    milliseconds(range(200, 1300))
    assert milliseconds(range(1300, 1500)) < 5 * first


# ---- whatever comes -------------------------------------------------------------------------------------------------

NAMES = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@hypothesis_settings(deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=4), st.sampled_from([ALL, ORDER, DEDUP]))
def test_every_document_is_sent_once_or_is_a_reference_backwards_to_the_same(
    conversations: list[list[list[int]]], chosen: Any
) -> None:
    reuse = new_reuse()
    for number, turns in enumerate(conversations):
        messages = [message for names in turns for message in (ask(names), ANSWER)]
        sent = texts(reuse.rewrite(chat(*messages), chosen, session=b"%d" % number))
        read: set[int] = set()
        for names, text in zip(turns, sent[::2], strict=True):
            assert sorted(map(int, order_of(text))) == sorted(names)
            assert text.endswith("\n\nQuestion: Why?")
            for part in text.split("<document ")[1:]:
                name = int(part.split('"')[1])
                if body_of(name) in part:
                    read.add(name)
                else:
                    assert f"Please refer to [Doc_{name}] " in part
                    assert name in read
                assert 'lang="en">' in part


@hypothesis_settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_resending_gives_the_same_bytes(turns: list[list[int]]) -> None:
    reuse = new_reuse()
    bodies = [chat(ask(names)) for names in turns]
    first = [reuse.rewrite(body, ALL, session=b"%d" % number) for number, body in enumerate(bodies)]
    assert [reuse.rewrite(body, ALL, session=b"%d" % number) for number, body in enumerate(bodies)] == first


@hypothesis_settings(deadline=None)
@given(st.text(), st.sampled_from(["system", "user", "tool"]))
def test_a_text_without_blocks_goes_on_byte_for_byte(text: str, role: str) -> None:
    body = chat({"role": role, "content": text + " " * 80})
    reuse = new_reuse()
    assert reuse.rewrite(body, settings("xml")) == body
    assert reuse.rewrite(body, settings("xml")) == body


def test_a_plan_tells_what_is_new_in_it_and_what_it_saves() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL)
    plan = reuse.plan(chat(ask([1, 2])), ALL)
    assert plan is not None
    received, aligned = plan.forms
    assert (received.body, received.changes, received.known_bytes) == (None, (), 0)
    assert [change.order for change in aligned.changes] == [(1, 0)]
    assert aligned.known_bytes == len(document(1)) + len(document(2))
    assert plan.best == 1
    again = reuse.plan(chat(ask([3]), ANSWER, ask([3])), ALL)
    assert again is not None
    assert [change.references for change in again.forms[0].changes] == [(0,)]
    assert 0 < len(body_of(3)) - again.forms[0].dropped_bytes < 60


def test_what_nobody_holds_any_more_is_no_longer_aligned_to() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL)
    body = chat(ask([1, 2]))
    plan = reuse.plan(body, ALL)
    assert plan is not None
    reuse.drop(plan, 1)
    assert reuse.rewrite(body, ALL) == body
