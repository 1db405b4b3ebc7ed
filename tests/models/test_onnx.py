"""ONNX files: what torch wrote is read back as the same network, every operation as ONNX's own reference has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autorep import models
from autorep.cli.main import main
from autorep.compiler.compile import check, compile_program
from autorep.errors import ConfigError, UnsupportedOpError

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402  # after importorskip
from onnx.reference import ReferenceEvaluator  # noqa: E402

SHAPE = (1, 4, 6, 6)


def write(path: Path, nodes, constants: dict[str, np.ndarray], outputs=("y",), shape=SHAPE) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SINGLE = {
    "Conv": ({"pads": [1, 0, 1, 0], "strides": [2, 1], "group": 2}, [weights(6, 2, 3, 3), weights(6)]),
    "Conv same": ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, [weights(6, 4, 3, 3)]),
    "Conv uneven": ({"pads": [0, 1, 2, 0]}, [weights(6, 4, 3, 3)]),
    "ConvTranspose": ({"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}, [weights(4, 5, 3, 3)]),
    "BatchNormalization": ({"epsilon": 1e-3}, [weights(4), weights(4), weights(4), np.abs(weights(4))]),
    "MaxPool": ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, []),
    "AveragePool": ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, []),
    "AveragePool padded": ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, []),
    "GlobalAveragePool": ({}, []),
    "GlobalMaxPool": ({}, []),
    "Clip": ({}, [np.float32(-0.5), np.float32(1)]),
    "HardSigmoid": ({"alpha": 0.3}, []),
    "LeakyRelu": ({"alpha": 0.2}, []),
    "PRelu": ({}, [weights(4, 1, 1)]),
    "Elu": ({"alpha": 0.7}, []),
    "Selu": ({}, []),
    "Softplus": ({}, []),
    "HardSwish": ({}, []),
    "Mish": ({}, []),
    "Gelu": ({}, []),
    "Pow": ({}, [np.float32(2)]),
    "Mul": ({}, [weights(4, 1, 1)]),
    "Sub": ({}, [np.float32(3)]),
    "Div": ({}, [np.float32(3)]),
    "ReduceMean": ({"keepdims": 0}, [ints(2, 3)]),
    "ReduceSum": ({}, [ints(-1)]),
    "Reshape": ({}, [ints(0, 2, -1)]),
    "Transpose": ({"perm": [0, 2, 3, 1]}, []),
    "Flatten": ({}, []),
    "Pad": ({}, [ints(0, 0, 1, 0, 0, 0, 2, 3), np.float32(0.5)]),
    "Pad edge": ({"mode": "edge"}, [ints(0, 0, 1, 0, 0, 0, 2, 3)]),
    "Slice": ({}, [ints(1, -4), ints(2**62, -1), ints(1, 2), ints(2, 1)]),
    "Gather": ({"axis": 1}, [ints(3, 0)]),
    "Resize": ({"mode": "nearest"}, [np.empty(0, np.float32), np.array([1, 1, 2, 3], np.float32)]),
    "DepthToSpace": ({"blocksize": 2, "mode": "CRD"}, []),
    "Expand": ({}, [ints(1, 4, 6, 6)]),
}


@pytest.mark.parametrize("case", SINGLE)
def test_an_operation_is_as_the_reference_has_it(case, tmp_path):
    attributes, given = SINGLE[case]
    names = [f"c{i}" for i in range(len(given))]
    node = helper.make_node(case.split()[0], ["x", *names], ["y"], **attributes)
    path = write(tmp_path / "net.onnx", [node], {name: np.asarray(value) for name, value in zip(names, given)})
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    expected = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    np.testing.assert_allclose(models.create(str(path))(torch.from_numpy(x)).detach().numpy(), expected, atol=2e-5)


def classifier(path: Path) -> Path:
    """A residual block with shape arithmetic of the kind that exporters write, for the digits data set."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Clip", ["d", "zero", "six"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Shape", ["f"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axis"], ["m"]),
        helper.make_node("Concat", ["m", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["f", "shape"], ["g"]),
        helper.make_node("Gemm", ["g", "w3", "b3"], ["y"], transB=1),
    ]
    constants = {
        "w1": 0.3 * weights(4, 1, 3, 3),
        "w2": 0.2 * weights(4, 4, 3, 3),
        "w3": weights(10, 4),
        "b3": weights(10),
        "zero": np.float32(0),
        "six": np.float32(6),
        "first": np.array(0, np.int64),
        "axis": ints(0),
        "rest": ints(-1),
    }
    return write(path, nodes, {name: np.asarray(value) for name, value in constants.items()}, shape=("N", 1, 8, 8))


def test_a_classifier_compiles_and_checks(tmp_path, capsys):
    path = classifier(tmp_path / "net.onnx")
    spec = models.spec(str(path))
    assert (spec.channels, spec.image_size, spec.num_classes) == (1, 8, 10)
    network = models.create(str(path))
    assert check(network, torch.zeros(1, 1, 8, 8)) == []
    x = np.random.default_rng(1).standard_normal((6, 1, 8, 8)).astype(np.float32)
    expected = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    np.testing.assert_allclose(compile_program(network, x).run(x), expected, atol=1e-5)
    assert main(["check", str(path)]) == 0
    assert main(["compile", str(path), "--out", str(tmp_path / "out"), "--data", "digits", "--images", "32"]) == 0
    assert (tmp_path / "out" / "party1").is_dir()
    assert main(["compile", str(path), "--out", str(tmp_path / "none")]) != 0
    assert "with --data" in capsys.readouterr().err


class Mobile(nn.Module):
    """What exporters meet in mobile networks: gates, a channel shuffle by shape arithmetic, up-sampling, pads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.act, self.depthwise = nn.Hardswish(), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.gate, self.slope, self.fc = nn.Conv2d(4, 4, 1), nn.PReLU(8), nn.Linear(8, 5)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):
        left, right = self.act(self.norm(self.stem(x))).chunk(2, 1)
        right = F.silu(self.depthwise(right))
        x = torch.cat([left, right * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(right, 1)))], 1)
        n, _, rows, columns = x.shape
        x = x.view(n, 2, 4, rows, columns).transpose(1, 2).reshape(n, -1, rows, columns)
        larger = F.max_pool2d(F.interpolate(x, scale_factor=2), 3, 2, 1)
        x = self.slope(larger) + F.avg_pool2d(F.pad(x, (0, 1, 0, 1)), 2, 1)
        return self.fc(F.relu6(x).mean((2, 3)).flatten(1))


def export(path: Path, dynamo: bool) -> Path:
    """`Mobile` as torch writes it; for any number of images."""
    names = {"dynamic_shapes": {"x": {0: torch.export.Dim("n")}}} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    version = {} if dynamo else {"opset_version": 17, "input_names": ["x"]}
    options = {"dynamo": dynamo, "external_data": False, "verbose": False, **names, **version}
    torch.onnx.export(Mobile().eval(), (torch.zeros(2, 3, 12, 12),), str(path), **options)
    return path


@pytest.mark.parametrize("exporter", ["dynamo", "script"])
def test_files_that_torch_exported_are_read(exporter):
    """`export` wrote them with torch 2.13."""
    path = Path(__file__).parent / "exported" / f"mobile-{exporter}.onnx"
    x = np.random.default_rng(1).standard_normal((6, 3, 12, 12)).astype(np.float32)
    expected = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    network = models.create(str(path))
    np.testing.assert_allclose(compile_program(network, x).run(x), expected, atol=1e-5)
    assert check(network, torch.zeros(1, 3, 12, 12)) == []


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "script"])
@pytest.mark.filterwarnings("ignore")
def test_what_torch_exports_now_is_read(dynamo, tmp_path):
    if dynamo:
        pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    path, x = export(tmp_path / "net.onnx", dynamo), torch.randn(3, 3, 12, 12)
    torch.testing.assert_close(models.create(str(path))(x), Mobile().eval()(x), rtol=0, atol=1e-5)


def test_what_is_not_known_is_refused_by_name(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Erf", ["a"], ["y"], name="/gelu/Erf")]
    with pytest.raises(UnsupportedOpError, match=r"/gelu/Erf: Erf\n"):
        models.create(str(write(tmp_path / "erf.onnx", nodes, {})))
    cast = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)]
    with pytest.raises(UnsupportedOpError, match="whole numbers"):
        models.create(str(write(tmp_path / "cast.onnx", cast, {})))(torch.zeros(SHAPE))
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(ConfigError, match="not an ONNX file"):
        models.create(str(tmp_path / "bad.onnx"))
    with pytest.raises(ConfigError, match="no such file"):
        models.create(str(tmp_path / "none.onnx"))


def test_several_outputs_have_their_names(tmp_path):
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Relu", ["flat"], ["positive"])]
    network = models.create(str(write(tmp_path / "two.onnx", nodes, {}, ("flat", "positive"))))
    assert isinstance(network, nn.Module)
    assert list(network(torch.zeros(SHAPE))) == ["flat", "positive"]
