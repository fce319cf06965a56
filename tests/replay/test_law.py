"""The renewal recursion against enumeration, and what must hold for any acceptances."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hothead.replay.law import Renewal, acceptance


def enumerate_rounds(accepts: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """Expected rounds and accepted drafts, by walking through every outcome of every draft: accepts [n, >= k]."""
    n = len(accepts)
    rounds, accepted = 0.0, np.zeros(k)

    def walk(at: int, probability: float) -> None:
        nonlocal rounds
        if at >= n or probability == 0:
            return
        rounds += probability
        # A draft past the end of the answer does not matter: the round is cut there.
        steps = min(k, n - at)
        for outcome in itertools.product((True, False), repeat=steps):
            chance = np.prod([accepts[at, i] if is_in else 1 - accepts[at, i] for i, is_in in enumerate(outcome)])
            run = next((i for i, is_in in enumerate(outcome) if not is_in), steps)
            accepted[:run] += probability * chance
            walk(at + run + 1, probability * chance)

    walk(0, 1.0)
    return rounds, accepted


def replay(accepts: np.ndarray, k: int) -> Renewal:
    renewal = Renewal(len(accepts), k, 1)
    for row in accepts:
        renewal.start(np.cumprod(row)[:, None])
    return renewal


probabilities = st.integers(1, 3).flatmap(
    lambda k: st.integers(1, 5).flatmap(
        lambda n: arrays.arrays(np.float64, (n, k), elements=st.sampled_from([0.0, 0.125, 0.5, 0.75, 1.0]))
    )
)


@given(probabilities)
def test_expected_rounds_are_those_of_enumeration(accepts: np.ndarray) -> None:
    k = accepts.shape[1]
    rounds, accepted = enumerate_rounds(accepts, k)
    renewal = replay(accepts, k)
    assert renewal.rounds[0] == pytest.approx(rounds, rel=1e-12)
    np.testing.assert_allclose(renewal.accepted[:, 0], accepted, rtol=1e-12, atol=1e-15)


@given(probabilities, st.integers(1, 4))
def test_deeper_chains_than_k_change_nothing(accepts: np.ndarray, k: int) -> None:
    k = min(k, accepts.shape[1])
    assert replay(accepts, k).rounds == replay(accepts[:, :k], k).rounds


@given(probabilities)
def test_longer_rounds_are_never_more_rounds(accepts: np.ndarray) -> None:
    """Certain acceptances: a chain that may go on further cannot need more rounds from the same starts."""
    certain = np.ones_like(accepts)
    counts = [replay(certain, k).rounds[0] for k in range(1, accepts.shape[1] + 1)]
    assert counts == [-(-len(accepts) // (k + 1)) for k in range(1, accepts.shape[1] + 1)]
    nothing = replay(np.zeros_like(accepts), accepts.shape[1])
    assert nothing.rounds[0] == len(accepts)
    assert not nothing.accepted.any()


def test_an_answer_of_one_token_has_no_rounds() -> None:
    assert Renewal(0, 4, 3).rounds.tolist() == [0, 0, 0]


def test_acceptance_of_what_rounding_made_impossible() -> None:
    """A token that was emitted, whose p a second pass rounds to nothing (top-p's edge): accepted if it is hot."""
    log_q, log_p = np.log([0.5, 0.2, 0.1]), np.log([0.25, 0.4, 0.1])
    np.testing.assert_allclose(acceptance(log_q, log_p), [1.0, 0.5, 1.0])
    impossible = np.array([-np.inf, -np.inf])
    np.testing.assert_array_equal(acceptance(np.array([-1.0, -np.inf]), impossible), [1.0, 0.0])
    assert acceptance(impossible[:1], np.zeros(1)).tolist() == [0.0]
