import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep import models
from autorep.errors import ConfigError, TraceError
from autorep.replacement import ActivationSite, MaskedActivation, count_relus, replace_activations_
from tests.replacement.networks import EVERYTHING, Branching, Everything

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def test_every_way_to_call_an_activation_is_a_site_of_its_own() -> None:
    found = count_relus(Everything(), IMAGE)
    assert {site["name"]: site["relus"] for site in found["sites"]} == EVERYTHING
    assert [site["name"] for site in found["sites"]] == list(EVERYTHING)
    assert found["total"] == sum(EVERYTHING.values())


def test_counting_leaves_the_model_alone() -> None:
    model = Everything()
    before = [(name, type(module), id(module)) for name, module in model.named_modules(remove_duplicate=False)]
    count_relus(model, IMAGE)
    assert before == [(n, type(m), id(m)) for n, m in model.named_modules(remove_duplicate=False)]
    assert model.training


def test_a_replaced_model_still_counts_the_same() -> None:
    model = Everything()
    before = count_relus(model, IMAGE)
    replace_activations_(model, IMAGE).step_exact_(5)
    assert count_relus(model, IMAGE) == before


def test_replaced_model_computes_the_same_and_keeps_its_parameters() -> None:
    model = Everything().eval()
    original = copy.deepcopy(model)
    replacement = replace_activations_(model, IMAGE)
    assert list(replacement.sites) == list(EVERYTHING)
    assert all(model.get_submodule(name) is site for name, site in replacement.sites.items())
    torch.testing.assert_close(model(IMAGE), original(IMAGE))
    assert isinstance(model, Everything)
    assert not any(isinstance(m, nn.ReLU) for name, m in model.named_modules() if not name.startswith("twice"))
    own = dict(model.named_parameters())
    assert all(torch.equal(own[name], value) for name, value in original.named_parameters())


def test_no_activation_escapes_the_masks() -> None:
    """With identity polynomials everywhere the whole network is linear."""
    model = Everything().eval()
    replacement = replace_activations_(model, IMAGE)
    for site in replacement.sites.values():
        site.mask.zero_()
        with torch.no_grad():
            site.coefficients.copy_(torch.tensor([[0.0], [1.0], [-40.0]]))
    a, b = model(IMAGE[:1]), model(IMAGE[1:])
    torch.testing.assert_close(model((IMAGE[:1] + IMAGE[1:]) / 2), (a + b) / 2, rtol=1e-4, atol=1e-4)


def test_rewritten_forwards_still_read_the_training_mode() -> None:
    model = Everything()
    replace_activations_(model, IMAGE)
    model.train()
    assert not torch.equal(model(IMAGE), model(IMAGE))  # dropout draws anew
    model.eval()
    assert torch.equal(model(IMAGE), model(IMAGE))


def test_hooks_on_inner_modules_still_fire() -> None:
    model = Everything().eval()
    replace_activations_(model, IMAGE)
    seen: list[tuple[int, ...]] = []
    model.blocks[1].register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    model(IMAGE)
    assert seen == [(2, 4, 8, 8)]


def test_select_keeps_the_other_activations() -> None:
    model = Everything().eval()
    original = copy.deepcopy(model)
    replacement = replace_activations_(model, IMAGE, select=lambda name: name.endswith("_2"))
    assert list(replacement.sites) == ["blocks.0.relu_2", "blocks.1.relu_2", "twice_relu_2", "relu_2"]
    torch.testing.assert_close(model(IMAGE), original(IMAGE))
    for site in replacement.sites.values():
        site.mask.zero_()
    assert not torch.allclose(model(IMAGE), original(IMAGE))


def test_silu_sites_become_relu_sites() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU(inplace=True), nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
    assert count_relus(model, IMAGE)["total"] == 256
    replacement = replace_activations_(model, IMAGE, kinds=("relu", "silu"))
    assert [site.activation for site in replacement.sites.values()] == ["relu", "relu"]
    torch.testing.assert_close(model[1](IMAGE[:, :1].repeat(1, 4, 1, 1)), torch.relu(IMAGE[:, :1].repeat(1, 4, 1, 1)))


def test_an_in_place_activation_whose_input_is_read_again() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            return self.relu(y) + y  # y was overwritten: 2·relu(2x)

    model = Overwrites()
    want = model(IMAGE)
    replace_activations_(model, IMAGE)
    torch.testing.assert_close(model(IMAGE), want)


def test_an_untraceable_place_is_named_with_the_ways_out() -> None:
    with pytest.raises(TraceError, match=r"'gate' \(Gate\).*networks.py:\d+: `if x.sum\(\) > 0:`.*ActivationSite"):
        replace_activations_(Branching(), torch.randn(1, 1, 5, 5))


def test_a_filter_leaves_an_untraceable_module_alone() -> None:
    model, x = Branching().eval(), torch.randn(1, 1, 5, 5)
    want = model(x)
    replacement = replace_activations_(model, x, select=lambda name: not name.startswith("gate"))
    assert list(replacement.sites) == ["relu"]
    torch.testing.assert_close(model(x), want)


class Marked(nn.Module):
    """Untraceable, with sites placed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ActivationSite("relu"), ActivationSite("relu6")

    def forward(self, x: Tensor, again: bool = False) -> Tensor:
        x = self.second(self.first(x) * (2 if x.sum() > 0 else 3))
        return self.second(x) if again else x


def test_sites_placed_by_hand_need_no_tracing() -> None:
    model, x = Marked(), torch.randn(2, 5)
    want = model(x)
    replacement = replace_activations_(model, x)
    assert {name: site.activation for name, site in replacement.sites.items()} == {"first": "relu", "second": "relu6"}
    torch.testing.assert_close(model(x), want)


def test_a_site_placed_by_hand_and_called_twice_is_refused() -> None:
    class Twice(Marked):
        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            return super().forward(x, again)

    with pytest.raises(TraceError, match="'second' was called 2 times"):
        replace_activations_(Twice(), torch.randn(2, 5))
    with pytest.raises(ConfigError, match="valid: relu, relu6, .*, mish"):
        ActivationSite("softmax")


def test_a_failed_replacement_leaves_the_model_as_it_was() -> None:
    model = Branching()
    with pytest.raises(TraceError):
        replace_activations_(model, torch.randn(1, 1, 5, 5))
    assert type(model) is Branching
    assert not any(isinstance(module, MaskedActivation) for module in model.modules())


def test_a_model_without_activations_is_refused() -> None:
    with pytest.raises(TraceError, match="no activation of kind relu, relu6"):
        replace_activations_(nn.Sequential(nn.Linear(3, 3)), torch.randn(1, 3))


def test_optional_arguments_keep_the_meaning_they_had() -> None:
    class Optional(nn.Module):
        def forward(self, x: Tensor, scale: Tensor | None = None, power: int = 2) -> Tensor:
            y = F.relu(x) ** power
            return y if scale is None else y * scale

    model, x = Optional(), torch.randn(2, 5)
    replace_activations_(model, x)
    torch.testing.assert_close(model(x), torch.relu(x) ** 2)


@pytest.mark.parametrize(
    ("name", "size", "kinds", "total"),
    [
        ("resnet18", 32, ("relu",), 491_520),
        ("wide_resnet22_8", 32, ("relu",), 1_359_872),
        ("resnet20", 32, ("relu",), 188_416),
        ("efficientnet_b2", 224, ("relu", "silu"), 8_804_162),
    ],
)
def test_published_totals_come_out_exactly(name: str, size: int, kinds: tuple[str, ...], total: int) -> None:
    assert count_relus(models.create(name), torch.zeros(1, 3, size, size), kinds)["total"] == total
