"""Put modules at call sites: swap submodules where that is enough, rewrite a forward where it is not.

Only modules that call a functional activation, or one activation module several times, get a new forward: a subclass
of their own class, generated from their torch.fx graph with the calls exchanged. The module tree, its parameter names
and hooks stay as they are, so deepcopy, torch.save, state_dict and strict loading work as before.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, SupportsIndex

from torch import Tensor, fx, nn

from autorep.errors import TraceError
from autorep.replacement.kept import KEPT
from autorep.replacement.sites import CallSite, SiteMap, SiteTracer, is_activation_call, trace_errors


@dataclass(frozen=True)
class _Code:
    """A forward as torch.fx writes it down: source text, and what the names in it mean (modules by their own name)."""

    source: str
    names: Mapping[str, Any]
    modules: Mapping[str, str]

    @classmethod
    def of(cls, graph: fx.Graph) -> _Code:
        code = graph.python_code("self")
        modules = {name: value.__name__ for name, value in code.globals.items() if isinstance(value, ModuleType)}
        names = {name: value for name, value in code.globals.items() if name not in modules}
        return cls(code.src, names, modules)

    def function(self) -> Callable[..., Any]:
        """The forward itself."""
        scope: dict[str, Any] = {name: importlib.import_module(module) for name, module in self.modules.items()}
        scope |= self.names
        file = f"<forward {hashlib.sha256(self.source.encode()).hexdigest()[:12]}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)  # for tracebacks
        exec(compile(self.source, file, "exec", dont_inherit=True), scope)
        return scope["forward"]


@dataclass(frozen=True)
class OwnerForward:
    """New forward of one owner in evaluation and in training, and tensors that it needs as attributes."""

    evaluating: _Code
    training: _Code
    constants: Mapping[str, Tensor]


def build_forwards(
    model: nn.Module, found: SiteMap, chosen: Mapping[str, nn.Module], kinds: Sequence[str]
) -> dict[str, OwnerForward]:
    """New forwards for the owners of the chosen sites (name -> module to stand there).

    `model` must be a private copy: the modules are put into it.
    """
    owners = list(dict.fromkeys(s.owner for s in found.sites if s.owner is not None and s.name in chosen))
    forwards: dict[str, OwnerForward] = {}
    for owner in owners:
        sites = [site for site in found.sites if site.owner == owner]
        module = model.get_submodule(owner)
        before = set(vars(module))
        graphs = {mode: _owner_graph(model, owner, found, mode) for mode in (False, True)}
        constants = {name: vars(module)[name] for name in set(vars(module)) - before}
        for graph in graphs.values():
            _exchange_calls(graph, module, owner, sites, chosen, kinds)
        for site in sites:
            if site.name in chosen:
                set_submodule(model, site.name, chosen[site.name])
        evaluating, training = (_Code.of(graph) for graph in graphs.values())
        forwards[owner] = OwnerForward(evaluating, training, constants)
    return forwards


def install_(model: nn.Module, chosen: Mapping[str, nn.Module], forwards: Mapping[str, OwnerForward]) -> None:
    """Put the chosen modules and the new forwards into the model."""
    for name, module in chosen.items():
        set_submodule(model, name, module)
    for owner, forward in forwards.items():
        module = model.get_submodule(owner)
        for name, constant in forward.constants.items():
            setattr(module, name, constant)
        module.__class__ = _with_forward(type(module), forward)


def set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    """Register a module at a dotted path; a numbered child of a Sequential keeps its place."""
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module
    module.train(model.training)


def _with_forward(cls: type[nn.Module], forward: OwnerForward) -> type[nn.Module]:
    """A subclass of `cls` that differs in forward only, and is pickled as `cls` and the code of that forward."""
    evaluating = chosen = forward.evaluating.function()
    if forward.training.source != forward.evaluating.source:
        training = forward.training.function()

        def chosen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return (training if self.training else evaluating)(self, *args, **kwargs)

    def reduced(self: nn.Module, protocol: SupportsIndex) -> Any:
        found: tuple[Any, ...] = cls.__reduce_ex__(self, protocol)  # type: ignore[assignment]  # a name it may be too
        function, arguments, *state = found
        if arguments != (type(self),):
            return function, arguments, *state  # the class pickles itself in a way of its own
        return _remade, (cls, forward.evaluating, forward.training), *state

    namespace = {
        "forward": chosen,
        "__reduce_ex__": reduced,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    return type(cls.__name__, (cls,), namespace)


def _remade(cls: type[nn.Module], evaluating: _Code, training: _Code) -> nn.Module:
    """An empty instance of a class with a new forward; its state follows, constants included."""
    new = _with_forward(cls, OwnerForward(evaluating, training, {}))
    return new.__new__(new)


def _owner_graph(model: nn.Module, owner: str, found: SiteMap, training: bool) -> fx.Graph:
    """The owner's forward as a graph, its submodules opaque except those that must be inlined."""
    prefix = f"{owner}." if owner else ""
    module = model.get_submodule(owner)
    was_training = {m: m.training for m in module.modules()}
    module.train(training)
    tracer = SiteTracer(lambda path: prefix + path not in found.inlined)
    with trace_errors(tracer, module):
        graph = tracer.trace(module, dict(found.fixed_arguments.get(owner, {})))
    for inner, mode in was_training.items():
        inner.training = mode
    return graph


def _exchange_calls(
    graph: fx.Graph,
    module: nn.Module,
    owner: str,
    sites: Sequence[CallSite],
    chosen: Mapping[str, nn.Module],
    kinds: Sequence[str],
) -> None:
    modules = dict(module.named_modules(remove_duplicate=False))
    calls = [node for node in graph.nodes if is_activation_call(node, modules, kinds)]
    prefix = f"{owner}." if owner else ""
    by_position = {site.position: site for site in sites}
    if any(p >= len(calls) or _kind(calls[p], modules, kinds) != s.kind for p, s in by_position.items()):
        raise TraceError(
            f"{owner or type(module).__name__!r} calls {len(calls)} activations when traced alone, but other ones"
            " within the whole model: its forward depends on how it is called. Put ActivationSite modules there by hand"
        )
    for position, site in by_position.items():
        node = calls[position]
        source = node.args[0] if node.args else node.kwargs["input"]
        found = is_activation_call(node, modules, kinds)
        assert isinstance(source, fx.Node)
        assert found is not None
        with graph.inserting_after(node):
            if site.name in chosen:
                new = graph.call_module(site.name.removeprefix(prefix), (source,))
            else:
                new = graph.call_function(KEPT[site.kind], (source, *site.arguments))
        if found.in_place:
            # The call overwrote its input: whoever reads that input afterwards must see the result.
            source.replace_all_uses_with(new, delete_user_cb=new.__lt__)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _kind(node: fx.Node, modules: Mapping[str, nn.Module], kinds: Sequence[str]) -> str | None:
    found = is_activation_call(node, modules, kinds)
    return found.kind if found else None
