"""Networks: ReLU totals, names of public checkpoints, loading by name."""

import pytest
import torch
import torch.fx
from safetensors.torch import save_file
from torch import nn

from autorep import models
from autorep.errors import CheckpointError, ConfigError
from autorep.models import own


def relus(model: nn.Module, channels: int, side: int) -> int:
    """Elements that pass through ReLU modules, counted with hooks on a meta-device forward."""
    counted = []
    model = model.to("meta").eval()
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.ReLU6 | nn.SiLU):
            module.register_forward_hook(lambda _, inputs, output: counted.append(output.numel()))
    model(torch.zeros(1, channels, side, side, device="meta"))
    return sum(counted)


@pytest.mark.parametrize(
    ("name", "side", "options", "expected"),
    [
        ("resnet18", 32, {}, 491_520),
        ("resnet18", 64, {}, 1_966_080),
        ("wide_resnet22_8", 32, {}, 1_359_872),
        ("wide_resnet22_8", 64, {}, 5_439_488),
        ("resnet20", 32, {}, 188_416),
        ("resnet32", 32, {}, 303_104),
        ("resnet56", 32, {}, 532_480),
        ("resnet110", 32, {}, 1_048_576),
        ("imagenet_resnet18", 224, {}, 2_308_096),
        ("imagenet_resnet34", 224, {}, 3_562_496),
        ("imagenet_resnet50", 224, {}, 9_608_704),
        ("efficientnet_b2", 224, {"activation": "relu"}, 8_804_162),
    ],
)
def test_relu_totals_are_the_published_ones(name, side, options, expected):
    assert relus(models.create(name, **options), 3, side) == expected


@pytest.mark.parametrize("name", models.names())
def test_every_network_is_traced_by_fx_and_gives_one_logit_per_class(name):
    entry = models.spec(name)
    model = models.create(name, 7).to("meta").eval()
    torch.fx.symbolic_trace(model)
    x = torch.zeros(2, entry.channels, entry.image_size, entry.image_size, device="meta")
    assert model(x).shape == (2, 7)


@pytest.mark.parametrize("name", models.names())
def test_the_table_names_the_stages_that_a_network_has(name):
    assert models.spec(name).stages == own.stages(models.create(name))


def test_options_are_part_of_a_name():
    model = models.create("resnet20@width=0.5,stem_stride=2", 7)
    assert model.conv1.weight.shape[0] == 8
    assert model.conv1.stride == (2, 2)
    assert models.title("resnet20@width=0.5,stem_stride=2") == "ResNet-20, width 0.5, stem stride 2"
    assert models.spec("digits_net@channels=3").channels == 3
    with pytest.raises(ConfigError, match="OPTION=NUMBER"):
        models.create("resnet20@width=half")
    with pytest.raises(ConfigError, match="does not take these options"):
        models.create("resnet20@wdth=0.5")


@pytest.mark.parametrize("budget", [5652, 18_842, 50_000, 100_000])
def test_a_balanced_network_has_its_budget_in_equal_parts(budget):
    model = models.create(f"balanced@relus={budget}", 10, 32)
    counted = relus(model, 3, 32)
    assert 0.8 * budget < counted <= budget
    stages = [3 * stage[0].conv1.weight.shape[0] for stage in (model.layer1, model.layer2, model.layer3)]
    assert stages[1] >= 4 * stages[0]
    assert stages[2] >= 4 * stages[1]


def test_a_balanced_network_says_how_small_it_can_be():
    with pytest.raises(ConfigError, match="the smallest such network has 2304"):
        models.create("balanced@relus=2000", 10, 32)


def test_parameter_names_are_those_of_public_checkpoints():
    resnet = models.create("resnet20", 10).state_dict()
    assert resnet["layer2.0.downsample.0.weight"].shape == (32, 16, 1, 1)
    assert resnet["layer3.2.bn2.running_var"].shape == (64,)
    with torch.device("meta"):
        efficient = models.create("efficientnet_b2").state_dict()
        lite = models.create("efficientnet_lite0").state_dict()
    assert efficient["features.1.0.block.1.fc1.weight"].shape == (8, 32, 1, 1)
    assert efficient["features.2.0.block.0.0.weight"].shape == (96, 16, 1, 1)
    assert efficient["features.8.0.weight"].shape == (1408, 352, 1, 1)
    assert efficient["classifier.1.weight"].shape == (1000, 1408)
    assert len(lite) == 296
    assert lite["_blocks.15._project_conv.weight"].shape == (320, 1152, 1, 1)
    assert lite["_conv_head.weight"].shape == (1280, 320, 1, 1)


@pytest.mark.parametrize(
    ("name", "parameters", "entries"),
    [
        ("imagenet_resnet18", 11_689_512, 122),
        ("imagenet_resnet34", 21_797_672, 218),
        ("imagenet_resnet50", 25_557_032, 320),
    ],
)
def test_imagenet_resnets_have_the_published_names_and_sizes(name, parameters, entries):
    with torch.device("meta"):
        model = models.create(name)
    state = model.state_dict()
    assert (sum(p.numel() for p in model.parameters()), len(state)) == (parameters, entries)
    wide = 4 if name == "imagenet_resnet50" else 1
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer4.0.downsample.0.weight"].shape == (512 * wide, 256 * wide, 1, 1)
    assert state["layer4.2.bn2.running_var" if name != "imagenet_resnet18" else "layer4.1.bn2.running_var"].shape == (
        512,
    )
    assert state["fc.weight"].shape == (1000, 512 * wide)


def test_weights_for_other_classes_leave_the_head_fresh():
    source = models.create("imagenet_resnet18", 1000).state_dict()
    old = {name: value for name, value in source.items() if not name.endswith("num_batches_tracked")}
    model = models.create("imagenet_resnet18", 3, weights=old)
    assert torch.equal(model.layer3[1].conv2.weight, source["layer3.1.conv2.weight"])
    assert model.fc.weight.shape == (3, 512)
    same = models.create("imagenet_resnet18", weights=source)
    assert torch.equal(same.fc.weight, source["fc.weight"])
    with pytest.raises(CheckpointError, match="fc.weight is"):
        models.create(
            "imagenet_resnet50",
            3,
            weights={**models.create("imagenet_resnet50", 3).state_dict(), "fc.weight": torch.zeros(3, 512)},
        )


def test_lite_pads_strided_convolutions_below_and_to_the_right():
    conv = models.create("efficientnet_lite0", 2, image_size=32)._conv_stem
    x = torch.randn(1, 3, 32, 32)
    padded = torch.zeros(1, 3, 33, 33)
    padded[..., :32, :32] = x
    torch.testing.assert_close(conv(x), torch.nn.functional.conv2d(padded, conv.weight, stride=2))


def test_unknown_name_or_option_is_refused_with_a_hint():
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        models.create("resnet_18")
    with pytest.raises(ConfigError, match="does not take these options"):
        models.create("resnet20", 10, depth=3)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_load_from_either_format(tmp_path, suffix):
    source, target = models.create("digits_net"), models.create("digits_net")
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(source.state_dict(), path)
    else:
        save_file(source.state_dict(), path)
    models.load_weights_(target, path)
    assert all(torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values()))


def test_weights_that_do_not_fit_are_refused_by_name():
    state = models.create("digits_net", 10).state_dict()
    state["fc.weight"] = torch.zeros(3, 32)
    state["extra"] = torch.zeros(1)
    del state["conv1.weight"]
    with pytest.raises(CheckpointError) as error:
        models.load_weights_(models.create("digits_net", 10), state)
    for part in ("missing: conv1.weight", "unexpected: extra", "fc.weight is (3, 32), expected (10, 32)"):
        assert part in str(error.value)


def test_damaged_or_missing_weights_say_so(tmp_path):
    with pytest.raises(CheckpointError, match="no such weights file"):
        models.load_weights_(models.create("digits_net"), tmp_path / "none.safetensors")
    for name in ("bad.safetensors", "bad.pth"):
        (tmp_path / name).write_bytes(b"not tensors at all")
        with pytest.raises(CheckpointError, match="not a"):
            models.load_weights_(models.create("digits_net"), tmp_path / name)


OWN = """
from torch import nn

def make(num_classes=4):
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, num_classes))

def plain():
    return make()

def wrong(width, depth):
    return make()

number = 7
"""


def test_a_network_of_ones_own_is_made_from_its_file(tmp_path):
    file = tmp_path / "mynet.py"
    file.write_text(OWN)
    name = f"{file}:make"
    assert models.create(name, 5)[-1].out_features == 5
    assert models.create(name)[-1].out_features == 4
    assert models.create(f"{file}:plain", 5)[-1].out_features == 4
    assert (models.spec(name).channels, models.spec(name).num_classes, models.title(name)) == (3, 4, "mynet.make")


def test_an_exported_network_is_a_model_too(tmp_path):
    (tmp_path / "mynet.py").write_text(OWN)
    module = models.create(f"{tmp_path}/mynet.py:make").eval()
    x = torch.rand(2, 3, 8, 8)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "mynet.pt2")
    assert torch.equal(models.create(str(tmp_path / "mynet.pt2"))(x), module(x))


@pytest.mark.parametrize(
    ("function", "reason"),
    [("none", "it has make, plain, wrong"), ("number", "no function 'number'"), ("wrong", "wants width, depth")],
)
def test_what_cannot_make_a_network_says_why(tmp_path, function, reason):
    (tmp_path / "mynet.py").write_text(OWN)
    with pytest.raises(ConfigError, match=reason):
        models.create(f"{tmp_path}/mynet.py:{function}")
    with pytest.raises(ConfigError, match="cannot be read"):
        models.create(f"{tmp_path}/other.py:make")
