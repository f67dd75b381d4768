"""Reading a table of attempts: what is understood, and how a bad cell is named."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.errors import UserError
from fairlead.tools.fit import read_attempts

HEADER = "model,language,bucket,correct\n"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "attempts.csv"


def cell(language: str, bucket: str) -> int:
    return LANGUAGES.index(language) * len(BUCKETS) + BUCKETS.index(bucket)


def test_attempts_are_grouped_by_task_and_model(csv: Path) -> None:
    csv.write_text("model,language,bucket,task,correct\nb,en,4K,qa,1\na,en,4K,qa,0\na,ja,8K,kv,1\na,en,4K,qa,1\n")
    found = read_attempts(csv)
    assert [(group.task, group.model, len(group.right)) for group in found] == [
        ("kv", "a", 1),
        ("qa", "a", 2),
        ("qa", "b", 1),
    ]
    assert found[1].right.tolist() == [False, True]


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("en", "en"), ("English", "en"), ("ASCII", "en"), ("japanese", "ja"), ("kana", "ja"), ("ja-JP", "ja"),
        ("Chinese", "zh"), ("cjk", "zh"), ("zh_Hans", "zh"), ("korean", "ko"), ("Cyrillic", "ru"), (" th ", "th"),
        ("other", "other"),
    ],
)  # fmt: skip
def test_languages_are_codes_or_common_names_in_any_case(csv: Path, written: str, code: str) -> None:
    csv.write_text(f"{HEADER}m,{written},4K,1\n")
    assert read_attempts(csv)[0].cell.tolist() == [cell(code, "4K")]


@pytest.mark.parametrize(
    ("written", "bucket"),
    [
        ("4K", "4K"), ("4k", "4K"), ("4096", "4K"), ("4096.0", "4K"), ("64K", "64K"), ("131072", "128K"),
        ("Beyond", "beyond"), ("256K", "beyond"), ("1000000", "beyond"),
    ],
)  # fmt: skip
def test_buckets_are_names_or_lengths(csv: Path, written: str, bucket: str) -> None:
    csv.write_text(f"{HEADER}m,en,{written},1\n")
    assert read_attempts(csv)[0].cell.tolist() == [cell("en", bucket)]


@pytest.mark.parametrize("column", ["tokens", "prompt_tokens"])
def test_tokens_stand_in_for_a_bucket(csv: Path, column: str) -> None:
    csv.write_text(f"model,language,{column},correct\nm,en,100,1\nm,en,30000,0\n")
    assert read_attempts(csv)[0].cell.tolist() == [cell("en", "4K"), cell("en", "32K")]


def test_right_and_wrong_are_written_in_several_ways(csv: Path) -> None:
    csv.write_text(HEADER + "".join(f"m,en,4K,{word}\n" for word in ("1", "true", "TRUE", "1.0", "0", "False", "0.0")))
    assert read_attempts(csv)[0].right.tolist() == [True] * 4 + [False] * 3


def test_headings_in_any_case_further_columns_and_blank_lines_are_no_matter(csv: Path) -> None:
    csv.write_text("Model, Language ,BUCKET,Correct,comment\nm,en,4K,1,hm\n\nm,en,8K,0,\n\n")
    assert read_attempts(csv)[0].cell.tolist() == [cell("en", "4K"), cell("en", "8K")]


def test_json_lines_may_mix_numbers_strings_and_booleans(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    path.write_text(
        '{"model": "m", "language": "en", "bucket": "4K", "correct": true, "answer": {"text": "x"}}\n'
        '{"model": "m", "language": "en", "bucket": 8192, "correct": 0}\n'
    )
    [found] = read_attempts(path)
    assert (found.cell.tolist(), found.right.tolist()) == ([cell("en", "4K"), cell("en", "8K")], [True, False])


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    path = tmp_path / "attempts.parquet"
    columns = {"model": ["m", "m"], "language": ["en", "zh"], "bucket": [4096, 8192], "correct": [True, False]}
    pl.DataFrame(columns).write_parquet(path)
    [found] = read_attempts(path)
    assert (found.cell.tolist(), found.right.tolist()) == ([cell("en", "4K"), cell("zh", "8K")], [True, False])


def test_the_speed_is_the_median_over_attempts_that_tell_time_and_tokens(csv: Path) -> None:
    csv.write_text(
        "model,language,tokens,correct,ms\nm,en,1000,1,50\nm,en,1000,1,60\nm,en,1000,0,900\nm,en,1000,0,\nm,en,1000,0,-1\n"
    )
    assert read_attempts(csv)[0].prefill_ms_per_token == pytest.approx(0.06)


def test_no_speed_is_made_up_without_times(csv: Path) -> None:
    csv.write_text(f"{HEADER}m,en,4K,1\n")
    assert read_attempts(csv)[0].prefill_ms_per_token is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a well-formed csv table"),
        (HEADER, "no attempts in it"),
        ("a,b\n1,2\n", 'column "language" is missing or empty'),
        ("model,language,bucket\nm,en,4K\n", 'column "correct" is missing or empty; add it, with true or false'),
        ("model,language,correct\nm,en,1\n", 'column "bucket" is missing or empty; .* or add "tokens"'),
        (
            f"{HEADER}m,en,4K,1\nm,french,4K,1\n",
            'line 3, column "language": "french" is not a language; write one of en',
        ),
        (f"{HEADER}m,en,4K,1\n\nm,,4K,1\n", 'line 4, column "language": an empty cell is not a language'),
        (f"{HEADER}m,en,3,1\n", 'line 2, column "bucket": "3" is not a length bucket; write one of 4K'),
        (f"{HEADER}m,en,4Q,1\n", 'line 2, column "bucket": "4Q" is not a length bucket'),
        (f"{HEADER}m,en,4K,maybe\n", 'line 2, column "correct": "maybe" does not say .*; write true or false, 1 or 0'),
        (f"{HEADER},en,4K,1\nm,en,4K,1\n", 'line 2, column "model": an empty cell is not a model; write the model'),
        (f"{HEADER}m,en\n", 'column "bucket" is missing or empty'),
        (f"{HEADER}m,en,4K,1,2,3\n", "not a well-formed csv table"),
        ("model,language,tokens,correct\nm,en,-5,1\n", 'line 2, column "tokens": "-5" is not a length'),
        ("model,language,tokens,correct\nm,en,1,1\nm,en,nan,1\n", 'line 3, column "tokens": "nan" is not a length'),
        ("model,language,bucket,task,correct\nm,en,4K,../qa,1\n", 'column "task": "../qa" cannot name a file'),
    ],
)
def test_a_bad_table_names_the_place_and_what_to_write(csv: Path, content: str, message: str) -> None:
    csv.write_text(content)
    with pytest.raises(UserError, match=message) as raised:
        read_attempts(csv)
    assert str(raised.value).startswith(f"{csv}: ")


def test_bytes_that_are_not_text_are_refused(csv: Path) -> None:
    csv.write_bytes(HEADER.encode() + b"m\xff,en,4K,1\n")
    with pytest.raises(UserError, match="not a well-formed csv table: invalid utf-8"):
        read_attempts(csv)


@pytest.mark.parametrize("bad", ['{"model": "m"', "[1]", "nonsense"])
def test_a_line_that_is_no_json_object_is_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "attempts.jsonl"
    path.write_text(f'{{"model": "m", "language": "en", "bucket": "4K", "correct": true}}\n{bad}\n')
    with pytest.raises(UserError, match="line 2 is not a JSON object"):
        read_attempts(path)


def test_a_parquet_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "attempts.parquet"
    path.write_text(HEADER)
    with pytest.raises(UserError, match="not a well-formed parquet table"):
        read_attempts(path)


@pytest.mark.parametrize(("name", "message"), [("no.csv", "No such file"), ("attempts.xlsx", "not a table that can")])
def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_attempts(tmp_path / name)
