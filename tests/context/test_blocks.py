"""Which blocks are found in a text, and what is not taken for one."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.context.blocks import FORMATS, Format, find_groups


def found(text: str, *formats: Format) -> list[list[str]]:
    raw = text.encode()
    groups = find_groups(raw, formats) if formats else find_groups(raw)
    return [[raw[block.start : block.end].decode() for block in group.blocks] for group in groups]


# ---- XML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "item"),
    [
        ("documents", "document"),
        ("passages", "passage"),
        ("contexts", "context"),
        ("sources", "source"),
        ("docs", "doc"),
    ],
)
def test_elements_of_the_known_names_are_blocks(wrapper: str, item: str) -> None:
    first, second = f"<{item} id=\"1\" lang='en'>one</{item}>", f"<{item}>two\nlines</{item}>"
    assert found(f"Read.\n<{wrapper} n='2'>\n{first}\n{second}\n</{wrapper}>\n\nWhy?") == [[first, second]]


def test_a_body_is_what_stands_between_the_tags_without_space_at_its_ends() -> None:
    text = b'<document id="7">\n  some text\n</document>'
    block = find_groups(text)[0].blocks[0]
    assert text[block.body_start : block.body_end] == b"some text"
    assert block.name == b"7"


def test_an_element_inside_a_block_is_a_part_of_it() -> None:
    block = '<document index="1"><source>a.pdf</source><document_content>x</document_content></document>'
    assert found(f"<documents>{block}</documents>") == [[block]]


def test_a_context_around_documents_is_their_wrapper() -> None:
    assert found("<context>Use:\n<doc>a</doc>\n<doc>b</doc>\n</context>") == [["<doc>a</doc>", "<doc>b</doc>"]]


def test_elements_with_text_between_them_are_not_of_one_group() -> None:
    assert found("About A: <doc>a</doc> About B: <doc>b</doc>") == [["<doc>a</doc>"], ["<doc>b</doc>"]]


def test_a_tag_that_is_never_closed_opens_nothing() -> None:
    assert found("a <source> of joy\n<doc>a</doc>\n<doc>b</doc>") == [["<doc>a</doc>", "<doc>b</doc>"]]


def test_a_nested_element_of_the_same_name_belongs_to_the_outer_one() -> None:
    block = "<doc>a <doc>b</doc> c</doc>"
    assert found(block) == [[block]]


def test_a_remark_belongs_after_the_wrapper() -> None:
    text = b"<documents><doc>a</doc>\n</documents> Why?"
    assert text[find_groups(text)[0].end :] == b" Why?"


SHOWN = "<doc>a</doc>\n<doc>b</doc>"
MEANT = "<doc>c</doc>\n<doc>d</doc>"


@pytest.mark.parametrize(
    "literal",
    [
        f"```xml\n{SHOWN}\n```",
        f"~~~~\n~~~\n{SHOWN}\n~~~~",
        f"```\r\n{SHOWN}\r\n```\r",
        f"> ```\n{SHOWN}\n> ```",
        f"- so:\n    ```\n{SHOWN}\n    ```",
        f"```\n```python\n{SHOWN}\n```",
        f"<!-- {SHOWN} -->",
        f"<!--\n```\n{SHOWN}\n-->",
        f"<![CDATA[{SHOWN}]]>",
    ],
)
def test_elements_in_code_in_comments_and_in_cdata_are_words_and_those_behind_are_documents(literal: str) -> None:
    assert found(f"They look like this:\n{literal}\n\nUse these.\n{MEANT}\n\nWhy?") == [MEANT.split("\n")]


@pytest.mark.parametrize("start", ["```", "~~~ text", "<!--", "<![CDATA["])
def test_what_is_never_closed_goes_on_to_the_end(start: str) -> None:
    assert found(f"{start}\n{MEANT}\n\nWhy?") == []


@pytest.mark.parametrize(("start", "end"), [("<!--", "-->"), ("<![CDATA[", "]]>")])
def test_an_end_tag_in_a_comment_or_in_cdata_ends_no_document(start: str, end: str) -> None:
    one = f"<doc>a {start} </doc>\n<doc> {end} b</doc>"
    assert found(f"{one}\n{MEANT}") == [MEANT.split("\n")]


@pytest.mark.parametrize("text", ["```one line``` of code", "so --> it is", "a ``` b", "a[b[0]]> c"])
def test_what_only_looks_like_code_or_a_comment_changes_nothing(text: str) -> None:
    assert found(f"{text}\n{MEANT}") == [MEANT.split("\n")]


def test_a_document_that_was_cut_in_its_code_is_one() -> None:
    documents = ["<doc>\n```python\nfor each\n</doc>", "<doc>\nin these\n```\n</doc>", "<doc><!-- x --> y</doc>"]
    assert found("\n".join(documents)) == [documents]


# ---- numbered -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [("<!--", "-->"), ("<![CDATA[", "]]>")])
def test_a_numbered_list_in_a_comment_or_in_cdata_stays_and_one_behind_it_is_found(start: str, end: str) -> None:
    items = "[1] one\n[2] two\n[3] three"
    assert found(f"{start}\n{items}\n{end}\n\nQuestion: why?") == []
    assert found(f"{start} so they look {end}\n{items}\n\nQuestion: why?") == [["one", "two", "three"]]


def test_a_numbered_list_is_found_and_its_labels_stay_outside() -> None:
    assert found("Context:\n[1] one\n[2] two\n[3] three\n\nQuestion: why?") == [["one", "two", "three"]]


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_a_question_after_a_list_is_no_part_of_its_last_item(gap: str) -> None:
    assert found(f"[1] one\n[2] two{gap}Question: why?") == [["one", "two"]]


def test_where_items_have_several_lines_the_last_one_is_left_in_its_place() -> None:
    """Nothing tells where it ends and the question begins."""
    assert found("[1] one\nmore\n[2] two\nmore\n[3] three\nmore\nQuestion: why?\n\nAnswer:") == [
        ["one\nmore", "two\nmore"]
    ]


@pytest.mark.parametrize(
    "text",
    [
        "As shown in [1] and [2], it holds.",
        "[2] says so, and [1] too.\nYes.",
        "[1] one\n[3] three",
        "[0] none\n[1] one",
        "[1] only one",
        "[1] one\n[2] two\n\nWhat does [2] mean?",
        "As [1] has it:\n[1] one\n[2] two",
    ],
)
def test_citations_and_lists_that_are_cited_are_no_blocks(text: str) -> None:
    assert found(text) == []


def test_a_citation_inside_an_item_is_a_part_of_it() -> None:
    assert found("[1] one, see [2] there\n[2] two") == [["one, see [2] there", "two"]]


# ---- JSON -----------------------------------------------------------------------------------------------------------


def test_objects_of_results_are_blocks_with_their_ids() -> None:
    text = '{"n": 2, "results": [{"id": "a", "t": 1.0}, {"id": 7, "t": "x"}], "more": {"results": [{}]}}'
    group = find_groups(text.encode())[0]
    assert found(text) == [['{"id": "a", "t": 1.0}', '{"id": 7, "t": "x"}']]
    assert [block.name for block in group.blocks] == [b"a", b"7"]
    assert group.end == len(text) - 1


@pytest.mark.parametrize(
    "text", ['{"results": [1, 2]}', '{"results": {}}', '{"results": [{"a": 1}', '{"x": [{}]}', "{x}"]
)
def test_other_json_has_no_blocks(text: str) -> None:
    assert found(text) == []


# ---- when asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opens", "closes"), [("````markdown", "````"), ("~~~~", "~~~~~"), ("```", "```")])
def test_code_that_shows_code_is_no_end_of_it(opens: str, closes: str) -> None:
    """A page about Markdown: a fence ends at one as long as it, without a word; a comment inside is no heading."""
    shown = "```python" if closes == "```" else "```python\n# a comment\n```"
    code = f"{opens}\n{shown}\n# another\n{closes}"
    text = f"# A\n{code}\n# B\nx\n# C\ny"
    assert found(text, "markdown") == [[f"# A\n{code}", "# B\nx"]]


def test_markdown_sections_are_blocks_only_when_asked_for_and_the_last_stays() -> None:
    text = "Intro\n# A\nx\n## A.1\ny\n# B\nz\n# Question\nwhy?"
    assert found(text) == []
    assert found(text, "markdown") == [["# A\nx\n## A.1\ny", "# B\nz"]]


def test_what_stands_between_separators_is_a_block_only_when_asked_for() -> None:
    text = "Read:\n---\none\n---\ntwo\n---\nwhy?"
    assert found(text) == []
    assert found(text, "separator") == [["one", "two"]]


# ---- all ------------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "<doc>",
        "</doc>",
        "<documents>",
        "</documents>",
        '<document id="1">',
        "</document>",
        "<context>",
        "</context>",
        "[1] ",
        "[2] ",
        "\n",
        "\n\n",
        "x",
        "é",
        "# H\n",
        "---\n",
        '{"results": [',
        "{}",
        ",",
        "]}",
        " ",
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.sampled_from(FORMATS))
def test_blocks_follow_one_another_inside_the_text_and_bodies_lie_inside_blocks(text: str, name: Format) -> None:
    raw = text.encode()
    cursor = 0
    for group in find_groups(raw, [name]):
        for block in group.blocks:
            assert cursor <= block.start <= block.body_start <= block.body_end <= block.end
            cursor = block.end
        assert cursor <= group.end <= len(raw)


@pytest.mark.parametrize(
    "piece",
    [
        "<doc>",
        "</doc>",
        "<doc ",
        "<!--<doc></doc>",
        "``` `\n<doc></doc>",
        "> > ",
        "<doc></doc>x",
        "[1] a\n",
        "<context>",
        "# h\n",
        "---\n",
    ],
)
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    def seconds(repeats: int) -> float:
        raw = (piece * repeats).encode()
        started_s = time.process_time()
        for name in FORMATS:
            find_groups(raw, [name])
        return time.process_time() - started_s

    seconds(1000)
    assert seconds(40_000) < 2.0


def test_a_json_text_as_a_string_keeps_its_items() -> None:
    items = [{"id": i, "text": "é\n" * i} for i in range(3)]
    assert [json.loads(item) for item in found(json.dumps({"results": items}))[0]] == items
