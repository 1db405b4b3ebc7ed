"""A torch module followed with torch.fx and written down as a Draft, every unsupported operation listed at once."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from autorep.compiler.draft import Draft
from autorep.compiler.translate import Live, Translator, Unsupported, is_masked_activation
from autorep.errors import TraceError
from autorep.program.ir import Input


@dataclass(frozen=True)
class Problem:
    """One operation that cannot be translated: where it is, what it is, what to use instead."""

    path: str
    operation: str
    source: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}: {self.operation} ({self.source}): {self.advice}"


def trace(model: nn.Module, example: torch.Tensor) -> tuple[Draft, list[Problem]]:
    """Follow an evaluated model on `example` (two images or more) and translate every call.

    The draft is meaningful only when there is no problem. Raises TraceError when the model cannot be followed at all.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
    except (fx.proxy.TraceError, TypeError, RuntimeError, ValueError) as error:
        raise TraceError(
            f"torch.fx cannot follow {type(model).__name__}: {error}. Control flow must not depend on the data; "
            "compile the part without it, or write it as a torch.nn module that does not branch"
        ) from error
    return _Importer(model, graph).run(example)


class _Tracer(fx.Tracer):
    """Stops at replaced activations and notes the source line of every call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_masked_activation(m) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["source"] = _caller()
        return node


def _caller() -> str:
    """File and line of the innermost frame that is neither torch's nor this module's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # ends with None
    return "source line unknown"


_TORCH = os.path.dirname(torch.__file__)


class _Importer:
    """Runs the graph node by node on real tensors, so every shape is seen, and translates as it goes."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.model, self.graph = model, graph
        self.modules = dict(model.named_modules())
        self.draft = Draft()
        self.translator = Translator(self.draft)
        self.values: dict[fx.Node, Any] = {}
        self.live: dict[fx.Node, Live] = {}
        self.problems: list[Problem] = []

    @torch.no_grad()
    def run(self, example: torch.Tensor) -> tuple[Draft, list[Problem]]:
        self.batch, self.shape = len(example), tuple(example.shape)
        inputs = iter([example])
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, inputs)
            elif node.op == "get_attr":
                self.values[node] = operator.attrgetter(node.target)(self.model)
            elif node.op == "output":
                self._output(node)
            else:
                self._call(node)
        return self.draft, self.problems

    def _placeholder(self, node: fx.Node, inputs: Any) -> None:
        value = next(inputs, None)
        if value is None:
            if not node.args:
                self._problem(node, "more than one input; a program has one input image")
            self.values[node] = node.args[0] if node.args else None
            return
        op = self.draft.add(Input(name="input", inputs=(), shape=tuple(value.shape[1:]), kind="wire", bits=0, frac=0))
        self.values[node], self.live[node] = value, Live(op.name, op.shape)

    def _output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node) or result not in self.live:
            self._problem(node, "the model must return one tensor of logits, not a tuple, list or dict")
            return
        live = self.live[result]
        self.draft.ops[live.name] = self.draft.ops.pop(live.name)  # the answer is the last operation

    def _call(self, node: fx.Node) -> None:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        try:
            result = self._compute(node, args, kwargs)
        except (RuntimeError, ValueError) as error:
            raise TraceError(
                f"{_path(node)} ({node.meta['source']}) fails on an input of shape {self.shape}: {error}. "
                "Give an example of the right shape"
            ) from error
        self.values[node] = result
        depends = any(n in self.live for n in node.all_input_nodes)
        if not depends or not isinstance(result, torch.Tensor):
            if depends and isinstance(result, tuple | list) and any(isinstance(r, torch.Tensor) for r in result):
                self._problem(node, "several results; use separate layers instead of splitting")
            return
        shape = tuple(result.shape[1:])
        self.translator.path, self.translator.shape = _path(node), shape
        live_args = fx.node.map_arg(node.args, lambda n: self.live.get(n, self.values[n]))
        live_kwargs = fx.node.map_arg(node.kwargs, lambda n: self.live.get(n, self.values[n]))
        try:
            if len(result) != self.batch:
                raise Unsupported(f"the result has {len(result)} rows for {self.batch} images; keep the batch first")
            self.live[node] = self._translate(node, live_args, live_kwargs)
        except Unsupported as reason:
            self._problem(node, str(reason))
            self.live[node] = Live(self.live[next(n for n in node.all_input_nodes if n in self.live)].name, shape)

    def _compute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            return self.modules[str(node.target)](*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]  # call_function

    def _translate(self, node: fx.Node, args: Any, kwargs: Any) -> Live:
        if node.op == "call_module":
            return _module(self.translator, self.modules[str(node.target)], *args)
        name = METHODS.get(str(node.target)) if node.op == "call_method" else FUNCTIONS.get(node.target)
        if name is None:
            name = str(getattr(node.target, "__name__", node.target))
            raise Unsupported(ADVICE.get(name, "no such operation in a program; express it with supported layers"))
        try:
            return getattr(self.translator, name)(*args, **kwargs)
        except (TypeError, AttributeError) as error:  # arguments the rule has no names for
            raise Unsupported(f"unexpected arguments: {error}") from error

    def _problem(self, node: fx.Node, advice: str) -> None:
        source = node.meta.get("source", "source line unknown")
        self.problems.append(Problem(_path(node), self._operation(node), source, advice))

    def _operation(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return type(self.modules[str(node.target)]).__name__
        return str(getattr(node.target, "__name__", node.target))


def _module(to: Translator, module: nn.Module, x: Live) -> Live:
    """Call the rule of a leaf module with the module's own settings."""
    if is_masked_activation(module):
        return to.masked(x, module)
    match module:
        case nn.Conv2d() as m:
            if m.padding_mode != "zeros":
                raise Unsupported(f"padding_mode={m.padding_mode!r}; only zero padding is possible")
            return to.conv2d(x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        case nn.Linear():
            return to.linear(x, module.weight, module.bias)
        case nn.BatchNorm2d() | nn.BatchNorm1d() as norm:
            fixed = (norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training)
            return to.batch_norm(x, *fixed, eps=norm.eps)
        case nn.AvgPool2d() as pool:
            padded = (pool.ceil_mode, pool.count_include_pad, pool.divisor_override)
            return to.avg_pool2d(x, pool.kernel_size, pool.stride, pool.padding, *padded)
        case nn.MaxPool2d() as best:
            rest = (best.dilation, best.ceil_mode, best.return_indices)
            return to.max_pool2d(x, best.kernel_size, best.stride, best.padding, *rest)
        case nn.AdaptiveAvgPool2d():
            return to.adaptive_avg_pool2d(x, module.output_size)
        case nn.AdaptiveMaxPool2d():
            return to.adaptive_max_pool2d(x, module.output_size, module.return_indices)
        case nn.ZeroPad2d():
            return to.pad(x, module.padding)
        case nn.ReLU6():
            return to.relu6(x)
        case nn.Hardtanh():
            return to.hardtanh(x, module.min_val, module.max_val)
    for cls, rule in SIMPLE_MODULES.items():
        if isinstance(module, cls):
            return getattr(to, rule)(x)
    name = type(module).__name__
    raise Unsupported(ADVICE.get(name, "no such layer in a program; express it with supported layers"))


SIMPLE_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Flatten: "reshape",
    nn.Identity: "identity",
    nn.Dropout: "identity",
    nn.Dropout1d: "identity",
    nn.Dropout2d: "identity",
}

# torch function -> rule of the Translator
FUNCTIONS: dict[Callable[..., Any] | str, str] = {
    torch.conv2d: "conv2d",
    F.conv2d: "conv2d",
    F.linear: "linear",
    F.batch_norm: "batch_norm",
    **dict.fromkeys((operator.add, operator.iadd, torch.add), "add"),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, torch.multiply), "mul"),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub), "sub"),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div), "div"),
    **dict.fromkeys((F.relu, torch.relu, F.relu_, torch.relu_), "relu"),
    F.relu6: "relu6",
    F.hardtanh: "hardtanh",
    torch.clamp: "clamp",
    **dict.fromkeys((torch.sigmoid, F.sigmoid), "sigmoid"),
    F.hardsigmoid: "hardsigmoid",
    F.avg_pool2d: "avg_pool2d",
    F.adaptive_avg_pool2d: "adaptive_avg_pool2d",
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), "max_pool2d"),
    F.adaptive_max_pool2d: "adaptive_max_pool2d",
    F.pad: "pad",
    torch.mean: "mean",
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), "reshape"),
    **dict.fromkeys((torch.cat, torch.concat), "cat"),
    **dict.fromkeys((F.dropout, F.dropout2d), "dropout"),
}

METHODS: dict[str, str] = {
    **dict.fromkeys(("add", "add_"), "add"),
    **dict.fromkeys(("mul", "mul_"), "mul"),
    **dict.fromkeys(("sub", "sub_"), "sub"),
    **dict.fromkeys(("div", "div_"), "div"),
    **dict.fromkeys(("relu", "relu_"), "relu"),
    **dict.fromkeys(("clamp", "clamp_"), "clamp"),
    **dict.fromkeys(("sigmoid", "sigmoid_"), "sigmoid"),
    "mean": "mean",
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze", "unsqueeze"), "reshape"),
    **dict.fromkeys(("expand", "expand_as"), "expand_as"),
    **dict.fromkeys(("contiguous", "clone", "detach", "float", "to"), "identity"),
}

_TO_RELU = "use ReLU (`autorep.replace_activations_` with kinds=(..., 'silu') turns SiLU into replaced ReLU)"
ADVICE: dict[str, str] = {
    **dict.fromkeys(("SiLU", "silu", "silu_"), _TO_RELU),
    **dict.fromkeys(
        (
            "GELU",
            "gelu",
            "ELU",
            "elu",
            "Mish",
            "mish",
            "Softplus",
            "softplus",
            "Tanh",
            "tanh",
            "SELU",
            "selu",
        ),
        "use ReLU, ReLU6, Hardtanh or Sigmoid",
    ),
    **dict.fromkeys(("LeakyReLU", "leaky_relu", "PReLU", "prelu"), "use ReLU"),
    **dict.fromkeys(("Hardswish", "hardswish", "hardswish_"), "use ReLU or x * hardsigmoid(x)"),
    **dict.fromkeys(("LayerNorm", "layer_norm", "GroupNorm", "group_norm", "InstanceNorm2d"), "use BatchNorm2d"),
    **dict.fromkeys(("Softmax", "softmax", "LogSoftmax", "log_softmax"), "return logits; the client can apply softmax"),
    **dict.fromkeys(("Conv1d", "conv1d", "Conv3d", "conv3d"), "use Conv2d"),
    **dict.fromkeys(("ConvTranspose2d", "conv_transpose2d", "Upsample", "interpolate"), "classifiers only; use Conv2d"),
    **dict.fromkeys(("MultiheadAttention", "matmul", "bmm", "einsum"), "products of two computed matrices: use Conv2d"),
    **dict.fromkeys(("chunk", "split", "getitem"), "use separate layers instead of splitting a tensor"),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "Embedding"), "convolutional and fully connected networks only"),
}


def _path(node: fx.Node) -> str:
    """Dotted path of the module, or of the module around a function call with the function's name."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {}
    around = next(reversed(stack.values()), ("", None))[0] if stack else ""
    return f"{around}.{node.name}" if around else node.name
