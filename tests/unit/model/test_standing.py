"""The words for states: one table for each kind of object, and a row for every word of a lifecycle."""

from slipway.model.lifecycle import Phase, RankState
from slipway.model.reasons import Result
from slipway.model.state_words import (
    HELD,
    JOB_STATE_OF,
    JOB_STATE_WORDS,
    RANK_STATE_WORDS,
    READY,
    STATE_WORDS,
    WAITING,
    JobState,
    StateWord,
)


def words(standings: tuple[StateWord, ...]) -> list[str]:
    assert all(each.meaning.endswith(".") for each in standings)
    return [each.word for each in standings]


def test_each_word_stands_once_in_its_table() -> None:
    """Each word is in its table once: phases, results and further words of allocations; states of ranks and jobs."""
    assert sorted(words(STATE_WORDS)) == sorted([*Phase, *Result, HELD, READY, WAITING])
    assert words(RANK_STATE_WORDS) == list(RankState)
    assert words(JOB_STATE_WORDS) == list(JobState)


def test_a_word_has_one_tone_wherever_it_is_used() -> None:
    """A word has the same tone for every kind of object: a green word of an allocation is not yellow for a rank."""
    tones = {each.word: each.tone for each in STATE_WORDS}
    others = (*RANK_STATE_WORDS, *JOB_STATE_WORDS)
    assert [each.word for each in others if tones.get(each.word, each.tone) is not each.tone] == []


def test_every_phase_makes_a_state_of_its_job() -> None:
    """Every phase makes a state of its job, whose meaning names the phases, so that both vocabularies can be read
    together."""
    assert set(JOB_STATE_OF) == set(Phase)
    meanings = {each.word: each.meaning for each in JOB_STATE_WORDS}
    for phase, state in JOB_STATE_OF.items():
        assert state is JobState.IDLE or phase.value in meanings[state], phase
