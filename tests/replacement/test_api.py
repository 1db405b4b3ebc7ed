import copy
import json

import pytest
import torch
import torch.nn.functional as F

from autorep.errors import BudgetError, CheckpointError, ConfigError
from autorep.replacement import attach, replace_activations_
from tests.replacement.networks import SMALL_TOTAL, Everything, Small


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets() -> torch.Tensor:
    return torch.arange(8) % 4


def test_a_few_steps_in_a_users_own_loop(images, targets) -> None:
    model = Small()
    replacement = replace_activations_(model, images, budget=60)
    replacement.calibrate_(model, [images])
    with torch.no_grad():
        for aux in replacement.aux_parameters():
            aux.fill_(0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    counts = []
    for _ in range(12):
        loss = F.cross_entropy(model(images), targets) + replacement.penalty(weight=50.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replacement.step_hysteresis_()
        counts.append(replacement.count())
    assert counts[-1] < SMALL_TOTAL
    replacement.finalize_()
    assert replacement.count() == 60
    assert replacement.frozen
    assert replacement.step_hysteresis_() == 0
    assert not any(aux.requires_grad for aux in replacement.aux_parameters())


def test_penalty_value_and_gradient(images) -> None:
    replacement = replace_activations_(Small(), images, budget=100)
    value = replacement.penalty(weight=3.0)
    assert value.item() == pytest.approx(3.0 * (SMALL_TOTAL - 100) / SMALL_TOTAL)
    value.backward()
    for aux in replacement.aux_parameters():
        torch.testing.assert_close(aux.grad, F.softplus(aux.detach()) * 3.0 / SMALL_TOTAL)
    replacement.step_exact_(100)
    assert float(replacement.penalty(weight=3.0)) == 0.0


def test_step_flips_by_hysteresis_and_counts_the_flips(images) -> None:
    replacement = replace_activations_(Small(), images)
    aux = replacement.sites["features.2"].aux
    with torch.no_grad():
        aux.reshape(-1)[:5] = -0.1
        aux.reshape(-1)[5:9] = -0.001
    assert replacement.step_hysteresis_() == 5
    assert replacement.step_hysteresis_() == 0
    assert replacement.count() == SMALL_TOTAL - 5


def test_floor_holds_in_every_kind_of_step(images) -> None:
    replacement = replace_activations_(Small(), images, floor=7)
    with torch.no_grad():
        for aux in replacement.aux_parameters():
            aux.fill_(-1.0)
    replacement.step_hysteresis_()
    assert [row["kept"] for row in replacement.table()] == [7, 7, 7]
    replacement.step_exact_(30)
    assert min(row["kept"] for row in replacement.table()) >= 7
    with pytest.raises(BudgetError, match="valid: 21 to"):
        replacement.step_exact_(20)


def test_table_and_totals(images) -> None:
    replacement = replace_activations_(Small(), images)
    assert replacement.total == SMALL_TOTAL == replacement.count()
    assert replacement.table()[0] == {
        "name": "features.2",
        "relus": 216,
        "kept": 216,
        "channels": 6,
        "shape": [6, 6, 6],
    }


@pytest.mark.parametrize("budget", [-1, SMALL_TOTAL + 1, 1.5])
def test_impossible_budgets_are_refused_before_anything_changes(images, budget) -> None:
    model = Small()
    with pytest.raises(BudgetError, match=f"0 to {SMALL_TOTAL}"):
        replace_activations_(model, images, budget=budget)
    assert type(model) is Small
    replacement = replace_activations_(model, images)
    with pytest.raises(BudgetError, match=f"0 to {SMALL_TOTAL}"):
        replacement.budget = budget
    with pytest.raises(BudgetError, match="no budget was given"):
        replacement.finalize_()


def test_finalising_polynomials_that_were_never_fitted_is_refused(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images, budget=50)
    with pytest.raises(ConfigError, match=r"features\.2.*calibrate_"):
        replacement.finalize_()
    assert not replacement.frozen
    assert replacement.count() == SMALL_TOTAL
    assert replace_activations_(Small(), images, budget=SMALL_TOTAL).finalize_() == 0  # nothing goes through them
    replacement.calibrate_(model, [images])
    replacement.finalize_()
    assert replacement.count() == 50


def test_final_masks_cannot_be_changed(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images, budget=50)
    replacement.calibrate_(model, [images])
    replacement.finalize_()
    with pytest.raises(BudgetError, match="final at 50"):
        replacement.step_exact_(40)
    with pytest.raises(BudgetError, match="final at 50"):
        replacement.finalize_(40)
    assert replacement.finalize_(50) == 0


def test_finalising_changes_as_few_masks_as_possible(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images, budget=50)
    replacement.calibrate_(model, [images])
    replacement.start_uniform_(torch.Generator().manual_seed(0))
    replacement.step_exact_(60)
    inside = {name: site.mask.clone() for name, site in replacement.sites.items()}
    replacement.start_uniform_(torch.Generator().manual_seed(1))
    assert replacement.finalize_() == 10
    assert all((site.mask <= inside[name]).all() for name, site in replacement.sites.items())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kinds", ("softmax",)),
        ("kinds", "relu"),
        ("degree", 0),
        ("granularity", "pixel"),
        ("surrogate", "step"),
        ("hysteresis", -0.1),
        ("floor", -1),
    ],
)
def test_wrong_settings_are_refused_by_name(images, option, value) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*valid"):
        replace_activations_(Small(), images, **{option: value})


def test_replacing_twice_points_to_attach(images) -> None:
    model = Small()
    replace_activations_(model, images)
    with pytest.raises(ConfigError, match="attach"):
        replace_activations_(model, images)
    with pytest.raises(CheckpointError, match="replace_activations_"):
        attach(Small())


def test_saved_as_state_dict_and_description_it_loads_strictly() -> None:
    images = torch.randn(2, 3, 8, 8)
    model = Everything().eval()
    chosen = replace_activations_(model, images, 100, degree=1, surrogate="sigmoid", select=lambda n: "blocks" not in n)
    chosen.calibrate_(model, [images])
    chosen.start_uniform_()
    chosen.finalize_()
    description = json.loads(json.dumps(chosen.describe()))
    fresh = Everything().eval()
    again = replace_activations_(fresh, images, **description)
    assert not again.frozen
    fresh.load_state_dict(model.state_dict(), strict=True)
    assert again.frozen
    assert not any(aux.requires_grad for aux in again.aux_parameters())
    assert again.describe() == chosen.describe()
    assert again.count() == 100
    assert torch.equal(fresh(images), model(images))


def test_a_copy_is_independent_and_attachable(images) -> None:
    model = Everything().eval()
    images = torch.randn(2, 3, 8, 8)
    replacement = replace_activations_(model, images, budget=10)
    replacement.calibrate_(model, [images])
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images), model(images))
    handle = attach(twin)
    handle.finalize_()
    assert handle.count() == 10
    assert replacement.count() == replacement.total
    assert not torch.equal(twin(images), model(images))
    handle.budget = 12
    assert replacement.budget == 10


def test_ranks_of_scores_start_aux(images) -> None:
    replacement = replace_activations_(Small(), images)
    scores = {name: torch.rand(site.mask.shape) for name, site in replacement.sites.items()}
    replacement.start_from_(scores)
    flat = torch.cat([scores[name].reshape(-1) for name in replacement.sites])
    aux = torch.cat([a.detach().reshape(-1) for a in replacement.aux_parameters()])
    assert torch.equal(flat.argsort(), aux.argsort())
    assert float(aux.max()) == pytest.approx(1.0)
    replacement.step_exact_(40)
    kept = torch.cat([site.mask.reshape(-1) for site in replacement.sites.values()]).bool()
    assert flat[kept].min() > flat[~kept].max()
    with pytest.raises(ConfigError, match="no scores for"):
        replacement.start_from_({})


def test_range_penalty_is_a_mean_over_polynomial_inputs(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images])
    with pytest.raises(ConfigError, match="track_range"):
        replacement.range_penalty()
    replacement.step_exact_(0)
    replacement.track_range(0.5)
    seen: list[torch.Tensor] = []
    for site in replacement.sites.values():
        site.register_forward_pre_hook(
            lambda site, args: seen.append(
                (args[0].detach().transpose(0, 1).flatten(1) - site.mean[:, None]) / site.std[:, None]
            )
        )
    model.train()(images)
    penalty = replacement.range_penalty()
    distances = torch.cat([z.reshape(-1) for z in seen])
    torch.testing.assert_close(penalty.detach(), F.relu(distances.abs() - 0.5).square().mean())
    penalty.backward()
    assert float(model.features[0].weight.grad.abs().sum()) > 0
    with pytest.raises(ConfigError, match="training forward"):
        replacement.range_penalty()


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_gradients(images, targets) -> None:
    model = Small().eval()
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images])
    replacement.step_exact_(150)
    F.cross_entropy(model(images), targets).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    F.cross_entropy(compiled(images), targets).backward()
    for parameter, gradient in zip(model.parameters(), want):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    assert attach(compiled).count() == 150
