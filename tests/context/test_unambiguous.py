"""References and notes that mean one document in the whole request, or are not made."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.context.blocks import FORMATS
from fairlead.context.census import plain
from fairlead.context.positions import speaks_of_positions
from tests.context.world import ALL, ANSWER, DEDUP, Message, ask, body_of, chat, new_reuse, order_of, settings, texts


def listed(*documents: tuple[str, str], question: str = "Why?", tag: str = "index") -> Message:
    """A message with documents, each given by its number in the list and its text."""
    inner = "\n".join(f'<document {tag}="{name}">\n{body}\n</document>' for name, body in documents)
    return {"role": "user", "content": f"<documents>\n{inner}\n</documents>\n\nQuestion: {question}"}


def numbered_anew(*names: str, tag: str = "index") -> Message:
    return listed(*[(str(place), body_of(name)) for place, name in enumerate(names, 1)], tag=tag)


def references(text: str) -> list[str]:
    return re.findall(r"Please refer to \[(.*?)\] (?:above|in the previous)", text)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["index", "id"])
def test_documents_numbered_anew_at_each_turn_are_referred_to_by_their_beginnings(tag: str) -> None:
    body = chat(numbered_anew("A", "B", tag=tag), ANSWER, numbered_anew("C", "D", tag=tag), ANSWER,
                numbered_anew("B", "A", tag=tag))  # fmt: skip
    last = texts(new_reuse().rewrite(body, DEDUP))[-1]
    assert references(last) == [f'Doc: "{body_of(name)[:60].strip()}"' for name in ("B", "A")]


def test_a_position_is_no_name_even_if_nothing_else_has_it() -> None:
    body = chat(numbered_anew("A", "B"), ANSWER, listed(("7", body_of("B"))))
    assert references(texts(new_reuse().rewrite(body, DEDUP))[-1]) == [f'Doc: "{body_of("B")[:60].strip()}"']


def test_a_name_that_the_model_used_for_something_else_is_not_referred_to() -> None:
    answer = {"role": "assistant", "content": '<document id="1">mine</document>'}
    sent = texts(new_reuse().rewrite(chat(ask([1, 2]), answer, ask([1])), DEDUP))[-1]
    assert references(sent) == [f'Doc: "{body_of(1)[:60].strip()}"']


def test_of_documents_that_begin_alike_the_quotation_goes_on_until_they_differ() -> None:
    one, other = ("The annual report of the company in its official wording, part " + body_of(name) for name in "AB")
    body = chat(listed(("1", one), ("2", other)), ANSWER, listed(("1", other)))
    (reference,) = references(texts(new_reuse().rewrite(body, DEDUP))[-1])
    quoted = reference.removeprefix('Doc: "').removesuffix('"')
    assert other.startswith(quoted)
    assert not one.startswith(quoted)


def test_a_document_that_nothing_short_can_name_is_sent_again() -> None:
    one, other = ("Disclaimer. " * 40 + name for name in "AB")
    body = chat(listed(("1", one), ("2", other)), ANSWER, listed(("1", other)))
    assert new_reuse().rewrite(body, DEDUP) == body


def test_a_reference_that_a_later_turn_makes_ambiguous_is_written_anew() -> None:
    reuse = new_reuse()
    turns = [ask([1, 2]), ANSWER, ask([2])]
    before = texts(reuse.rewrite(chat(*turns), DEDUP))
    assert references(before[-1]) == ["Doc_2"]
    turns += [ANSWER, listed(("2", body_of("another")), tag="id")]
    after = texts(reuse.rewrite(chat(*turns), DEDUP))
    assert references(after[2]) == [f'Doc: "{body_of(2)[:60].strip()}"']
    turns += [ANSWER, ask([9])]
    assert texts(reuse.rewrite(chat(*turns), DEDUP))[:5] == after, "and stays so"


def test_a_passage_whose_first_words_stand_twice_is_sent_again() -> None:
    lines = [f"{number}: {body_of(number)}" for number in range(40)]
    twice = "\n".join(lines) + "\nBut:\n" + "\n".join(lines[:1])
    tools = [{"role": "tool", "content": content} for content in (twice, "\n".join([*lines, "new"]))]
    sent = texts(new_reuse().rewrite(chat(tools[0], ANSWER, tools[1]), DEDUP))[-1]
    assert "passage" not in sent


# ---- order ----------------------------------------------------------------------------------------------------------


def without_names(*names: str, question: str = "Why?") -> Message:
    inner = "\n".join(f"<doc>{body_of(name)}</doc>" for name in names)
    return {"role": "user", "content": f"<docs>\n{inner}\n</docs>\n\n{question}"}


def test_the_note_on_the_order_names_documents_by_what_stands_in_the_text() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(without_names("A", "B")), ALL)
    (text,) = texts(reuse.rewrite(chat(without_names("B", "A")), ALL))
    assert text.index(body_of("A")) < text.index(body_of("B"))
    first, second = re.findall(r'\[Doc: "(.*?)"\]', text)
    assert body_of("B").startswith(first)
    assert body_of("A").startswith(second)


def test_documents_that_cannot_be_named_keep_their_order() -> None:
    reuse = new_reuse()
    one, other = ("Disclaimer. " * 40 + name for name in "AB")
    reuse.rewrite(chat(listed(("x", one), ("y", other), tag="lang")), ALL)
    body = chat(listed(("y", other), ("x", one), tag="lang"))
    assert reuse.rewrite(body, ALL) == body


@pytest.mark.parametrize("where", ["same message", "system", "later message"])
def test_a_question_about_positions_keeps_the_order(where: str) -> None:
    reuse = new_reuse()
    question = "What does the first document claim?"
    around = {"same message": (question, []), "system": ("Why?", [{"role": "system", "content": question}])}
    asked, before = around.get(where, ("Why?", []))
    after = [{"role": "user", "content": question}] if where == "later message" else []
    reuse.rewrite(chat(*before, ask([2, 1])), ALL)
    body = chat(*before, ask([1, 2], asked), *after)
    assert reuse.rewrite(body, ALL) == body


def test_a_question_about_positions_at_a_later_turn_takes_a_changed_order_back() -> None:
    reuse = new_reuse()
    reuse.rewrite(chat(ask([2, 1])), ALL)
    first = texts(reuse.rewrite(chat(ask([1, 2])), ALL, session=b"s"))[0]
    assert order_of(first) == ["2", "1"]
    body = chat(ask([1, 2]), ANSWER, {"role": "user", "content": "And what does the second document say?"})
    assert reuse.rewrite(body, ALL, session=b"s") == body


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Compare the first two documents.", True),
        ("Is result #3 right?", True),
        ("Summarise documents 2 and 4.", True),
        ("Which passage comes last?", True),
        ("And the second?", True),
        ("Was sagt das zweite Dokument?", True),
        ("第二个文件说什么？", True),
        ("文档2说什么？", True),
        ("Документ 2 что говорит?", True),
        ("Is [2] right?", True),
        ("And what about #2?", True),
        ("Do [1, 2] and [4-6] agree?", True),
        ("如【2】所说，对吗？", True),
        ("What is in nr 2?", True),
        ("Which of the first two is newer?", True),
        ("Ignore all from the third on.", True),
        ("ماذا يقول المستند الثاني؟", True),
        ("מה אומר המסמך השני?", True),
        ("दूसरा दस्तावेज़ क्या कहता है?", True),
        ("Is the first true?", True),
        ("What does the 2nd claim?", True),
        ("The second says otherwise. Why?", True),
        ("And number three?", True),
        ("What does no. 2 say?", True),
        ("Summarise document2.", True),
        ("What is in the opening passage?", True),
        ("Answer only from the documents below, in order to be right.", False),
        ("Who was the first president of France?", False),
        ("Who were the first two presidents of France?", False),
        ("Who has a share of [x, y] or of 【z】?", False),
        ("How many documents are there? Answer in one sentence.", False),
        ("# 1. Role: cite documents as [id]. There are no 2 ways; give a number.", False),
    ],
)
def test_what_speaks_of_positions(said: str, expected: bool) -> None:
    assert speaks_of_positions(said.encode()) == expected


# ---- lists whose items have several lines ---------------------------------------------------------------------------


def numbered(*items: str, end: str = "\n\nQuestion: Why?") -> Message:
    return {"role": "user", "content": "\n".join(f"[{n}] {item}" for n, item in enumerate(items, 1)) + end}


def test_the_tail_of_a_lists_last_item_does_not_stay_behind_another() -> None:
    tail = "\nThis figure was retracted in 2021"
    reuse = new_reuse()
    reuse.rewrite(chat(numbered(body_of("b"), body_of("a"))), ALL)
    (text,) = texts(reuse.rewrite(chat(numbered(body_of("a"), body_of("b") + tail)), ALL))
    assert body_of("b") + tail in text


def test_a_question_about_a_number_at_a_later_turn_takes_the_order_of_a_list_back() -> None:
    reuse = new_reuse()
    a, b = body_of("a"), body_of("b")
    reuse.rewrite(chat(numbered(a, b)), ALL)
    first = chat(numbered(b, a))
    assert reuse.rewrite(first, ALL, session=b"s") != first
    later = chat(numbered(b, a), ANSWER, {"role": "user", "content": "Expand on [2]."})
    assert reuse.rewrite(later, ALL, session=b"s") == later


@pytest.mark.parametrize(
    "end",
    [
        "\nQ: was it?\nA: yes\n\nQuestion: Why?",
        "\nQ: was it?\nA: yes",
        "\n\nInstructions: turn it off.\n\nQuestion: Why?",
        "\nTask: done in 2020",
    ],
)
def test_what_looks_like_a_question_in_a_lists_last_item_stays_with_it(end: str) -> None:
    reuse = new_reuse()
    a, b, c = (body_of(name) for name in "abc")
    reuse.rewrite(chat(numbered(c, a, b, end=end)), ALL)
    (text,) = texts(reuse.rewrite(chat(numbered(a, b, c, end=end)), ALL))
    assert text.endswith(c + end) or c + end + "\nPlease read" in text


def test_a_list_whose_wrapper_seems_to_close_in_the_middle_of_a_line_keeps_its_last_item() -> None:
    end = "\n</excerpts> is a tag, says the manual."
    reuse = new_reuse()
    items = [body_of(name) for name in "abc"]
    first, later = numbered(*items[::-1], end=end), numbered(*items, end=end)
    reuse.rewrite(chat({**first, "content": "<excerpts>\n" + first["content"]}), ALL)
    (text,) = texts(reuse.rewrite(chat({**later, "content": "<excerpts>\n" + later["content"]}), ALL))
    assert items[-1] + end in text


def test_a_list_in_a_wrapper_ends_with_it_and_its_last_item_moves_whole() -> None:
    def wrapped(*names: str) -> Message:
        inner = numbered(*[body_of(name) + "\n\nSecond paragraph of " + name for name in names], end="")["content"]
        return {"role": "user", "content": f"<excerpts>\n{inner}\n</excerpts>\nWhy?"}

    reuse = new_reuse()
    reuse.rewrite(chat(wrapped("a", "b")), ALL)
    (text,) = texts(reuse.rewrite(chat(wrapped("b", "a")), ALL))
    assert text.startswith(wrapped("a", "b")["content"].removesuffix("\n</excerpts>\nWhy?"))
    assert "order: [2] > [1]" in text


def test_the_note_on_the_order_of_a_list_names_the_item_that_stays_as_well() -> None:
    reuse = new_reuse()
    a, b, c = (body_of(name) + "\nmore" for name in "abc")
    reuse.rewrite(chat(numbered(a, b, c)), ALL)
    (text,) = texts(reuse.rewrite(chat(numbered(b, a, c)), ALL))
    assert "order: [2] > [1] > [3]" in text


# ---- late -----------------------------------------------------------------------------------------------------------


def test_what_was_late_is_referred_to_at_the_next_turn_and_stays_as_it_was_sent() -> None:
    now_s = 0.0
    ticking = True

    def clock_s() -> float:
        nonlocal now_s
        now_s += ticking
        return now_s

    reuse = new_reuse(clock_s)
    turns = [ask([1, 2]), ANSWER, ask([2, 3])]
    late = reuse.rewrite(chat(*turns), DEDUP)
    assert late == chat(*turns)
    ticking = False
    sent = texts(reuse.rewrite(chat(*turns, ANSWER, ask([1, 3])), DEDUP))
    assert sent[:3] == texts(late)
    assert references(sent[-1]) == ["Doc_1", "Doc_3"]
    assert reuse.counts.late == 1


# ---- whatever comes -------------------------------------------------------------------------------------------------

LINES = st.sampled_from(
    ["Alpha went home.", "It rained.", "", "Question: was it so?", "- a point", "  indented", "# heading",
     "see [9]", "Retracted in 2021", "1. one", "</p>", '"quoted"',
     "id: 3", "Ünïcödé", "Doc_1 says no", "a <b> c", "{x}", "```", "---"]
)  # fmt: skip
DOCUMENT = st.builds(
    lambda lines, name, long: "\n".join(
        [f"{name} begins", *lines, body_of(name) if long else "end of " + name]
    ).strip(),
    st.lists(LINES, max_size=4),
    st.sampled_from(["one", "two", "three", "four"]),
    st.booleans(),
)
LISTED = st.lists(st.tuples(st.sampled_from(["1", "2", "3", "a", "Doc_1"]), DOCUMENT), min_size=1, max_size=4)
FORM = st.sampled_from(["id", "index", "bare", "commented", "numbered", "wrapped", "json", "markdown", "separator"])


def written(form: str, documents: list[tuple[str, str]]) -> tuple[str, list[str]]:
    """The message's text, and what must stand together in it wherever it goes."""
    bodies = [body for _, body in documents]
    if form in ("id", "index"):
        items = [f'<document {form}="{name}">\n{body}\n</document>' for name, body in documents]
        return "<documents>\n" + "\n".join(items) + "\n</documents>\n\nQuestion: Why?", bodies
    if form == "bare":
        return "\n".join(f"<doc>{body}</doc>" for body in bodies) + "\nWhy?", bodies
    if form == "commented":
        return "<!-- " + "\n".join(f"<doc>{body}</doc>" for body in bodies) + " -->\nWhy?", bodies
    if form == "json":
        results = [{"id": name, "text": body} for name, body in documents]
        return json.dumps({"results": results}), [json.dumps(body) for body in bodies]
    if form == "markdown":
        return "\n".join(f"# {name}\n{body}" for name, body in documents) + "\n# Question\nWhy?", bodies
    if form == "separator":
        return "---\n" + "\n---\n".join(bodies) + "\n---\nWhy?", bodies
    items = [f"[{number}] {body}" for number, body in enumerate(bodies, 1)]
    text = "\n".join(items)
    return (f"<excerpts>\n{text}\n</excerpts>\nWhy?" if form == "wrapped" else text + "\n\nWhy?"), bodies


def lines_that_split(form: str, body: str) -> bool:
    """Whether a document holds what its own form is made of, so that nobody could tell where it ends."""
    return (form == "separator" and "---" in body) or (form == "markdown" and ("# heading" in body or "```" in body))


def parts_of(form: str, body: str) -> list[str]:
    """The documents that a reader sees: a body with its own form's separator or heading in it is several."""
    separators = {"separator": r"\n---\n", "markdown": r"\n(?=# )"}
    return re.split(separators[form], body) if form in separators else [body]


@given(st.lists(st.lists(st.tuples(FORM, LISTED), min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_document_is_lost_or_cut_and_no_reference_means_two(
    conversations: list[list[tuple[str, list[tuple[str, str]]]]],
) -> None:
    reuse = new_reuse()
    every = settings(*FORMATS)
    for number, turns in enumerate(conversations):
        messages: list[Message] = []
        for form, documents in turns:
            text, _ = written(form, documents)
            messages += [{"role": "user", "content": text}]
            sent = texts(reuse.rewrite(chat(*messages), every, session=b"%d" % number))
            _check(turns[: (len(messages) + 1) // 2], sent[::2], texts(chat(*messages))[::2])
            messages.append(ANSWER)


def _check(turns: list[tuple[str, list[tuple[str, str]]]], sent: list[str], received: list[str]) -> None:
    whole = "\n".join(sent)
    for (form, documents), text, before in zip(turns, sent, received, strict=True):
        assert text == before or form != "commented"
        for body in written(form, documents)[1]:
            kept = body in text or (references(text) and body in whole)
            assert kept or lines_that_split(form, body), "lost, or cut"
        for reference in references(text):
            assert _meant(reference, turns) == 1, (reference, whole)
        assert text.count("Why?") == written(form, documents)[0].count("Why?")


def _meant(reference: str, turns: list[tuple[str, list[tuple[str, str]]]]) -> int:
    """How many different documents of the request a reference may mean."""
    quoted = re.fullmatch(r'Doc: \\?"(.*?)\\?"', reference)
    if quoted is not None:
        words = quoted.group(1)
        candidates = {
            part for form, documents in turns for (name, body) in documents for part in parts_of(form, body)
            for item in (part, json.dumps({"id": name, "text": body}), f"# {name}\n{body}")
            if plain(item.encode()).decode().startswith(words)
        }  # fmt: skip
        return len(candidates)
    return len(
        {
            body
            for form, documents in turns
            for name, body in documents
            if form in ("id", "json") and reference in (name, "Doc_" + name)
        }
    )
