"""Who answers when: at random, so that nobody always follows the same neighbour and bears what it leaves behind."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shuffled(items: Sequence[Item], *place: object) -> list[Item]:
    """``items`` in a random order that is the same wherever ``place`` (a seed, a prompt's id, a number) is."""
    return random.Random(repr(place)).sample(items, len(items))
