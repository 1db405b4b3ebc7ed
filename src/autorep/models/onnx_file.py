"""Networks from ONNX files: the graph as a torch module, which then goes the way of any other.

`OPERATIONS` has what image classifiers are made of, each as the torch call it stands for; a file with anything else is
refused with all the names at once. Numbers that only describe shapes are computed in numpy, when the module runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autorep.errors import ConfigError, UnsupportedOpError

REAL_TYPES = (1, 10, 11, 16)  # float, float16, double, bfloat16 in ONNX's numbering
REPEATING = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
}
BY_NUMBER = ("Clip", "Pow", "Pad", "Resize", "Upsample")  # whose further inputs are plain numbers, known beforehand

Value = Any  # a tensor, a numpy array of whole numbers, or None for an input that is left out


@dataclass(frozen=True)
class Node:
    """One call of the graph."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


class OnnxNetwork(nn.Module):
    """Runs an ONNX graph of one input; several outputs come as a dictionary."""

    def __init__(self, nodes: Sequence[Node], constants: dict[str, np.ndarray], image: str, outputs: Sequence[str]):
        super().__init__()
        self.nodes, self.image, self.outputs = tuple(nodes), image, tuple(outputs)
        self.shapes = {name: value for name, value in constants.items() if value.dtype.kind != "f"}
        self.names = {name: f"constant_{i}" for i, name in enumerate(constants) if name not in self.shapes}
        by_number = [name for node in nodes if node.kind in BY_NUMBER for name in node.inputs[1:] if name in self.names]
        self.numbers = {name: constants[name] for name in by_number}
        for name, own in self.names.items():
            self.register_parameter(own, nn.Parameter(torch.tensor(constants[name]), requires_grad=False))

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        values: dict[str, Value] = {"": None, self.image: x, **self.shapes}
        values |= {name: getattr(self, own) for name, own in self.names.items()}
        for node in self.nodes:
            known = values | self.numbers if node.kind in BY_NUMBER else values
            inputs = [known[name] for name in node.inputs]
            table = SHAPES if node.kind in SHAPES and not _has_tensor(inputs) else OPERATIONS
            result = table[node.kind](*inputs, **node.attributes)
            values.update(zip(node.outputs, result if isinstance(result, tuple) else (result,)))
        answers = {name: values[name] for name in self.outputs}
        return answers if len(answers) > 1 else answers[self.outputs[0]]


def load_onnx(path: Path) -> tuple[OnnxNetwork, tuple[int, ...]]:
    """The network of a file and the shape of one image (0 where the file leaves it open)."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise ConfigError(
            f"{path}: reading ONNX files takes the extra `onnx` (pip install 'autorep[onnx]'); or save the network "
            "with torch.export.save and give the .pt2 file"
        ) from None
    try:
        graph = onnx.load(path).graph
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except Exception as error:  # protobuf's own, which differ from release to release
        raise ConfigError(f"{path}: not an ONNX file ({error})") from None
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {a.name: _plain(onnx.helper.get_attribute_value(a), numpy_helper) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = np.asarray(next(iter(attributes.values())))
        else:
            nodes.append(Node(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes))
    _check(path, nodes)
    images = [value for value in graph.input if value.name not in constants]
    if len(images) != 1:
        raise ConfigError(f"{path}: {len(images)} inputs; a program takes one batch of images")
    shape = tuple(size.dim_value for size in images[0].type.tensor_type.shape.dim)[1:]
    return OnnxNetwork(nodes, constants, images[0].name, [value.name for value in graph.output]).eval(), shape


def _check(path: Path, nodes: Sequence[Node]) -> None:
    unknown = [node for node in nodes if node.kind not in OPERATIONS and node.kind not in SHAPES]
    if unknown:
        lines = "\n  ".join(f"{node.name or node.outputs[0]}: {node.kind}" for node in unknown)
        raise UnsupportedOpError(
            f"{path}: {len(unknown)} operation(s) that are not read from ONNX files:\n  {lines}\nIf the network is at "
            "hand in torch, save it with torch.export.save and give the .pt2 file: more operations are known there"
        )


def _plain(value: Any, numpy_helper: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return numpy_helper.to_array(value) if hasattr(value, "raw_data") else value


def _has_tensor(inputs: Sequence[Value]) -> bool:
    return any(isinstance(value, Tensor) for value in inputs)


def _ints(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values).ravel()]


def _number(value: Any) -> float | None:
    """A bound or factor, given as an array of one element."""
    return None if value is None else float(np.asarray(value).ravel()[0])


# windows ---------------------------------------------------------------------------------------------------


def _pads(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], pads: Any, auto: str):
    """(before, after) in every direction."""
    if auto in ("NOTSET", ""):
        half = len(kernel)
        return list(zip(pads[:half], pads[half:])) if pads else [(0, 0)] * half
    if auto == "VALID":
        return [(0, 0)] * len(kernel)
    both = []
    for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        both.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
    return both


def _padded(x: Tensor, both: Sequence[tuple[int, int]]) -> tuple[Tensor, list[int]]:
    """Even padding is left to the window; uneven is done here."""
    if all(before == after for before, after in both):
        return x, [before for before, _ in both]
    return F.pad(x, [side for pair in reversed(both) for side in pair]), [0] * len(both)


def conv(x, weight, bias=None, *, group=1, strides=None, dilations=None, pads=None, auto_pad="NOTSET", **_):
    kernel = list(weight.shape[2:])
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    x, padding = _padded(x, _pads(x, kernel, strides, dilations, pads, auto_pad))
    function = F.conv1d if len(kernel) == 1 else F.conv2d
    return function(x, weight, bias, tuple(strides), tuple(padding), tuple(dilations), group)


def conv_transpose(x, weight, bias=None, *, group=1, strides=(1, 1), dilations=(1, 1), pads=None, **options):
    both = _pads(x, weight.shape[2:], strides, dilations, pads, options.get("auto_pad", "NOTSET"))
    if "output_shape" in options or any(before != after for before, after in both):
        raise ConfigError("ConvTranspose with uneven padding or a given output shape: crop the result instead")
    extra = tuple(options.get("output_padding", (0, 0)))
    padding = [before for before, _ in both]
    return F.conv_transpose2d(x, weight, bias, tuple(strides), padding, extra, group, tuple(dilations))


def max_pool(x, *, kernel_shape, strides=None, dilations=None, pads=None, auto_pad="NOTSET", ceil_mode=0, **_):
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    both = _pads(x, kernel_shape, strides, dilations, pads, auto_pad)
    if any(before != after for before, after in both):
        raise ConfigError("MaxPool with uneven padding: pad with a layer of its own before it")
    return F.max_pool2d(x, kernel_shape, strides, [before for before, _ in both], dilations, bool(ceil_mode))


def average_pool(x, *, kernel_shape, strides=None, pads=None, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0, **_):
    strides = strides or [1] * len(kernel_shape)
    both = _pads(x, kernel_shape, strides, [1] * len(kernel_shape), pads, auto_pad)
    if any(before != after for before, after in both):
        raise ConfigError("AveragePool with uneven padding: pad with a layer of its own before it")
    padding = [before for before, _ in both]
    return F.avg_pool2d(x, kernel_shape, strides, padding, bool(ceil_mode), bool(count_include_pad))


def resize(x, *given, mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode=None, **_):
    """Nearest up-sampling by whole factors, under the conventions that repeat every element."""
    convention = (coordinate_transformation_mode, nearest_mode or "round_prefer_floor")
    numbers = [value for value in given[-2:] if value is not None and len(value)]
    if mode != "nearest" or convention not in REPEATING or not numbers or isinstance(numbers[-1], Tensor):
        raise UnsupportedOpError(f"Resize {mode} {convention}: only nearest up-sampling by whole factors is known")
    last = numbers[-1]
    sizes = [round(s * float(f)) for s, f in zip(x.shape, last)] if last.dtype.kind == "f" else _ints(last)
    if any(new % old for new, old in zip(sizes, x.shape)) or sizes[:2] != list(x.shape[:2]):
        raise UnsupportedOpError(f"Resize from {tuple(x.shape)} to {sizes}: only rows and columns, by whole factors")
    return F.interpolate(x, size=tuple(sizes[2:]), mode="nearest")


# everything else -------------------------------------------------------------------------------------------


def cast(x, *, to, **_):
    if to not in REAL_TYPES:
        raise UnsupportedOpError("Cast to whole numbers or flags: values are real numbers in a program")
    return x


def power(x, exponent):
    return torch.pow(x, float(np.asarray(exponent).ravel()[0]))


def depth_to_space(x, *, blocksize, mode="DCR"):
    if mode != "CRD":
        raise UnsupportedOpError("DepthToSpace: only mode CRD is known, which is torch's pixel_shuffle")
    return F.pixel_shuffle(x, blocksize)


def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):  # ONNX's names
    if transA:
        raise UnsupportedOpError("Gemm with transA=1: the batch must come first")
    result = F.linear(a, alpha * (b if transB else b.t()))
    return result if c is None else result + beta * c


def batch_norm(x, scale, bias, mean, variance, *, epsilon=1e-5, training_mode=0, **_):
    if training_mode:
        raise UnsupportedOpError("BatchNormalization in training mode: export the network in evaluation mode")
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def clip(x, low=None, high=None, *, min=None, max=None):  # ONNX's names
    return torch.clamp(x, _number(low) if min is None else min, _number(high) if max is None else max)


def reduce(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x, given=None, *, axes=None, keepdims=1, **_):
        chosen = _ints(given) if given is not None else list(axes or range(x.dim()))
        return function(x, chosen, keepdim=bool(keepdims))

    return apply


def reshape(x, shape, *, allowzero=0):
    sizes = [x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(_ints(shape))]
    return x.reshape(sizes)


def pad(x, given=None, value=None, *_, mode="constant", pads=None):
    sides = _ints(given) if given is not None else list(pads)
    half = len(sides) // 2
    pairs = [side for before, after in zip(sides[half - 1 :: -1], sides[: half - 1 : -1]) for side in (before, after)]
    while pairs[-2:] == [0, 0]:
        pairs = pairs[:-2]
    if mode == "constant":
        return F.pad(x, pairs, value=_number(value) or 0.0)
    return F.pad(x, pairs, mode="reflect" if mode == "reflect" else "replicate")


def slice_(x, starts=None, ends=None, axes=None, steps=None, **attributes):
    starts, ends = _ints(attributes.get("starts", starts)), _ints(attributes.get("ends", ends))
    axes = attributes.get("axes", axes)
    chosen = range(len(starts)) if axes is None else _ints(axes)
    steps = [1] * len(starts) if steps is None else _ints(steps)
    index: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(chosen, starts, ends, steps):
        if step < 0 and isinstance(x, Tensor):
            raise UnsupportedOpError("Slice with negative steps: flip is not known here")
        index[axis] = slice(start, min(end, 2**31), step)
    return x[tuple(index)]


def split(x, sizes=None, *, axis=0, num_outputs=None, split=None):
    parts = split if sizes is None else _ints(sizes)
    return tuple(torch.split(x, parts or -(-x.shape[axis] // num_outputs), axis))


def squeeze(x, given=None, *, axes=None):
    chosen = sorted((axis % x.ndim for axis in _ints(axes if given is None else given)), reverse=True)
    for axis in chosen:
        x = x.squeeze(axis)
    return x


def unsqueeze(x, given=None, *, axes=None):
    chosen = _ints(axes if given is None else given)
    rank = x.ndim + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        x = x.unsqueeze(axis) if isinstance(x, Tensor) else np.expand_dims(x, axis)
    return x


def gather(x, index, *, axis=0):
    if np.asarray(index).ndim == 0:
        return x.select(axis, int(index))
    return torch.index_select(x, axis, torch.tensor(_ints(index)))


def hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


OPERATIONS: dict[str, Callable[..., Value]] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": max_pool, "AveragePool": average_pool, "Resize": resize,
    "Upsample": resize, "Gemm": gemm, "BatchNormalization": batch_norm, "Clip": clip, "Reshape": reshape, "Pad": pad,
    "Slice": slice_, "Split": split, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Gather": gather,
    "HardSigmoid": hard_sigmoid, "ReduceMean": reduce(torch.mean), "ReduceSum": reduce(torch.sum),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.dim())), keepdim=True),
    "MatMul": torch.matmul, "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Neg": torch.neg,
    "Abs": torch.abs, "Pow": power, "Sum": lambda *x: sum(x[1:], x[0]),
    "Max": torch.maximum, "Min": torch.minimum, "Relu": F.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh,
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "PRelu": lambda x, slope: torch.relu(x) - slope * torch.relu(-x),
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha), "Celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
    "Selu": lambda x, *, alpha=1.6732632, gamma=1.0507010: gamma * F.elu(x, alpha),
    "Softplus": F.softplus, "HardSwish": F.hardswish, "Mish": F.mish,
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Softmax": lambda x, *, axis=-1: F.softmax(x, axis), "LogSoftmax": lambda x, *, axis=-1: F.log_softmax(x, axis),
    "Concat": lambda *x, axis: torch.cat(x, axis), "Flatten": lambda x, *, axis=1: x.flatten(axis),
    "Transpose": lambda x, *, perm: x.permute(perm),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, _ints(shape))),
    "DepthToSpace": depth_to_space,
    "Identity": lambda x: x, "Dropout": lambda x, *_, **__: x, "Cast": cast,
    "Shape": lambda x, *, start=0, end=None: np.array(tuple(x.shape)[start:end], np.int64),
}  # fmt: skip
# The same for numbers that only describe shapes.
SHAPES: dict[str, Callable[..., np.ndarray]] = {
    "Gather": lambda x, index, *, axis=0: np.take(x, index, axis), "Concat": lambda *x, axis: np.concatenate(x, axis),
    "Unsqueeze": unsqueeze, "Squeeze": lambda x, *_, **__: np.squeeze(x), "Slice": slice_,
    "Reshape": lambda x, shape, **_: np.reshape(x, _ints(shape)),
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
    "Cast": lambda x, *, to, **_: x, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide,
    "ConstantOfShape": lambda shape, *, value=0: np.full(_ints(shape), np.asarray(value).ravel()[0]),
}  # fmt: skip
