"""A torch module written down as a Draft, every unsupported operation listed at once."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from autorep.activations import ACTIVATIONS
from autorep.compiler import rules_linear, rules_movement, rules_pointwise, rules_windows  # noqa: F401  # fill RULES
from autorep.compiler.draft import Draft
from autorep.compiler.export import Exported, arguments, export, function_name
from autorep.compiler.live import Live, Unsupported
from autorep.compiler.rules_activation import masked
from autorep.compiler.rules_linear import STATISTICS
from autorep.compiler.translate import RULES, Translator
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


@dataclass(frozen=True)
class Traced:
    """What a model became.

    Attributes:
        draft: meaningful only when there is no problem.
        problems: everything that could not be translated.
        graph: the model as torch.export wrote it down.
        results: graph node -> the operation that gives its value, where there is one.
        sites: the model's replaced activations by path.
    """

    draft: Draft
    problems: list[Problem]
    graph: Exported
    results: dict[fx.Node, str]
    sites: dict[str, Any]


def trace(model: nn.Module, example: Tensor) -> Traced:
    """Follow an evaluated model on `example` (two images or more) and translate every call.

    Raises TraceError when the model cannot be followed at all.
    """
    sites = {path: module for path, module in model.named_modules() if is_masked_activation(module)}
    return _Importer(export(model, example, sites), sites, len(example)).run()


def is_masked_activation(module: nn.Module) -> bool:
    """A replaced activation: anything that can name its kept elements and its polynomials."""
    return hasattr(module, "kept_index") and hasattr(module, "poly_coefficients")


_UNKNOWN = "unknown"  # name of what stands for the result of an operation that cannot be translated
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)  # what .item() and the like give while a model is exported
_SIDE_RESULT = "positions of maxima, or statistics of a batch; only the values themselves are known in a program"


class _NoResult:
    """Stands for a side result that a program does not have: positions of maxima, statistics of a batch."""


class _Importer:
    """Walks the graph once; constants are computed, calls on computed values translated."""

    def __init__(self, graph: Exported, sites: dict[str, Any], batch: int) -> None:
        self.graph, self.sites = graph, sites
        self.draft = Draft()
        self.translator = Translator(self.draft, batch)
        self.values: dict[fx.Node, Any] = {}  # constants, Live values, tuples of them
        self.problems: list[Problem] = []

    @torch.no_grad()
    def run(self) -> Traced:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":  # a branch of torch.cond and the like
                self.values[node] = None
        self._output()
        results = {
            node: live.sources[0] for node, live in self.values.items() if isinstance(live, Live) and live.index is None
        }
        return Traced(self.draft, self.problems, self.graph, results, self.sites)

    def _placeholder(self, node: fx.Node) -> None:
        if node.name != self.graph.image:
            self.values[node] = self.graph.constants.get(node.name)
            return
        shape = tuple(node.meta["val"].shape)
        op = self.draft.add(Input(name="input", inputs=(), shape=shape[1:], kind="wire", bits=0, frac=0))
        self.values[node] = self.translator.result(op)

    def _output(self) -> None:
        """The answer becomes the last operation; several are put one after the other, each as one row."""
        answers = {name: self.values.get(node) for name, node in self.graph.outputs.items()}
        if self.problems:
            return
        rows = []
        for name, answer in answers.items():
            if isinstance(answer, _NoResult):
                self._problem(None, f"what the model returns {name and f'as {name!r} '}is {_SIDE_RESULT}")
                return
            if not isinstance(answer, Live):
                self._problem(None, f"what the model returns {name and f'as {name!r} '}does not depend on its input")
                return
            rows.append(answer)
        to = self.translator
        try:
            if not rows:
                raise Unsupported("nothing")
            if len(rows) > 1 or "" not in answers:
                rows = [to.reshape(row, (row.shape[0], math.prod(row.shape[1:]))) for row in rows]
                self.draft.outputs = {name: row.shape[1] for name, row in zip(answers, rows)}
            to.path = "answers"
            last = to.place(rows[0] if len(rows) == 1 else to.move(torch.cat, rows, 1))
        except Unsupported as reason:
            self._problem(None, f"what the model returns: {reason}")
            return
        self.draft.ops[last] = self.draft.ops.pop(last)

    def _call(self, node: fx.Node) -> None:
        if node.meta.get("val") is None:  # an assertion about types or shapes, which the export has seen to
            return
        args, kwargs = arguments(node, self.values)
        if node.target is operator.getitem:
            self.values[node] = args[0][args[1]]
        elif any(_depends(self.values[n]) for n in node.all_input_nodes):
            self.values[node] = self._translated(node, args, kwargs)
        elif function_name(node) == "masked_activation":  # of a constant
            z, path = args
            self.values[node] = self.sites[path].reference(z)[0]
        elif any(isinstance(self.values[n], NUMBERS) for n in node.all_input_nodes):  # told where it was read off
            self.values[node] = self._unknown(node.meta["val"])
        else:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                self._problem(node, "random numbers in forward; an evaluated model must give one answer")
            self.values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # call_function

    def _translated(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        wanted = node.meta["val"]
        if isinstance(wanted, NUMBERS):
            self._problem(node, "a plain number read off computed values (.item(), a count); keep it a tensor")
            return wanted
        shapes = [tuple(value.shape) for value in (wanted if isinstance(wanted, list | tuple) else [wanted])]
        to = self.translator
        to.path, to.wanted = self.graph.path(node), shapes[0]
        try:
            if any(isinstance(self.values[n], _NoResult) for n in node.all_input_nodes):
                raise Unsupported(f"it reads {_SIDE_RESULT}")
            result = self._rule(node, args, kwargs)
            if isinstance(result, tuple):
                result = tuple(_NoResult() if value is None else value for value in result)
            given = result if isinstance(result, list | tuple) else [result]
            for value, shape in zip(given, shapes):
                if isinstance(value, Live | Tensor) and tuple(value.shape) != shape:
                    raise Unsupported(f"the result has shape {tuple(value.shape)} instead of {shape}")
            return result
        except Unsupported as reason:
            self._problem(node, str(reason))
        except (TypeError, AttributeError, RuntimeError, ValueError, LookupError, ArithmeticError) as error:
            if not any(self._is_stand_in(self.values[n]) for n in node.all_input_nodes):
                self._problem(node, f"arguments or shapes that its rule does not know: {error}")
        return self._unknown(wanted)

    def _unknown(self, wanted: Any) -> Any:
        """What stands for a result, or several, that cannot be computed."""
        if isinstance(wanted, list | tuple):
            return tuple(map(self._unknown, wanted))
        return self._stand_in(tuple(wanted.shape)) if isinstance(wanted, Tensor) else wanted

    def _stand_in(self, shape: tuple[int, ...]) -> Live:
        """A value of that shape from nowhere, so that what follows a problem can be examined too."""
        unknown = self.draft.add(Input(name=_UNKNOWN, inputs=(), shape=shape[1:], kind="wire", bits=0, frac=0))
        return Live(self.translator.result(unknown).sources, shape)

    def _is_stand_in(self, value: Any) -> bool:
        return isinstance(value, Live) and any(name.startswith(_UNKNOWN) for name in value.sources)

    def _rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        name = function_name(node)
        if name == "masked_activation":
            z, path = args
            self.translator.path = path
            return masked(self.translator, z, self.sites[path])
        if name not in RULES:
            raise Unsupported(ADVICE.get(name, "no such operation in a program; express it with supported layers"))
        return RULES[name](self.translator, *args, **kwargs)

    def _problem(self, node: fx.Node | None, advice: str) -> None:
        if node is None:
            cls = type(self.graph.model)
            self.problems.append(Problem("output", "return", f"{cls.__module__}.{cls.__qualname__}", advice))
            return
        graph = self.graph
        self.problems.append(Problem(graph.path(node), graph.operation(node), graph.source(node), advice))


def _depends(value: Any) -> bool:
    """Whether a value is computed from the input."""
    return any(map(_depends, value)) if isinstance(value, list | tuple) else isinstance(value, Live | _NoResult)


ADVICE: dict[str, str] = {
    **dict.fromkeys(
        (
            "layer_norm",
            "group_norm",
            "native_group_norm",
            "native_layer_norm",
            "rms_norm",
            "_fused_rms_norm",
            "var",
            "std",
            "var_mean",
            "linalg_vector_norm",
            "norm",
            "cosine_similarity",
            "cdist",
        ),
        STATISTICS,
    ),  # fmt: skip
    "_native_batch_norm_legit": "batch norm with batch statistics; train with track_running_stats=True, call eval()",
    **dict.fromkeys(("softmax", "log_softmax", "_softmax"), "return logits; the client can apply softmax"),
    "native_dropout": "dropout with training=True; pass training=self.training and call eval()",
    "conv3d": "use Conv2d",
    **dict.fromkeys(("bmm", "scaled_dot_product_attention", "bilinear"), "a product of computed matrices: use Conv2d"),
    **dict.fromkeys(("lstm", "gru", "embedding"), "convolutional and fully connected networks only"),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d"), "use nearest up-sampling"),
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne"), "a comparison whose result is used; use ReLU"),
    **dict.fromkeys(("argmax", "argmin"), "return logits, and compile with the answer `class`"),
    **dict.fromkeys(("topk", "sort", "argsort", "median", "kthvalue"), "an order among values; use max pooling"),
    **dict.fromkeys(("cond", "while_loop", "map_impl", "scan"), "a decision on computed values; write one way for all"),
    **dict.fromkeys(
        ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf", "log1p", "exp2"),
        f"a function without a private form; the activations are {', '.join(ACTIVATIONS)}",
    ),
}
