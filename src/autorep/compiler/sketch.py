"""A network that is counted with different activations without being traced again; its answers mean nothing."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import nn

from autorep.compiler.compile import lowered, traced_draft
from autorep.compiler.draft import Draft
from autorep.compiler.ranges import assume
from autorep.compiler.widths import assign_widths
from autorep.errors import UnsupportedOpError
from autorep.program.ir import Activation, Affine, Program

SUFFIX = ".masked_activation"  # of an operation's name behind its site's


class Sketch:
    """A replaced network, traced."""

    def __init__(self, model: nn.Module, example: torch.Tensor, largest: float = 16.0) -> None:
        self._draft, self._largest = traced_draft(model, example), largest
        self.sites = {
            op.name.removesuffix(SUFFIX): op.name for op in self._draft.ops.values() if isinstance(op, Activation)
        }

    def program(self, kept: Mapping[str, np.ndarray], lines: Collection[str] = ()) -> Program:
        """The program in which these sites keep ReLUs at these positions and are quadratics elsewhere, or are lines."""
        if unknown := sorted(set(kept) - set(self.sites)):
            raise UnsupportedOpError(f"{', '.join(unknown)}: no activation of that name was traced")
        draft = Draft(dict(self._draft.ops), copy.copy(self._draft.parameters))
        for site, positions in kept.items():
            op = draft.ops[self.sites[site]]
            assert isinstance(op, Activation)
            some = np.full(op.shape[0], 0.5)
            if site in lines:
                for key in op.parameter_names:
                    draft.parameters.pop(f"{op.name}.{key}", None)
                common = {key: getattr(op, key) for key in ("name", "inputs", "shape")}
                draft.ops[op.name] = Affine(**common, kind="sum", bits=0, frac=0, weight_frac=0)
                draft.set_parameters(op.name, weight=some, bias=some)
            else:
                draft.ops[op.name] = dataclasses.replace(op, kept=np.asarray(positions, np.int64))
                if len(positions) < op.size:
                    draft.set_parameters(op.name, a=some, b=some, c=some)
        draft = lowered(draft)
        return Program(tuple(assign_widths(draft, assume(draft, self._largest), margin=4.0)), draft.parameters)
