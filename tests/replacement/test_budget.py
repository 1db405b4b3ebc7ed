import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.errors import BudgetError
from autorep.replacement.budget import check_budget, keep_at_least, keep_best, keep_groups


@st.composite
def layers(draw) -> tuple[list[torch.Tensor], list[torch.Tensor], int, int]:
    """Scores with many ties, masks, a floor and a feasible budget."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    levels = st.sampled_from([-0.5, 0.0, 0.004, 0.008, 0.25, 1.0])
    scores = [torch.tensor(draw(st.lists(levels, min_size=n, max_size=n))) for n in sizes]
    masks = [torch.tensor(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), dtype=torch.uint8) for n in sizes]
    floor = draw(st.integers(0, 3))
    budget = draw(st.integers(sum(min(floor, n) for n in sizes), sum(sizes)))
    return scores, masks, floor, budget


@settings(max_examples=150, deadline=None)
@given(layers(), st.sampled_from([0.0, 0.006, 10.0]))
def test_exactly_the_budget_is_kept_and_no_outsider_was_better(case, margin: float) -> None:
    scores, masks, floor, budget = case
    kept = keep_best(scores, masks, budget, margin, floor)
    assert sum(int(mask.sum()) for mask in kept) == budget
    assert all(int(new.sum()) >= min(floor, new.numel()) for new in kept)
    adjusted = [s.double() + margin * m for s, m in zip(scores, masks)]
    if floor == 0:
        flat, chosen = torch.cat(adjusted), torch.cat(kept).bool()
        if 0 < budget < flat.numel():
            assert flat[chosen].min() >= flat[~chosen].max()


@settings(max_examples=60, deadline=None)
@given(layers())
def test_a_second_step_changes_nothing(case) -> None:
    scores, masks, floor, budget = case
    once = keep_best(scores, masks, budget, 0.006, floor)
    twice = keep_best(scores, once, budget, 0.006, floor)
    assert all(torch.equal(a, b) for a, b in zip(once, twice))


def test_an_outsider_enters_only_beyond_the_margin() -> None:
    mask = torch.tensor([1, 0], dtype=torch.uint8)
    assert keep_best([torch.tensor([0.100, 0.105])], [mask], 1, 0.006)[0].tolist() == [1, 0]
    assert keep_best([torch.tensor([0.100, 0.107])], [mask], 1, 0.006)[0].tolist() == [0, 1]


@settings(max_examples=50, deadline=None)
@given(layers())
def test_refilling_to_the_floor_takes_the_highest(case) -> None:
    scores, masks, floor, _ = case
    for score, mask in zip(scores, masks):
        filled = keep_at_least(mask, score, floor)
        assert int(filled.sum()) == max(int(mask.sum()), min(floor, mask.numel()))
        assert (filled >= mask).all()
        added, left = score[(filled > mask)], score[filled == 0]
        if added.numel() and left.numel():
            assert added.min() >= left.max()


@pytest.mark.parametrize("budget", [-1, 31, 2.5, True])
def test_senseless_budgets_are_refused_with_the_valid_range(budget: object) -> None:
    with pytest.raises(BudgetError, match="0 to 30"):
        check_budget(budget, [10, 20], 0)  # type: ignore[arg-type]


def test_a_budget_below_one_is_a_share() -> None:
    assert check_budget(0.1, [10, 20], 0) == 3
    assert check_budget(7.0, [10, 20], 0) == 7


def test_a_budget_below_the_floors_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"valid: 9 to 34, because every one of 3 layers keeps at least 4"):
        check_budget(8, [10, 23, 1], 4)
    assert check_budget(9, [10, 23, 1], 4) == 9


@settings(max_examples=80, deadline=None)
@given(layers(), st.data())
def test_quotas_are_exact_per_layer_and_each_layer_keeps_its_best(case, data) -> None:
    scores, masks, _, _ = case
    quotas = [data.draw(st.integers(0, mask.numel())) for mask in masks]
    kept = keep_best(scores, masks, sum(quotas), 0.006, quotas=quotas)
    assert [int(mask.sum()) for mask in kept] == quotas
    for score, mask, new in zip(scores, masks, kept):
        adjusted, chosen = score.double() + 0.006 * mask, new.bool()
        if 0 < int(new.sum()) < new.numel():
            assert adjusted[chosen].min() >= adjusted[~chosen].max()


def test_quotas_that_do_not_fit_are_refused() -> None:
    scores, masks = (
        [torch.zeros(3), torch.zeros(4)],
        [torch.ones(3, dtype=torch.uint8), torch.ones(4, dtype=torch.uint8)],
    )
    with pytest.raises(BudgetError, match="add up to 3 ReLUs; the budget is 5"):
        keep_best(scores, masks, 5, 0.0, quotas=[1, 2])
    with pytest.raises(BudgetError, match="give 0 up to its size"):
        keep_best(scores, masks, 5, 0.0, quotas=[5, 0])


@pytest.mark.parametrize("unit", ["channel", "layer"])
@settings(max_examples=60, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4), data=st.data())
def test_groups_are_kept_whole_best_first_while_they_fit(unit, shapes, data) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    scores = [torch.rand(shape, generator=generator) for shape in shapes]
    masks = [torch.ones(shape, dtype=torch.uint8) for shape in shapes]
    budget = data.draw(st.integers(0, sum(score.numel() for score in scores)))
    kept = keep_groups(scores, masks, budget, unit)
    groups = [  # (mean score, size, kept) of every group
        (float(score[rows].double().mean()), score[rows].numel(), new[rows])
        for score, new in zip(scores, kept)
        for rows in (range(len(score)) if unit == "channel" else [slice(None)])
    ]
    left = budget
    for _, size, new in sorted(groups, key=lambda group: -group[0]):
        whole = size <= left
        assert bool((new == int(whole)).all())
        left -= size if whole else 0
