"""The methods of other papers: each one's own rule, what all of them promise, and a planted choice they must find."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from autorep import models
from autorep.compiler.compile import compile_program
from autorep.errors import BudgetError, ConfigError
from autorep.program.ir import Activation, Affine
from autorep.replacement import Replacement, count_relus, replace_activations_
from autorep.replacement.averaging import WeightAverage
from autorep.replacement.functions import FUNCTIONS
from autorep.replacement.prices import Prices
from autorep.replacement.selection import SELECTIONS, Context
from autorep.replacement.selection.bcd import first_harmless
from autorep.replacement.selection.deepreduce import layers_within
from autorep.replacement.selection.delphi import Delphi, fade, greedy, score
from autorep.replacement.selection.l1 import filters
from autorep.replacement.selection.pillar import power, wall
from autorep.replacement.selection.scores import shares, task_loss
from autorep.replacement.selection.senet import mismatch
from autorep.replacement.selection.snl import Snl
from autorep.replacement.selection.taylor import taylor_scores
from autorep.replacement.settings import CourseSettings, SnlSettings
from autorep.training.saved import load_model, save_model

from . import networks
from .networks import SMALL_TOTAL, Small

STEPS = 12
QUICK = {"aux_rate": 0.3, "freeze_at": 0.75, "warmup": 0.0, "stress_weight": 0.0}


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = Small()
    x, y = torch.randn(24, 1, 6, 6), torch.arange(24) % 4
    for _ in range(3):  # running statistics of batch norm
        model(x)
    return model, x, y


WITHOUT_RELUS = ("all", "pillar")
WHOLE = ("safenet", "l1", "deepreduce", "delphi", *WITHOUT_RELUS)  # channels, layers, or nothing at all


def of(method: str, function: str = "dapa2", **more: object) -> CourseSettings:
    extra = {"snl": SnlSettings(weight=0.1)} if method == "snl" else {}
    return CourseSettings(method=method, function=function, **{**QUICK, **extra, **more})


def budget_of(method: str) -> int:
    return 0 if method in WITHOUT_RELUS else 80


def begun(settings: CourseSettings, budget: int = 60) -> tuple[nn.Module, Replacement, Tensor, Tensor]:
    model, x, y = small()
    chosen = FUNCTIONS[settings.function]
    handle = replace_activations_(model, x[:1], budget, degree=chosen.degree, polynomial=chosen.polynomial)
    handle.begin(model, [(x, y)], STEPS, settings=settings, epoch_steps=3, prices=lambda: a_second_each(handle, budget))
    return model, handle, x, y


def a_second_each(handle: Replacement, seconds: int) -> Prices:
    """Every ReLU costs a second, nothing else does."""
    free, one = dict.fromkeys(handle.sites, 0.0), dict.fromkeys(handle.sites, 1.0)
    return Prices(seconds, 0.0, one, free, lambda counts, lines: float(sum(counts.values())))


def train(model: nn.Module, handle: Replacement, x: Tensor, y: Tensor, steps: range) -> None:
    model.train()
    for _ in steps:
        loss = F.cross_entropy(model(x), y) + handle.loss()
        loss.backward()
        with torch.no_grad():
            for weight in handle.weights():
                weight -= 0.01 * weight.grad
                weight.grad = None
        handle.step()


def context(handle: Replacement, model: nn.Module, x: Tensor, y: Tensor, budget: int = 60) -> Context:
    handle.calibrate_(model, [x])
    draw = lambda *key: torch.Generator().manual_seed(hash(key) % 2**31)  # noqa: E731
    return Context(model, handle, budget, 10, 5, 1.0, lambda: [(x, y)], lambda: -1.0, None, draw)


OWN_FUNCTIONS = {"all": "herpn", "pillar": "pillar4"}  # what a method replaces by in its own paper, tried here
TO_THE_END = ("penalty", *WITHOUT_RELUS)  # nothing is final before the last step


def finished(method: str) -> CourseSettings:
    own = OWN_FUNCTIONS.get(method, "dapa2")
    fixed = {"coefficient_rate": 0.0} if method == "pillar" else {}
    return of(method, own, freeze_at=1.0, **fixed) if method in TO_THE_END else of(method, own)


def settle(handle: Replacement, budget: int) -> None:
    """The paper's rule ends where it ends; the others at their own count, by themselves."""
    if not handle.frozen:
        assert handle.course.settings.method in TO_THE_END
        handle.settle_(budget)


def saved_and_loaded(model: nn.Module, place: Path) -> nn.Module:
    facts = {"model": f"{networks.__file__}:Small", "num_classes": 4, "input_shape": [1, 6, 6], "data": "noise"}
    save_model(place / "model", model, {**facts, "classes": list("abcd"), "mean": [0.0], "std": [1.0]})
    return load_model(place / "model").model


@pytest.mark.parametrize("method", SELECTIONS)
def test_a_course_keeps_the_budget_resumes_bit_for_bit_saves_compiles_and_runs_privately(method, tmp_path):
    budget, cut = budget_of(method), 5
    model, handle, x, y = begun(finished(method), budget)
    train(model, handle, x, y, range(cut))
    course = handle.course
    stored, state = copy.deepcopy(model.state_dict()), dict(course.selection.state)
    optimizers = {name: copy.deepcopy(one.state_dict()) for name, one in course.optimizers.items()}
    averaged = course.average and (copy.deepcopy(course.average.state), course.average.count)
    train(model, handle, x, y, range(cut, STEPS))
    settle(handle, budget)

    again, second, _, _ = begun(finished(method), budget)
    again.load_state_dict(stored)
    average = None
    if averaged is not None:
        average = WeightAverage(again, course.settings.average)
        average.state, average.count = averaged
    second.course.resume_(cut, state, average)
    for name, one in second.course.optimizers.items():
        one.load_state_dict(optimizers[name])
    train(again, second, x, y, range(cut, STEPS))
    settle(second, budget)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    if method in WHOLE and budget:
        assert 0 < handle.count() <= budget
    else:
        assert handle.count() == budget
    loaded = saved_and_loaded(again.eval(), tmp_path)
    assert torch.equal(loaded(x), again(x))
    program = compile_program(loaded, [x])
    assert program.relu_count == handle.count()
    image = x[:1].numpy()
    logits = again(x[:1]).detach().numpy()
    assert np.abs(program.run(image, "secure") - logits).max() < 0.02 * max(1.0, np.abs(logits).max())


@pytest.mark.parametrize("function", ["identity", "zero", "square", "delphi", "herpn", "pillar2"])
@pytest.mark.parametrize("method", SELECTIONS)
def test_any_function_with_any_selection(method, function):
    if (method, function) == ("latency", "herpn"):
        with pytest.raises(ConfigError, match="no straight form"):
            begun(of(method, function), 80)
        return
    model, handle, x, y = begun(of(method, function, freeze_at=1.0, range_weight=0.0), budget_of(method))
    train(model, handle, x, y, range(3))
    assert model(x).isfinite().all()


def test_layers_that_latency_makes_lines_get_no_relu_back():
    model, x, y = small()
    handle = replace_activations_(model, x[:1], 60)
    names = list(handle.sites)
    free, line = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0) | {names[0]: 1.0}
    rounds = Prices(1.5, 2.0, free, line, lambda counts, lines: 2.0 - (names[0] in lines))  # only a line is in time
    chosen = CourseSettings(method="latency", aux_rate=0.5)  # elements soon overtake each other
    handle.begin(model, [(x, y)], STEPS, settings=chosen, epoch_steps=3, prices=lambda: rounds)
    train(model, handle, x, y, range(STEPS))
    assert handle.frozen
    assert not handle.sites[names[0]].mask.any()
    assert all(handle.sites[name].mask.all() for name in names[1:])


class Planted(nn.Module):
    """Inputs of the ReLU turn negative in S alone, so that relu is the identity everywhere else."""

    def __init__(self, elements: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.relu = nn.ReLU()
        self.head = nn.Linear(elements, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(x))


@pytest.mark.parametrize("method", ["ramp", "snl", "snip", "taylor"])
def test_a_planted_choice_is_found(method):
    model = Planted()
    torch.manual_seed(1)
    where = torch.randperm(24)[:6].sort().values
    x = torch.rand(256, 24) + 0.5
    x[:, where] = torch.randn(256, 6) * 2
    with torch.no_grad():
        y = model(x).argmax(1)  # labels that need the ReLUs in S
    handle = replace_activations_(model, x[:1], budget=6, degree=1)
    chosen = of(
        method,
        "identity",
        coefficient_rate=0.0,
        range_weight=0.0,
        input_limit=0.0,
        snl=SnlSettings(weight=1e-3, settle=0.0),
        aux_rate=0.02,
        freeze_at=1.0,
        average=0.0,
    )
    steps = 150 if method == "snl" else 10
    handle.begin(model, [(x, y)], steps, settings=chosen, epoch_steps=5)
    teacher = copy.deepcopy(Planted()).eval()
    model.train()
    for _ in range(steps - 1):
        distance = (model(x) - teacher(x).detach()).square().mean() + handle.loss()
        distance.backward()
        handle.step()
        model.zero_grad()
    handle.settle_(6)
    assert handle.sites["relu"].kept_index().tolist() == where.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_shares_add_up_and_stay_within_their_limits(layers, part):
    limits, weights = [limit for limit, _ in layers], [weight for _, weight in layers]
    total = int(part * sum(limits))
    counts = shares(total, weights, limits)
    assert sum(counts) == total
    assert all(0 <= count <= limit for count, limit in zip(counts, limits))


def test_shares_go_to_the_largest_remainders_and_overflow_in_proportion():
    assert shares(10, [1, 1, 1], [100, 100, 100]) == [4, 3, 3]
    assert shares(7, [50, 30, 20], [50, 30, 20]) == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert shares(10, [8, 1, 1], [4, 100, 100]) == [4, 3, 3]
    with pytest.raises(BudgetError, match="cannot be shared"):
        shares(11, [1], [10])


def test_random_and_uniform_keep_exactly_the_budget():
    _, handle, _, _ = begun(of("random"), 61)
    assert handle.count() == 61
    _, other, _, _ = begun(of("uniform"), 61)
    kept = [row["kept"] for row in other.table()]
    assert kept == shares(61, [216, 72, 10], [216, 72, 10])


def plain_sensitivity(model: nn.Module, handle: Replacement, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The loss with one element's mask moved a little, minus the loss before, over the move; float64, one by one."""
    found = {}
    with torch.no_grad():
        for name, site in handle.sites.items():
            slopes = torch.zeros(site.mask.numel(), dtype=torch.float64)
            for i in range(min(site.mask.numel(), 12)):
                ends = []
                for move in (-1e-4, 1e-4):
                    site.soft = True
                    site.aux.fill_(1.0)
                    site.aux.reshape(-1)[i] += move
                    ends.append(float(task_loss(model(x), y)))
                    site.soft = False
                slopes[i] = (ends[1] - ends[0]) / 2e-4
            found[name] = slopes.reshape(site.mask.shape)
    return found


def test_the_scores_of_snip_and_taylor_are_finite_differences():
    model, x, y = small()
    model, x = model.double().eval(), x[:6].double()
    y = y[:6]
    handle = replace_activations_(model, x[:1], budget=60)
    for site in handle.sites.values():
        site.double()
    ctx = context(handle, model, x, y)
    together = plain_sensitivity(model, handle, x, y)
    single = [plain_sensitivity(model, handle, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    snip = handle.sensitivity_(model, [(x, y)], task_loss, "mean")
    taylor = taylor_scores(ctx)
    for name, exact in together.items():
        at = slice(0, min(exact.numel(), 12))
        torch.testing.assert_close(snip[name].reshape(-1)[at], exact.abs().reshape(-1)[at], rtol=1e-3, atol=1e-7)
        images = torch.stack([one[name].reshape(-1)[at] for one in single])
        expected = images.abs().mean(0) + 0.5 * images.square().mean(0)
        torch.testing.assert_close(taylor[name].reshape(-1)[at], expected, rtol=1e-3, atol=1e-7)


def test_snl_raises_its_weight_only_when_the_count_is_no_new_low():
    method = Snl(SnlSettings(weight=1.0))
    method.state = {"weight": 1.0, "lowest": 100.0}
    seen = []
    for count, due, settling in [
        (100, 90, True),
        (90, 99, False),
        (90, 98, False),
        (95, 97, False),
        (80, 70, False),  # late
        (80, 81, False),
        (50, 60, False),
        (60, 50, False),
    ]:
        method.adjust_(count, 50, due, settling)
        seen.append(method.state["weight"])
    assert seen == pytest.approx([1.0, 1.0, 1.1, 1.21, 2.42, 2.662, 0.0, 0.0])


def test_snl_comes_to_its_budget_with_its_settings_as_they_are():
    model, x, y = small()
    handle = replace_activations_(model, x[:1], 60, degree=1)
    handle.begin(model, [(x, y)], 120, settings=CourseSettings(method="snl", function="identity"))
    train(model, handle, x, y, range(120))
    assert handle.frozen
    assert handle.count() == 60


@pytest.mark.parametrize("method", [name for name in SELECTIONS if name not in ("penalty", "snl")])
def test_every_layer_keeps_its_floor_or_the_method_says_that_it_cannot(method):
    model, x, y = small()
    handle = replace_activations_(model, x[:1], budget_of(method), floor=9 if budget_of(method) else 0)
    if method in WITHOUT_RELUS:
        return
    if method in WHOLE:
        with pytest.raises(ConfigError, match="whole channels or layers"):
            handle.begin(model, [(x, y)], STEPS, settings=of(method), epoch_steps=3)
        return
    priced = lambda: a_second_each(handle, 80)  # noqa: E731
    handle.begin(model, [(x, y)], STEPS, settings=of(method), epoch_steps=3, prices=priced)
    train(model, handle, x, y, range(STEPS))
    assert min(row["kept"] for row in handle.table()) >= 9
    assert handle.count() == 80


def test_all_refuses_a_budget():
    with pytest.raises(BudgetError, match="give budget = 0"):
        begun(of("all"), 10)


def test_pillars_wall_is_the_mean_power_and_rises_over_four_epochs():
    z = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    by_hand = sum((abs(v) / 4.8) ** 6 for v in (1.0, 2.0, 3.0, 0.5)) / 4
    assert float(wall(z, 4.8, 6)) == pytest.approx(by_hand, rel=1e-5)
    assert [power(epoch) for epoch in range(6)] == [4, 6, 8, 10, 10, 10]


def test_pillar_cuts_inputs_off_in_training_and_adds_its_wall_to_the_loss():
    model, handle, x, y = begun(of("pillar", "pillar2", freeze_at=1.0, range_weight=0.0), 0)
    model.train()
    site, seen = handle.sites["features.2"], {}
    site.register_forward_pre_hook(lambda module, args: seen.update(z=args[0]))
    model(20 * x)
    assert float(seen["z"].detach().abs().max()) <= 5.0
    assert float(handle.loss().detach()) > 0
    model.eval()
    with torch.no_grad():
        site.running = model.features[:2](20 * x)
        model(20 * x)
    assert torch.equal(seen["z"], site.running)  # nothing is cut off


def test_snl_trains_its_gates_under_an_l1_norm():
    model, handle, x, y = begun(of("snl"))
    model.train()
    (0.0 * model(x).sum() + handle.course.selection.penalty(handle.course.ctx)).backward()
    for site in handle.sites.values():
        torch.testing.assert_close(site.aux.grad, torch.full_like(site.aux, 0.1))


@pytest.mark.parametrize(("weight", "opens"), [(1.0, True), (0.0, False)])
def test_snl_lets_no_gate_open_again_once_it_has_come_to_its_budget(weight, opens):
    _, handle, _, _ = begun(of("snl"))
    method, ctx = handle.course.selection, handle.course.ctx
    method.state["weight"] = weight
    first = next(iter(handle.sites.values()))
    with torch.no_grad():
        first.mask.zero_()
        first.aux.fill_(0.5)
    method.follow_(ctx, 0)
    assert bool(first.mask.any()) is opens
    assert bool(first.aux.any()) is opens


def test_senet_mismatch_is_what_relu_and_polynomial_differ_by():
    model, x, y = small()
    handle = replace_activations_(model, x[:1], budget=60)
    ctx = context(handle, model, x, y)
    inputs = {}
    first = handle.sites["features.2"]
    hook = first.register_forward_pre_hook(lambda module, args: inputs.update(z=args[0]))
    model.eval()(x)
    hook.remove()
    expected = (F.relu(inputs["z"]) - first.poly(inputs["z"])).abs().sum(0).double().detach()
    torch.testing.assert_close(mismatch(ctx)["features.2"], expected, rtol=1e-4, atol=1e-5)


def test_senet_quotas_stay_when_elements_move():
    model, handle, x, y = begun(of("senet"))
    before = [row["kept"] for row in handle.table()]
    assert sum(before) == 60
    masks = {name: site.mask.clone() for name, site in handle.sites.items()}
    train(model, handle, x, y, range(4))
    assert [row["kept"] for row in handle.table()] == before
    assert any((site.mask != masks[name]).any() for name, site in handle.sites.items())


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0, 10))
@settings(max_examples=60, deadline=None)
def test_bcd_takes_the_first_harmless_block_or_the_least_harmful(costs, tolerance):
    chosen = first_harmless(range(len(costs)), costs.__getitem__, tolerance)
    harmless = [i for i, cost in enumerate(costs) if cost < tolerance]
    assert chosen == (harmless[0] if harmless else costs.index(min(costs)))


def test_bcd_by_additive_damage_ends_at_the_greedy_optimum():
    worth = [5.0, 1.0, 4.0, 2.0, 3.0]
    kept = set(range(5))
    while len(kept) > 2:
        kept.remove(first_harmless(sorted(kept), lambda element: worth[element], 0.0))
    assert kept == {0, 2}


def resnet18_layers() -> dict[str, int]:
    with torch.device("meta"):
        model = models.create("resnet18", 10)
    counted = count_relus(model.to_empty(device="cpu"), torch.zeros(1, 3, 32, 32))
    return {site["name"]: site["relus"] for site in counted["sites"]}


@pytest.mark.parametrize(
    ("order", "budget", "count"),
    [
        (("layer1", "layer4", "layer2", "layer3"), 229_400, 229_376),
        (("layer1", "layer4", "layer2", "layer3"), 197_000, 196_608),
        (("layer1", "layer4", "layer2", "layer3"), 115_000, 114_688),
        (("layer1", "layer4", "layer2", "layer3"), 98_500, 98_304),
    ],
)
def test_deepreduce_comes_to_the_published_counts(order, budget, count):
    layers = resnet18_layers()
    assert sum(layers[name] for name in layers_within(layers, order, budget)) == count


@pytest.mark.parametrize(
    ("options", "culled", "count"),
    [
        ({"width": 0.5}, ("layer1",), 57_344),
        ({"width": 0.5}, ("layer1", "layer4"), 49_152),
        ({"width": 0.5, "stem_stride": 2}, ("layer1", "layer4"), 12_288),
    ],
)
def test_a_reshaped_and_thinned_resnet18_has_the_published_counts(options, culled, count):
    model = models.create("resnet18", 10, **options)
    counted = count_relus(model, torch.zeros(1, 3, 32, 32))
    layers = {site["name"]: site["relus"] for site in counted["sites"]}
    order = [*culled, *sorted({name.split(".")[0] for name in layers} - set(culled))]
    assert sum(layers[name] for name in layers_within(layers, order, count)) == count


def test_deepreduce_says_when_even_its_smallest_network_is_too_large():
    with pytest.raises(BudgetError, match="reshape the network"):
        layers_within({"layer1.0": 100, "layer1.1": 100}, ["layer1"], 99)


def test_delphi_scores_and_fades():
    assert score(0.8, 0, 10) == 0.8
    assert score(0.8, 10, 10) == 1.6
    assert [fade(step, 10) for step in (0, 5, 10)] == [1.0, 0.5, 0.0]
    worth = {"first": 0.0, "a": 0.3, "b": 0.1, "c": 0.2, "last": 0.0}
    layers = dict.fromkeys(worth, 10)
    kept = greedy(layers, 30, lambda kept: sum(worth[name] for name in kept))
    assert kept == ["first", "a", "last"]
    assert greedy(layers, 15, lambda kept: sum(worth[name] for name in kept)) in (["first"], ["last"])


def test_delphi_mixes_by_the_step():
    model, handle, x, y = begun(of("delphi", "delphi", freeze_at=1.0))
    method = handle.course.selection
    assert isinstance(method, Delphi)
    method.choose_(handle.course.ctx, STEPS // 2)
    replaced = [site for site in handle.sites.values() if not site.mask.any()]
    assert replaced
    z = torch.randn(2, *replaced[0].mask.shape)
    half = 0.5 * F.relu(z) + 0.5 * replaced[0].poly(z)
    torch.testing.assert_close(replaced[0].eval()(z), half)


@pytest.mark.parametrize("method", ["safenet", "l1"])
def test_channels_are_kept_whole(method):
    _, handle, _, _ = begun(of(method), 100)
    for site in handle.sites.values():
        kept = site.mask.reshape(site.channels, -1).float().mean(1)
        assert set(kept.tolist()) <= {0.0, 1.0}
    assert 60 < handle.count() <= 100


def test_l1_finds_the_layer_that_feeds_each_site():
    model, x, y = small()
    handle = replace_activations_(model, x[:1], budget=60)
    found = filters(context(handle, model, x, y))
    assert [layer.weight.shape[0] for layer in found.values()] == [6, 8, 10]
    assert len(handle.sites) == 3
    assert sum(site.mask.numel() for site in handle.sites.values()) == SMALL_TOTAL


def test_an_emptied_layer_of_the_identity_leaves_no_operation():
    model, x, _ = small()
    handle = replace_activations_(model, x[:1], budget=10, degree=1)
    handle.calibrate_(model, [x])
    for name, site in handle.sites.items():
        FUNCTIONS["identity"].apply_(site)
        if name.startswith("features"):
            site.mask.zero_()
    program = compile_program(model.eval(), [x])
    assert sum(isinstance(op, Activation) for op in program.ops) == 1
    assert not any(isinstance(op, Affine) for op in program.ops)
