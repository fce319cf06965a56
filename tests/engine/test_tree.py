"""Draft trees: their shape, who sees whom, and what is kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hothead.engine.tree import DraftShape, best, likeliest_children, sampled_children
from hothead.engine.verify import Proposal, verify_greedy
from hothead.errors import InputError
from hothead.models.window import GrowingTree, ancestors, tree_window


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 24))
    return [draw(st.integers(-1, index - 1)) for index in range(size)]


def plain_ancestors(parents: list[int], index: int) -> set[int]:
    found = set()
    while index >= 0:
        found.add(index)
        index = parents[index]
    return found


@given(parent_lists())
def test_a_token_sees_itself_and_its_ancestors(parents: list[int]) -> None:
    seen = ancestors(torch.tensor(parents))
    for index in range(len(parents)):
        assert set(seen[index].nonzero().flatten().tolist()) == plain_ancestors(parents, index)


@given(parent_lists(), st.integers(0, 9))
def test_siblings_share_a_position(parents: list[int], past: int) -> None:
    window = tree_window(torch.tensor(parents), past)
    depths = [len(plain_ancestors(parents, index)) for index in range(len(parents))]
    assert window.positions.tolist() == [past + depth - 1 for depth in depths]
    assert torch.equal(window.unseen, ~ancestors(torch.tensor(parents)))


@given(parent_lists(), st.integers(0, 9))
def test_a_tree_grown_level_by_level_is_the_whole_tree(parents: list[int], past: int) -> None:
    depths = [len(plain_ancestors(parents, index)) for index in range(len(parents))]
    order = sorted(range(len(parents)), key=lambda index: depths[index])
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    moved = [place[parents[old]] for old in order]
    whole = tree_window(torch.tensor(moved), past)
    tree, start = GrowingTree(past, torch.device("cpu")), 0
    for depth in sorted(set(depths)):
        level = torch.tensor([moved[place[old]] for old in order if depths[old] == depth])
        window = tree.grow(level)
        end = start + len(level)
        assert torch.equal(window.positions, whole.positions[start:end])
        assert torch.equal(window.unseen, whole.unseen[start:end, :end])
        start = end


@given(st.integers(1, 6), st.integers(2, 5), st.data())
def test_what_is_kept_is_closed_under_ancestors(num_steps: int, topk: int, data: st.DataObject) -> None:
    shape = DraftShape(num_steps, topk)
    width = data.draw(st.integers(2, shape.most_tokens))
    is_sampled = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    rows = torch.cat([torch.arange(10, 22), torch.tensor([-1])])
    paths = scores = torch.zeros(1)
    frontier, all_scores, all_parents, all_ids = torch.tensor([-1]), [], [], []
    for _ in range(num_steps):
        logits = torch.randn(len(frontier), 13, generator=generator)
        logits[:, -1] = -torch.inf  # an empty slot
        log_probs = logits.log_softmax(-1)
        if is_sampled:
            level = sampled_children(log_probs, paths, scores, rows, topk, generator)
        else:
            level = likeliest_children(log_probs, paths, rows, topk)
        assert bool((level.scores <= scores[level.parents] + 1e-5).all()), "a child beats its parent"
        for parent in range(len(frontier)):
            ids = level.target_ids[level.parents == parent].tolist()
            assert len(set(ids)) == len(ids), "a sibling twice"
            own = level.scores[level.parents == parent]
            assert torch.equal(own, own.sort(descending=True).values)
        before = sum(map(len, all_scores))
        kept = level.best(topk)
        all_parents.append(frontier[level.parents])
        all_scores.append(level.scores)
        all_ids.append(level.target_ids)
        frontier, paths, scores = before + kept, level.path_log_probs[kept], level.scores[kept]
    chosen = best(torch.cat(all_scores), width - 1).tolist()
    parents = torch.cat(all_parents).tolist()
    assert len(chosen) == width - 1
    assert chosen == sorted(set(chosen))
    assert all(parents[index] == -1 or parents[index] in chosen for index in chosen)
    assert -1 not in torch.cat(all_ids)[chosen].tolist()


def test_the_best_child_has_its_parents_score() -> None:
    """What conditioning the Gumbel noise means (Kool et al. 1903.06059)."""
    log_probs = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    scores = torch.tensor([-0.5, -3.0, -9.0])
    level = sampled_children(log_probs, scores - 0.2, scores, torch.arange(9), 4, torch.Generator().manual_seed(1))
    assert level.scores.view(3, 4)[:, 0].tolist() == pytest.approx(scores.tolist(), abs=1e-4)


def test_greedy_verification_takes_the_longest_path() -> None:
    #  root -> 5 -> 7 -> 9
    #       -> 6 -> 7 -> 8
    proposal = Proposal(torch.tensor([5, 6, 7, 7, 9, 8]), torch.tensor([-1, -1, 0, 1, 2, 3]))
    logits = torch.zeros(7, 10)
    for row, target_id in enumerate([6, 0, 7, 0, 3, 0, 0]):
        logits[row, target_id] = 1.0
    verdict = verify_greedy(proposal, logits)
    assert (verdict.target_ids, verdict.path) == ([6, 7, 3], [1, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_steps must be at least 1"),
        ((4, 0), "topk must be at least 1"),
        ((4, 1, 9), "verifies 5 tokens"),
        ((2, 2, 8), "between 2 and 7"),
        ((2, 2, 1), "between 2 and 7"),
        ((2, 1, None, 1.5), "p_min is a probability"),
        ((2, 1, None, -0.1), "p_min is a probability"),
        ((2, 1, None, 0.1, 1.5), "verify_p_min is a probability, from 0 to 1; found 1.5"),
    ],
)
def test_shapes_that_no_tree_has(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DraftShape(*arguments)


def test_default_widths() -> None:
    assert DraftShape(4).width == 5
    assert DraftShape(4, 2).width == 9
    assert DraftShape(1, 2).width == 3
