"""The order in which methods answer: the same for the same place, and nobody has a neighbour of their own."""

from itertools import pairwise, permutations

from hothead.bench.order import shuffled

METHODS = ("plain", "full", "static", "dynamic", "llama.cpp", "vllm", "vllm-draft")


def test_every_ordered_pair_of_neighbours_occurs() -> None:
    """A pair is missing from 200 blocks with a probability of (1 - 1/7)**200, about 4e-14."""
    found = set()
    for prompt in range(50):
        for turn in range(2):
            for repeat in range(2):
                order = shuffled(METHODS, 0, f"{prompt}", turn, repeat)
                assert sorted(order) == sorted(METHODS)
                found |= set(pairwise(order))
    assert found == set(permutations(METHODS, 2))


def test_a_place_has_one_order() -> None:
    assert shuffled(METHODS, 0, "81", 0, 1) == shuffled(METHODS, 0, "81", 0, 1)
    places = [(0, "81", 0, 0), (1, "81", 0, 0), (0, "82", 0, 0), (0, "81", 1, 0), (0, "81", 0, 1), (0, "8", 10, 0)]
    assert len({tuple(shuffled(METHODS, *place)) for place in places}) == len(places)
