from __future__ import annotations

from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.tools.bench.routing.sessions import AGENTS, CHATS, Regime, Session, make_sessions
from fairlead.tools.simulate.tokens import tokenize

REGIMES = (AGENTS, CHATS)


def test_the_same_seed_makes_the_same_sessions_and_another_seed_others() -> None:
    assert make_sessions(AGENTS, 20, "0-1") == make_sessions(AGENTS, 20, "0-1")
    assert make_sessions(AGENTS, 20, "0-1") != make_sessions(AGENTS, 20, "0-2")


def test_most_sessions_are_short_and_a_few_make_most_of_the_requests() -> None:
    turns = sorted((len(session.turns) for session in make_sessions(AGENTS, 400, "0")), reverse=True)

    assert median(turns) < AGENTS.most_turns / 2
    assert sum(turns[:160]) > sum(turns) * 0.6


def test_agents_share_a_few_system_prompts_and_some_of_them_far_more_often() -> None:
    systems = [session.system for session in make_sessions(AGENTS, 400, "0")]
    counts = sorted(systems.count(system) for system in set(systems))

    assert len(counts) == AGENTS.system_prompts
    assert counts[-1] > 3 * counts[0]


def test_a_word_is_one_token_for_the_engines() -> None:
    session = make_sessions(AGENTS, 1, "0")[0]
    assert tokenize(session.system, 16, 1 << 20).count == AGENTS.system_words


def test_agents_can_reuse_most_of_a_prompt_and_chats_hardly_any() -> None:
    assert reusable_share(make_sessions(AGENTS, 100, "0")) > 0.7
    assert reusable_share(make_sessions(CHATS, 100, "0")) < 0.5


def test_most_sessions_are_named_and_no_two_have_the_same_name() -> None:
    sessions = make_sessions(CHATS, 400, "0")
    names = [session.name for session in sessions if session.name is not None]

    assert 0.75 < len(names) / len(sessions) < 0.95
    assert len(set(names)) == len(names)


@settings(max_examples=25, deadline=None)
@given(regime=st.sampled_from(REGIMES), count=st.integers(0, 30), seed=st.text(max_size=5))
def test_every_session_stays_within_what_its_regime_says(regime: Regime, count: int, seed: str) -> None:
    sessions = make_sessions(regime, count, seed)

    assert len(sessions) == count
    for session in sessions:
        assert 1 <= len(session.turns) <= regime.most_turns
        for turn in session.turns:
            low, high = regime.turn_words
            assert low <= len(turn.text.split()) <= high
            least, most = regime.answer_tokens
            assert least <= turn.answer_tokens <= most
            assert turn.think_ms >= 0


def reusable_share(sessions: list[Session]) -> float:
    """Of all prompt words, those that an endless cache in one place would hold."""
    seen: set[str] = set()
    cached = total = 0
    for session in sessions:
        history = len(session.system.split())
        cached += history if session.system in seen else 0
        seen.add(session.system)
        for number, turn in enumerate(session.turns):
            cached += history if number else 0
            history += len(turn.text.split())
            total += history
            history += turn.answer_tokens
    return cached / total
