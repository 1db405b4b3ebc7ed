"""Call sites: every place in a model where an activation is called, found by following the model with torch.fx.

A call site is not a module: one nn.ReLU object called twice is two sites, F.relu(x) is one although no module exists.
Each site gets a name, which is also the dotted path of the module that `rewrite` later puts there.
"""

from __future__ import annotations

import copy
import inspect
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from autorep.activations import ACTIVATIONS
from autorep.errors import ConfigError, TraceError
from autorep.replacement.kept import FUNCTIONS, KEPT, METHODS, MODULES, call_arguments, module_kind
from autorep.replacement.prelu import PReLUPart, calls_prelu

KINDS = tuple(ACTIVATIONS)
REPLACEABLE = (*KINDS, "prelu")  # the ReLU inside a PReLU
# What user code raises when it meets a symbolic value where it needs a number.
_TRACE_FAILURES = (
    ValueError,
    TypeError,
    NameError,
    RuntimeError,
    AttributeError,
    LookupError,
    AssertionError,
)


class ActivationSite(nn.Module):
    """An activation placed by hand: it marks one call site, so that a model torch.fx cannot follow can be used.

    Behaves as the activation until `replace_activations_` swaps it. Call each one at one place only. A model that has
    any is not traced: these sites, and no others, are replaced.
    """

    def __init__(self, kind: str = "relu") -> None:
        super().__init__()
        if kind not in KINDS:
            raise ConfigError(f"activation kind {kind!r}; valid: {', '.join(KINDS)}")
        self.kind = kind

    def forward(self, z: Tensor) -> Tensor:
        return KEPT[self.kind](z, *ACTIVATIONS[self.kind].defaults)


@dataclass(frozen=True)
class CallSite:
    """One place where an activation is called.

    Attributes:
        name: dotted path of the module that will stand there.
        kind: relu, relu6, … as in `autorep.activations`; arguments: its settings there.
        shape: of one image's activation.
        owner: path of the module whose forward must be rewritten, or None when swapping a submodule is enough.
        position: which of the owner's activation calls this is, in order; -1 without an owner.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    owner: str | None
    position: int
    arguments: tuple[float, ...] = ()

    @property
    def relus(self) -> int:
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True)
class SiteMap:
    """All call sites in execution order, and what rewriting their owners needs to know.

    Attributes:
        sites: in execution order.
        inlined: modules that are called more than once and hold sites; their calls become part of the caller.
        fixed_arguments: per owner, the forward arguments that are plain values rather than tensors.
    """

    sites: tuple[CallSite, ...]
    inlined: frozenset[str]
    fixed_arguments: Mapping[str, Mapping[str, Any]]


class ActivationCall(NamedTuple):
    """What one node of a traced model calls."""

    kind: str
    arguments: tuple[float, ...]
    in_place: bool


def is_activation_call(node: fx.Node, modules: Mapping[str, nn.Module], kinds: Sequence[str]) -> ActivationCall | None:
    """The call when this node calls an activation of one of the kinds."""
    in_place = False
    found: tuple[str, tuple[float, ...]] | None = None
    if node.op == "call_module":
        module = modules[str(node.target)]
        if isinstance(module, PReLUPart):
            return ActivationCall("relu", (), False) if "prelu" in kinds else None
        found, in_place = module_kind(module), bool(getattr(module, "inplace", False))
    elif node.op in ("call_function", "call_method"):
        known = METHODS.get(node.target) if isinstance(node.target, str) else FUNCTIONS.get(node.target)
        if known is not None:
            settings = [value for value in node.args[1:] if not isinstance(value, bool)]
            found = call_arguments(known[0], tuple(settings), dict(node.kwargs))
            in_place = known[1] or bool(node.kwargs.get("inplace")) or any(value is True for value in node.args)
    return ActivationCall(*found, in_place) if found and found[0] in kinds else None


def find_sites(
    model: nn.Module,
    example_input: Tensor | tuple[Tensor, ...],
    kinds: Sequence[str],
    select: Callable[[str], bool] | None = None,
) -> SiteMap:
    """Every call site of `model` on the example input; the model should be a private copy in evaluation mode."""
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    if any(isinstance(module, ActivationSite) for module in model.modules()):
        return SiteMap(tuple(_marked_sites(model, inputs)), frozenset(), {})
    graph, tracer = _trace_whole(model, inputs, select)
    modules = dict(model.named_modules(remove_duplicate=False))
    if "prelu" in kinds and any(map(calls_prelu, graph.nodes)):
        raise TraceError("the model calls F.prelu as a function; use the module nn.PReLU, which can be replaced")
    calls = [node for node in graph.nodes if is_activation_call(node, modules, kinds)]
    shapes = _shapes_of(model, graph, inputs, calls)
    return _name_sites(model, tracer, calls, shapes, modules, kinds, fixed_arguments(model, inputs, {}))


def separate_shared_activations_(model: nn.Module) -> None:
    """Give every registration of an activation module its own object; they hold no state, so nothing else changes."""
    seen: set[int] = set()
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is None or type(child) not in MODULES:
                continue
            if id(child) in seen:
                parent._modules[name] = child = copy.deepcopy(child)
            seen.add(id(child))


class SiteTracer(fx.Tracer):
    """Follows a model and remembers, for each node, the stack of modules whose forward was running.

    Attributes:
        stack: paths of the modules that are running.
        times: module path -> number of calls.
        owners: node -> paths of the modules that were running, outermost first.
        arguments: module path -> (args, kwargs) of its last call.
    """

    def __init__(self, is_leaf: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_leaf = is_leaf
        self.stack: list[str] = [""]
        self.times: Counter[str] = Counter()
        self.owners: dict[fx.Node, tuple[str, ...]] = {}
        self.arguments: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        opaque = isinstance(m, PReLUPart) or self._is_leaf(module_qualified_name)
        return opaque or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.owners[node] = tuple(self.stack)
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self.path_of_module(m)
        self.times[path] += 1
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        self.arguments[path] = (args, kwargs)
        self.stack.append(path)
        result = super().call_module(m, forward, args, kwargs)
        self.stack.pop()  # left in place by a failure, so that the error can name where it happened
        return result


def fixed_arguments(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The named arguments of module.forward that this call gives plain values (or leaves at their defaults)."""
    parameters = inspect.signature(module.forward).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = dict(zip([n for n, p in parameters.items() if p.kind not in variadic], args)) | dict(kwargs)
    fixed = {}
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        if parameter.kind in variadic or value is inspect.Parameter.empty:
            continue
        if value is None or isinstance(value, bool | int | float | str):
            fixed[name] = value
    return fixed


@contextmanager
def trace_errors(tracer: SiteTracer, model: nn.Module) -> Iterator[None]:
    """Turn whatever the model raised while being traced into a TraceError that names the place and the ways out."""
    try:
        yield
    except _TRACE_FAILURES as error:
        path = tracer.stack[-1]
        owner = f"{path!r} ({type(model.get_submodule(path)).__name__})" if path else type(model).__name__
        raise TraceError(
            f"torch.fx cannot follow the model in {owner}{_source_line(error)}: {error}. Ways out: rewrite that line so"
            " that no Python decision depends on a tensor's values; or leave that module alone with"
            f" select=lambda name: not name.startswith({path!r}); or put autorep.replacement.ActivationSite modules"
            " where the activations are, then nothing is traced"
        ) from error


def _trace_whole(
    model: nn.Module, inputs: tuple[Tensor, ...], select: Callable[[str], bool] | None
) -> tuple[fx.Graph, SiteTracer]:
    left_alone: set[str] = set()
    while True:
        tracer = SiteTracer(left_alone.__contains__)
        try:
            with trace_errors(tracer, model):
                return tracer.trace(model, fixed_arguments(model, inputs, {})), tracer
        except TraceError:
            # A module that the filter excludes need not be traceable; the innermost excluded one becomes opaque.
            excluded = [p for p in tracer.stack[1:] if select is not None and not select(f"{p}.relu")]
            if not excluded:
                raise
            left_alone.add(excluded[-1])


def _shapes_of(
    model: nn.Module, graph: fx.Graph, inputs: tuple[Tensor, ...], calls: Sequence[fx.Node]
) -> dict[fx.Node, tuple[int, ...]]:
    shapes: dict[fx.Node, tuple[int, ...]] = {}
    wanted = set(calls)

    class Recorder(fx.Interpreter):
        """Runs the graph and notes the shapes at the call sites."""

        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if n in wanted:
                shapes[n] = tuple(result.shape[1:])
            return result

    with torch.no_grad():
        Recorder(fx.GraphModule(model, graph)).run(*(x.clone() for x in inputs))
    return shapes


def _name_sites(
    model: nn.Module,
    tracer: SiteTracer,
    calls: Sequence[fx.Node],
    shapes: Mapping[fx.Node, tuple[int, ...]],
    modules: Mapping[str, nn.Module],
    kinds: Sequence[str],
    root_arguments: Mapping[str, Any],
) -> SiteMap:
    times = tracer.times
    taken: set[str] = set()
    positions: dict[str, int] = {}
    inlined: set[str] = set()
    sites: list[CallSite] = []
    for node in calls:
        found = is_activation_call(node, modules, kinds)
        assert found is not None
        kind, arguments, in_place = found
        stack = tracer.owners[node]
        inlined.update(path for path in stack[1:] if times[path] > 1)
        owner = next(path for path in reversed(stack) if path == "" or times[path] == 1)
        position = positions.get(owner, 0)
        positions[owner] = position + 1
        path = str(node.target) if node.op == "call_module" else None
        by_position = bool(node.args)  # as whoever watches a site expects
        if path is not None and times[path] == 1 and by_position and not (in_place and _read_later(node)):
            sites.append(CallSite(path, kind, shapes[node], None, -1, arguments))
            taken.add(path)
            continue
        base = _relative(path, owner) if path is not None else kind
        prefix = f"{owner}." if owner else ""
        name = _free_name(model, prefix, base, path, taken)
        taken.add(name)
        sites.append(CallSite(name, kind, shapes[node], owner, position, arguments))
    owners = {site.owner for site in sites if site.owner}
    fixed = {path: fixed_arguments(modules[path], *tracer.arguments[path]) for path in owners}
    return SiteMap(tuple(sites), frozenset(inlined), {"": root_arguments, **fixed})


def _free_name(model: nn.Module, prefix: str, base: str, path: str | None, taken: set[str]) -> str:
    """prefix + base, numbered from 2 where that is taken; a called module's own path is free for its first call."""
    number = 1
    while True:
        name = prefix + (base if number == 1 else f"{base}_{number}")
        if name not in taken and (name == path or not _has_attribute(model, name)):
            return name
        number += 1


def _has_attribute(model: nn.Module, dotted: str) -> bool:
    parent, _, leaf = dotted.rpartition(".")
    return hasattr(model.get_submodule(parent), leaf)


def _relative(path: str, owner: str) -> str:
    inside = path.removeprefix(f"{owner}.") if owner else path
    return inside.replace(".", "_")


def _read_later(node: fx.Node) -> bool:
    """Whether something reads the input of this in-place call again after it was overwritten."""
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and any(user > node for user in source.users)


def _marked_sites(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[CallSite]:
    names = {module: name for name, module in model.named_modules() if isinstance(module, ActivationSite)}
    found: list[CallSite] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, ActivationSite)
        arguments = ACTIVATIONS[module.kind].defaults
        found.append(CallSite(names[module], module.kind, tuple(output.shape[1:]), None, -1, arguments))

    handles = [module.register_forward_hook(record) for module in names]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    called = [site.name for site in found]
    for name in names.values():
        if called.count(name) != 1:
            raise TraceError(
                f"ActivationSite {name!r} was called {called.count(name)} times on the example input; each must be"
                " called exactly once: use one ActivationSite per place"
            )
    return found


def _source_line(error: BaseException) -> str:
    """', file:line: code' of the innermost frame of the user's own code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}torch{os.sep}" not in f.filename]
    if not frames or frames[-1].filename == __file__:
        return ""
    return f", {frames[-1].filename}:{frames[-1].lineno}: `{frames[-1].line}`"
