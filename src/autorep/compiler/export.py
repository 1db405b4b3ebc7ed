"""A torch module as a flat graph of ATen calls without side effects, written down by torch.export.

torch itself resolves in-place calls, aliases, views, hooks, keyword arguments, flags and shape arithmetic: what the
graph says is what the module computes. Replaced activations stay whole, as calls of one operator that names them.
"""

from __future__ import annotations

import copy
import inspect
import io
import linecache
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autorep.errors import TraceError

_TORCH = os.path.dirname(torch.__file__)
_LAYERS = os.path.join(_TORCH, "nn", "modules")
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OWN = (os.path.join(_PACKAGE, "compiler"), os.path.join(_PACKAGE, "replacement"))
_LIBRARY, _PACKAGES = os.path.dirname(os.__file__), ("site-packages", "dist-packages")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CALL_NUMBER = re.compile(r"@\d+")  # torch.export's mark of a module's second and later calls


@torch.library.custom_op("autorep::masked_activation", mutates_args=())
def _masked_activation(z: Tensor, path: str) -> Tensor:
    """Stands for the replaced activation at `path` while a model is exported; never computed."""
    raise NotImplementedError(f"{path}: only for graphs")


@_masked_activation.register_fake
def _(z: Tensor, path: str) -> Tensor:
    return torch.empty_like(z)


@dataclass(frozen=True)
class Exported:
    """The graph, the tensors that its placeholders stand for, and which placeholder is the image.

    Attributes:
        nodes: in execution order, placeholders and the output included.
        constants: placeholder name -> parameter, buffer or constant tensor of the model.
        image: name of the placeholder of the input.
        outputs: what the model returns by name: nodes, or plain values. One tensor that is returned alone has no name.
    """

    model: nn.Module
    nodes: tuple[fx.Node, ...]
    constants: Mapping[str, Tensor]
    image: str
    outputs: Mapping[str, Any]

    def path(self, node: fx.Node) -> str:
        """Dotted path of the torch layer that made this call, or of the module around it and the function's name."""
        module_path, cls = self._module(node)
        if module_path and self._by_layer(node, cls):
            return module_path
        return f"{module_path}.{function_name(node)}" if module_path else function_name(node)

    def operation(self, node: fx.Node) -> str:
        """The torch layer's class, or the function that was called."""
        _, cls = self._module(node)
        return cls.rpartition(".")[2] if self._by_layer(node, cls) else called_function(node)

    def source(self, node: fx.Node) -> str:
        """file:line of the user's code that made this call: the innermost, in a helper or hook where that made it."""
        for file, line in reversed(_frames(node)):
            if is_users(file):
                return f"{file}:{line}"
        path, _ = self._module(node)
        try:
            cls = type(self.model.get_submodule(path))
            original = next(base for base in cls.__mro__ if "<" not in (inspect.getsourcefile(base) or "<"))
            return f"{inspect.getsourcefile(original)}:{inspect.getsourcelines(original)[1]}"
        except (AttributeError, TypeError, OSError, StopIteration):
            return "source line unknown"

    def _by_layer(self, node: fx.Node, cls: str) -> bool:
        """Whether a layer of torch made this call, and not a container or the user's hook of a layer."""
        if not cls.startswith("torch.nn.modules.") or cls.startswith("torch.nn.modules.container"):
            return False
        frames = _frames(node)
        return not frames or not is_users(frames[-1][0])

    def _module(self, node: fx.Node) -> tuple[str, str]:
        """Path and class name of the innermost module that was running."""
        stack = node.meta.get("nn_module_stack") or {}
        path, cls = next(reversed(stack.values()), ("", ""))
        cls = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        return _CALL_NUMBER.sub("", path), cls


def is_users(file: str) -> bool:
    """Whether a file is the user's, or of a package of models, rather than torch's, Python's or our own."""
    if file.startswith((_TORCH, *_OWN, "<")):
        return False
    return not file.startswith(_LIBRARY) or any(packages in file for packages in _PACKAGES)


def _frames(node: fx.Node) -> list[tuple[str, str]]:
    """File and line of what was running when a call was made, as far as it was recorded, innermost last."""
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def function_name(node: fx.Node) -> str:
    """conv2d, relu, …: the ATen call without name space and overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.partition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def called_function(node: fx.Node) -> str:
    """What the user called, where torch recorded it: chunk rather than split."""
    recorded = node.meta.get("torch_fn")
    return recorded[1].rpartition(".")[2] if recorded else function_name(node)


def arguments(node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Any, Any]:
    """args and kwargs of a call, with the values of the nodes they name."""
    filled: Any = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return filled


def named_leaves(answer: Any) -> dict[str, Any]:
    """What a model returns, by position or key; one value that is returned alone is named ""."""
    leaves, _ = pytree.tree_flatten_with_path(answer)
    return {".".join(re.findall(r"\w+", pytree.keystr(path))): value for path, value in leaves}


def plain_module(model: nn.Module) -> nn.Module:
    """The module itself under wrappers that change nothing in evaluation, in a precision that numpy knows."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError("a scripted or traced module has no Python forward any more; give the module it was made from")
    model = getattr(model, "_orig_mod", model)  # torch.compile
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    if any(p.is_floating_point() and p.dtype not in (torch.float32, torch.float64) for p in model.parameters()):
        return copy.deepcopy(model).float()
    return model


def export(model: nn.Module, example: Tensor, masked: Mapping[str, nn.Module]) -> Exported:
    """Export a model in evaluation mode on `example` (two images, so that a mixed-up batch shows).

    `masked` are the replaced activations by path. Raises TraceError saying where and why when torch cannot.
    """
    with _silent(), _kept_whole(masked), _every_line(), torch.no_grad():
        try:
            program = torch.export.export(model, (example.clone(),), strict=False).run_decompositions({})
        except Exception as error:  # whatever the user's forward or torch raises
            raise _trace_error(model, example, error) from error
    signature = program.graph_signature
    tensors = {**program.constants, **program.state_dict}
    named = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    nodes = {node.name: node for node in program.graph.nodes}
    outputs = [nodes.get(name, name) if isinstance(name, str) else name for name in signature.user_outputs]
    call = program.module_call_graph[0].signature
    assert call is not None
    return Exported(
        model,
        tuple(program.graph.nodes),
        {name: tensors[target] for name, target in named.items()},
        str(signature.user_inputs[0]),
        {name: value for name, value in named_leaves(call.out_spec.unflatten(outputs)).items() if value is not None},
    )


@contextmanager
def _kept_whole(masked: Mapping[str, nn.Module]) -> Iterator[None]:
    """While this lasts, a replaced activation calls the operator that stands for it."""
    for path, module in masked.items():
        module.__dict__["forward"] = lambda z, path=path: torch.ops.autorep.masked_activation(z, path)
    try:
        yield
    finally:
        for module in masked.values():
            del module.__dict__["forward"]


@contextmanager
def _every_line() -> Iterator[None]:
    """While this lasts, a call's stack trace has every line of users and torch's layers, not of `forward` alone.

    What stands above `export` is not the model's. A torch that has no such filter gives the lines of `forward`.
    """

    def filtered(tracer: fx.proxy.TracerBase, stack: traceback.StackSummary) -> traceback.StackSummary:
        start = next((i for i, frame in enumerate(stack) if (frame.filename, frame.name) == (__file__, "export")), 0)
        kept = [frame for frame in stack[start:] if is_users(frame.filename) or frame.filename.startswith(_LAYERS)]
        return traceback.StackSummary.from_list(kept)

    name = "_filter_traceback_frames"
    original = getattr(fx.proxy.TracerBase, name, None)
    setattr(fx.proxy.TracerBase, name, filtered)
    try:
        yield
    finally:
        if original is None:
            delattr(fx.proxy.TracerBase, name)
        else:
            setattr(fx.proxy.TracerBase, name, original)


@contextmanager
def _silent() -> Iterator[None]:
    """torch logs and prints what it then raises; the exception is enough."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _trace_error(model: nn.Module, example: Tensor, error: Exception) -> TraceError:
    names = {id(module): name for name, module in model.named_modules()}
    layer, line = type(model).__name__, ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if names.get(id(owner)):
            layer = f"{names[id(owner)]} ({type(owner).__name__})"
        file = frame.f_code.co_filename
        if is_users(file):
            line = f", {file}:{number}: `{linecache.getline(file, number).strip()}`"
    reason = next((text.strip() for text in str(error).splitlines() if text.strip()), "no reason given").rstrip(".")
    return TraceError(
        f"torch.export cannot follow the model: {layer}{line} fails on an input of shape {tuple(example.shape)}: "
        f"{type(error).__name__}: {reason}. A model takes one batch of images, of the right shape; no decision in its "
        "forward may depend on the values of a tensor"
    )
