import pytest
import torch
import torch.nn.functional as F

from autorep.errors import DataError
from autorep.replacement import replace_activations_
from autorep.replacement.dapa import dapa
from tests.replacement.networks import Small


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(2))


def inputs_at(model, replacement, images) -> dict[str, torch.Tensor]:
    """What reaches every site, in evaluation mode."""
    seen: dict[str, torch.Tensor] = {}
    handles = [
        site.register_forward_pre_hook(lambda module, args, name=name: seen.update({name: args[0].detach()}))
        for name, site in replacement.sites.items()
    ]
    with torch.no_grad():
        model.eval()(images)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_calibration_is_exact_over_uneven_batches_and_sets_dapa(images, granularity) -> None:
    model = Small().train()
    replacement = replace_activations_(model, images, granularity=granularity)
    replacement.calibrate_(model, [images[:5], (images[5:6], None), [images[6:]]])
    assert model.training
    for name, z in inputs_at(model, replacement, images).items():
        site = replacement.sites[name]
        columns = z.transpose(0, 1).flatten(1) if granularity == "channel" else z.reshape(1, -1)
        torch.testing.assert_close(site.mean, columns.mean(1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(site.std, columns.std(1, correction=0).clamp_min(1e-3), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(site.hermite().double(), dapa(site.mean, site.std, 2), rtol=1e-4, atol=1e-6)


def test_calibrating_on_nothing_is_refused(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images)
    with pytest.raises(DataError, match="saw no input at features.2"):
        replacement.calibrate_(model, [])
    with pytest.raises(DataError, match="no batch"):
        replacement.sensitivity_(model, [], F.cross_entropy)


def test_refresh_takes_the_running_moments(images) -> None:
    model = Small().train()
    replacement = replace_activations_(model, images)
    replacement.tracking = True
    model(images)
    model(images)
    replacement.tracking = False
    replacement.refresh_coefficients_()
    site = replacement.sites["features.2"]
    # Batch norm in training mode gives zero mean and unit deviation.
    torch.testing.assert_close(site.mean, torch.zeros(6), rtol=0, atol=1e-4)
    torch.testing.assert_close(site.std, torch.ones(6), rtol=0, atol=1e-2)


def test_sensitivity_is_the_loss_change_of_one_element_to_first_order(images) -> None:
    model = Small().eval().double()
    images, targets = images.double(), torch.arange(12) % 4
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images])
    replacement.step_exact_(200)
    scores = replacement.sensitivity_(model, [(images[:7], targets[:7]), (images[7:], targets[7:])], F.cross_entropy)
    assert all(parameter.grad is None for parameter in model.parameters())
    site = replacement.sites["features.5"]
    z = inputs_at(model, replacement, images)["features.5"]
    step = 1e-6
    for element in [(0, 0, 0), (3, 1, 2), (7, 2, 2)]:
        change = (site.keep(z) - site.poly(z))[(slice(None), *element)].detach()
        slopes = []
        for image in range(12):
            losses = []
            for sign in (1, -1):
                shift = torch.zeros(1, 8, 3, 3, dtype=torch.float64)
                shift[(0, *element)] = sign * step
                handle = site.register_forward_hook(lambda module, args, output, shift=shift: output + shift)
                losses.append(F.cross_entropy(model(images[image : image + 1]), targets[image : image + 1]).item())
                handle.remove()
            slopes.append((losses[0] - losses[1]) / (2 * step))
        want = ((change * torch.tensor(slopes)) ** 2).mean().sqrt()
        torch.testing.assert_close(scores["features.5"][element], want, rtol=1e-3, atol=1e-9)


def test_sensitivity_works_on_frozen_weights(images) -> None:
    model = Small()
    replacement = replace_activations_(model, images)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    scores = replacement.sensitivity_(model, [(images, torch.zeros(12, dtype=torch.int64))], F.cross_entropy)
    assert all(float(score.sum()) > 0 for score in scores.values())


def test_the_mean_sensitivity_is_the_derivative_of_the_loss_by_each_mask(images) -> None:
    """SNIP's score: |dL/dm| where m mixes activation and polynomial, found here by a finite difference."""
    model = Small().double().eval()
    images, targets = images.double(), torch.arange(12) % 3
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images])
    scores = replacement.sensitivity_(model, [(images, targets)], F.cross_entropy, moment="mean")
    for site in replacement.sites.values():
        site.soft = True
        torch.nn.init.ones_(site.aux)
    for name, site in replacement.sites.items():
        element = tuple(size // 2 for size in site.aux.shape)
        losses = []
        for gate in (1.01, 0.99, 1.0):
            site.aux.data[element] = gate
            losses.append(float(F.cross_entropy(model(images), targets).detach()))
        assert float(scores[name][element]) == pytest.approx(abs(losses[0] - losses[1]) / 0.02, rel=1e-3, abs=1e-7)
