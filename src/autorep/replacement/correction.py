"""Correction without training: a replaced network is led back to its all-ReLU self by least squares, layer by layer.

Both networks walk through the same images side by side. Wherever the replaced one can be adjusted, it is, before the
walk goes on, so that later layers see what the corrected earlier ones give:

* a site's polynomials become the least-squares fit of what the all-ReLU network puts out at the replaced positions;
* a convolution or linear layer is moved so that what follows it (its batch norm, and a residual sum behind that) comes
  closest to the all-ReLU network's value there. The move is a ridge regression on the difference, so a layer whose
  inputs are still right stays as it is.

No gradients, one pass, a few hundred images without labels. (`fitting` has the fit of polynomials before any mask is
chosen.)
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from autorep.replacement.activation import MINIMUM_STD, MaskedActivation
from autorep.replacement.fitting import STEADY, fittable, solved
from autorep.replacement.moments import evaluating

RIDGE = 1e-2  # of the inputs' mean variance: how strongly weights are held where they are
SAMPLES = 30_000  # columns of a layer's regression, drawn at random from all images and positions
CHUNK = 1 << 17  # pixels of the images that are computed at a time


@torch.no_grad()
def correct_(model: nn.Module, images: Tensor, ridge: float = RIDGE, seed: int = 0) -> None:
    """Correct a replaced model whose masks are chosen, in place; `images` are normalised, any labels unknown."""
    with evaluating(model):
        graph = _Tracer().trace(model)
        reference = copy.deepcopy(model)
        for module in reference.modules():
            if isinstance(module, MaskedActivation):
                module.mask.fill_(1)
        _Walk(model, reference, graph, images, ridge, seed).run()


class _Tracer(fx.Tracer):
    """Sites and torch's own modules stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, MaskedActivation) or super().is_leaf_module(m, module_qualified_name)


class _Walk:
    """One pass through both networks; `pairs` holds (replaced, all-ReLU) values of the nodes still to be read."""

    def __init__(
        self, model: nn.Module, reference: nn.Module, graph: fx.Graph, images: Tensor, ridge: float, seed: int
    ) -> None:
        self.networks = (model, reference)
        self.graph, self.images, self.ridge = graph, images, ridge
        self.generator = torch.Generator().manual_seed(seed)
        self.chunk = max(1, CHUNK // max(1, images[0, 0].numel()))
        self.pairs: dict[fx.Node, tuple[Any, Any]] = {}

    def run(self) -> None:
        last_reader = {source: node for node in self.graph.nodes for source in node.all_input_nodes}
        for node in self.graph.nodes:
            if node.op == "output":
                return
            module = self._layer(node)
            if isinstance(module, MaskedActivation):
                self._fit_polynomial_(node, module)
            elif isinstance(module, nn.Conv2d | nn.Linear):
                self._fit_weights_(node, module)
            self.pairs[node] = (self._value(node, 0), self._value(node, 1))
            for source in node.all_input_nodes:
                if last_reader[source] is node:
                    del self.pairs[source]

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.networks[0].get_submodule(str(node.target)) if node.op == "call_module" else None

    def _layer(self, node: fx.Node) -> nn.Module | None:
        """The node's module; of a convolution inside a subclass of torch's, which is traced into, that subclass."""
        if node.op == "call_function" and node.target is torch.conv2d and isinstance(node.args[1], fx.Node):
            return self.networks[0].get_submodule(str(node.args[1].target).rpartition(".")[0])
        return self._module(node)

    def _value(self, node: fx.Node, which: int, known: dict[fx.Node, Any] | None = None) -> Any:
        """A node's value in one of the networks, computed in chunks of images."""
        if node.op == "placeholder":
            return self.images
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.networks[which])

        def inputs(part: slice) -> Callable[[fx.Node], Any]:
            def one(source: fx.Node) -> Any:
                value = known[source] if known and source in known else self.pairs[source][which]
                whole = source.op == "get_attr" or not isinstance(value, Tensor) or len(value) != len(self.images)
                return value if whole else value[part]

            return one

        chunks = []
        for start in range(0, len(self.images), self.chunk):
            of = inputs(slice(start, start + self.chunk))
            args, kwargs = fx.map_arg(node.args, of), fx.map_arg(node.kwargs, of)
            if node.op == "call_module":
                chunks.append(self.networks[which].get_submodule(str(node.target))(*args, **kwargs))
            elif node.op == "call_method":
                chunks.append(getattr(args[0], str(node.target))(*args[1:], **kwargs))
            else:
                assert callable(node.target)
                chunks.append(node.target(*args, **kwargs))
            if not isinstance(chunks[0], Tensor):
                return chunks[0]
        return torch.cat(chunks)

    # polynomials ----------------------------------------------------------------------------------------

    def _fit_polynomial_(self, node: fx.Node, site: MaskedActivation) -> None:
        """Per channel, the polynomial of the replaced network's input nearest to the all-ReLU network's output."""
        if bool(site.mask.all()) or not fittable(site):
            return
        pair = self.pairs[node.all_input_nodes[0]]
        weight = (1 - site.mask).double()  # replaced positions only
        count = weight.flatten(1).sum(1).mul(len(pair[0]))
        wide = (-1,) + (1,) * (pair[0].dim() - 2)

        def mean(values: Callable[[Tensor, Tensor], list[Tensor]]) -> Tensor:
            """Averages per channel, over images and replaced positions, of what `values` makes of (input, target)."""
            total = weight.new_zeros(())
            for z, target in zip(*(value.split(self.chunk) for value in pair)):
                sums = [(v * weight).transpose(0, 1).flatten(1).sum(1) for v in values(z.double(), site.keep(target))]
                total = total + torch.stack(sums, -1)
            return total / count.clamp_min(1)[:, None]

        centre = mean(lambda z, _: [z])[:, 0]
        deviation = mean(lambda z, _: [(z - centre.view(wide)).square()])[:, 0].sqrt()
        deviation = deviation.clamp_min(max(MINIMUM_STD, STEADY * float(deviation.median())))

        def products(z: Tensor, target: Tensor) -> list[Tensor]:
            scaled = (z - centre.view(wide)) / deviation.view(wide)
            basis = [torch.ones_like(scaled), scaled, scaled.square() - 1]
            return [one * other for one in basis for other in (*basis, target)]

        gram, moments = mean(products).unflatten(-1, (3, 4)).split((3, 1), -1)
        coefficients = solved(gram, moments[..., 0], deviation)
        used = count > 0
        site.mean[used], site.std[used] = centre[used].float(), deviation[used].float()
        site.coefficients[:, used] = coefficients[:, used]

    # weights --------------------------------------------------------------------------------------------

    def _fit_weights_(self, node: fx.Node, layer: nn.Conv2d | nn.Linear) -> None:
        """Ridge regression of the difference that is left behind the layer on the layer's own inputs."""
        difference, norm = self._difference(node)
        if difference is None:
            return
        x = self.pairs[node.all_input_nodes[0]][0]
        if isinstance(layer, nn.Linear):
            x, difference = x[:, :, None, None], difference[:, :, None, None]
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        intercept = norm is not None or layer.bias is not None
        columns, wanted = self._columns(x, difference, layer, groups)
        shift = columns.mean(1, keepdim=True) * intercept, wanted.mean(1, keepdim=True) * intercept
        columns, wanted = columns - shift[0], wanted - shift[1]
        gram = (columns.mT @ columns).double() / columns.shape[1]
        held = self.ridge * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-8)
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        move = torch.linalg.solve(gram + held[:, None, None] * eye, (columns.mT @ wanted).double() / columns.shape[1])
        offset = (shift[1] - shift[0] @ move.float()).reshape(-1)
        layer.weight += move.mT.reshape(layer.weight.shape).to(layer.weight.dtype)
        if norm is not None:
            assert norm.running_mean is not None
            norm.running_mean -= offset.to(norm.running_mean.dtype)
        elif layer.bias is not None:
            layer.bias += offset.to(layer.bias.dtype)

    def _difference(self, node: fx.Node) -> tuple[Tensor | None, nn.BatchNorm2d | None]:
        """What the layer's output lacks, seen from as far behind it as sums and a batch norm alone reach."""
        values = [self._value(node, which) for which in (0, 1)]
        scale: Tensor | None = None
        norm: nn.BatchNorm2d | None = None
        while len(node.users) == 1:
            after = next(iter(node.users))
            module = self._module(after)
            others = [source for source in after.all_input_nodes if source is not node]
            if isinstance(module, nn.BatchNorm2d) and norm is None and module.running_var is not None:
                norm = module
                scale = module.weight / (module.running_var + module.eps).sqrt()
            elif not (
                after.target in (operator.add, operator.iadd, torch.add) and all(o in self.pairs for o in others)
            ):
                break
            values = [self._value(after, which, {node: values[which]}) for which in (0, 1)]
            node = after
        difference = values[1] - values[0]
        if not bool(difference.any()):
            return None, None
        if scale is not None:
            difference = difference / torch.where(scale.abs() > 1e-3, scale, torch.inf).view(-1, 1, 1)
        return difference, norm

    def _columns(
        self, x: Tensor, difference: Tensor, layer: nn.Conv2d | nn.Linear, groups: int
    ) -> tuple[Tensor, Tensor]:
        """Random samples (groups, count, inputs of one output) and the differences (groups, count, outputs) there."""
        positions = difference.shape[2] * difference.shape[3]
        each = max(1, SAMPLES // len(x))
        columns, wanted = [], []
        for start in range(0, len(x), self.chunk):
            part, due = x[start : start + self.chunk], difference[start : start + self.chunk].flatten(2)
            if isinstance(layer, nn.Conv2d):
                geometry: dict[str, Any] = {
                    "dilation": layer.dilation,
                    "padding": layer.padding,
                    "stride": layer.stride,
                }
                patches = F.unfold(part, layer.kernel_size, **geometry)
            else:
                patches = part.flatten(2)
            chosen = torch.randint(positions, (len(part), 1, min(each, positions)), generator=self.generator).to(
                x.device
            )
            patches = patches.gather(2, chosen.expand(-1, patches.shape[1], -1))
            due = due.gather(2, chosen.expand(-1, due.shape[1], -1))
            columns.append(patches.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2))
            wanted.append(due.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2))
        return torch.cat(columns, 1), torch.cat(wanted, 1)
