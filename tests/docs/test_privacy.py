"""docs/privacy.md says what is kept of clients: it names each column, label and attribute that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric

import fairlead
from fairlead.admin.metrics import FairleadCollector
from fairlead.core.policy import Outcome
from fairlead.decision_log.columns import COLUMNS, Anonymous
from fairlead.extproc.recorder import KEPT_DECISIONS
from fairlead.redis import drains, moves, sessions
from fairlead.tracing.context import TraceContext
from fairlead.tracing.spans import spans
from tests.decision_log.world import MODELS, Pool
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers

OWN: Final = TraceContext(bytes(16), bytes(8), sampled=True)
PAGE: Final = (Path(__file__).parents[2] / "docs/privacy.md").read_text(encoding="utf-8")


SRC: Final = Path(fairlead.__file__).parent


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]


def names_after(start: str) -> set[str]:
    """Names in the list that begins so, up to the end of its sentence."""
    return set(re.findall(r"`([^`]+)`", re.split(r"\.\s", PAGE.split(start)[1])[0]))


def test_the_table_of_the_log_has_its_columns_in_their_order() -> None:
    rows = re.findall(r"^\| `([a-z_0-9]+)` \|", section("The decision log"), re.MULTILINE)
    assert rows == list(COLUMNS)


def test_each_label_of_a_metric_is_named() -> None:
    named = names_after("Labels of metrics: ")
    assert named >= {label for family in scraped() for sample in family.samples for label in sample.labels}
    assert named >= set().union(*map(labels_in, sorted((SRC / "admin").glob("*.py"))))


def scraped() -> list[Metric]:
    """Families of a sidecar that has served a request."""
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("m")), response_headers(), response_trailers())
    return list(FairleadCollector(conversation.services).collect())


def labels_in(module: Path) -> set[str]:
    """Names in tuples that are given as `labels`, or called so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        is_labels = (isinstance(node, ast.keyword) and node.arg == "labels") or (
            isinstance(node, ast.Assign) and any(ast.unparse(target) == "labels" for target in node.targets)
        )
        if is_labels and isinstance(node, ast.keyword | ast.Assign) and isinstance(node.value, ast.Tuple):
            found |= {str(name.value) for name in node.value.elts if isinstance(name, ast.Constant)}
    return found


def test_each_attribute_of_a_span_is_named() -> None:
    named = names_after("Attributes of spans that are of a client: ") | names_after("Of the decision and of engines: ")
    outcome = Outcome(500, 1000.0, 50.0, prompt_tokens=9, cached_tokens=1, completion_tokens=2)
    made = spans(Pool().ended(outcome=outcome), OWN, b"", 0.0)
    keys = {attribute.key for span in made for attribute in span.attributes}
    assert {re.sub(r"^fairlead\.cost\..*", "fairlead.cost.*", key) for key in keys} - named == set()


def test_each_kind_of_key_in_redis_is_named() -> None:
    page = section("What else holds something of clients")
    for prefix in (sessions.KEY_PREFIX, moves.KEY_PREFIX, drains.KEY_PREFIX):
        assert f"`{prefix}<" in page


def test_a_row_and_a_trace_hold_no_session_id_and_the_row_no_request_id_either() -> None:
    ended = Pool().ended(session="alice@example.org", request_id=b"bob@example.org")
    row = str(Anonymous().row(ended, 1000.0, MODELS))
    traced = str(spans(ended, OWN, b"", 0.0))
    assert "alice" not in row + traced
    assert ("bob" in row, "bob" in traced) == (False, True)


def test_how_many_decisions_the_admin_port_keeps_is_what_the_page_says() -> None:
    assert f"of the last {KEPT_DECISIONS:,} decisions, endings and refusals each" in PAGE
