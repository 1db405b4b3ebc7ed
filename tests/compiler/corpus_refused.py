"""The corpus of styles: what has no private form, or no one answer, and must be refused by name."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

REFUSED: dict[str, tuple[str, Callable]] = {}  # what the refusal must say


def refused(match: str) -> Callable:
    def register(forward: Callable) -> Callable:
        REFUSED[forward.__name__] = (match, forward)
        return forward

    return register


@refused("mean over everything|over the batch")
def mean_over_everything(m, x):
    return m.stem(x) - m.stem(x).mean()


@refused("a cast to torch.int")
def integer_cast(m, x):
    return m.stem((x * 4).int().float())


@refused("comparison")
def threshold_by_comparison(m, x):
    y = m.stem(x)
    return torch.where(y > 0, y, torch.zeros_like(y))


@refused("GroupNorm|group_norm|statistics of the image")
def group_norm(m, x):
    return F.group_norm(m.stem(x), 2)


@refused("return logits")
def softmax_at_the_end(m, x):
    return F.softmax(m.fc(m.stem(x).mean((2, 3))), 1)


@refused("a plain number read off computed values")
def number_read_off_a_tensor(m, x):
    return m.stem(x) * x.mean().item()


@refused("a plain number read off computed values")
def number_made_a_tensor_again(m, x):
    y = m.stem(x)
    return y * torch.tensor(y.flatten()[:1].tolist())


@refused("a plain number read off|comparison")
def elements_chosen_by_value(m, x):
    y = m.stem(x)
    return y * torch.masked_select(y, y > 0).sum()


@refused("autocast")
def lower_precision_inside(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m.stem(x)
    return y.float()


@refused("random numbers")
def noise_in_forward(m, x):
    return m.stem(x) + torch.randn(10)


@refused("draws random numbers .Python's random.")
def layers_left_out_by_chance(m, x):
    y = m.stem(x)
    return y if random.random() < 0.99 else m.a(y)


@refused("draws random numbers .numpy.random.")
def layers_left_out_by_chance_of_numpy(m, x):
    y = m.stem(x)
    return y if np.random.rand() < 0.99 else m.a(y)  # noqa: NPY002  # as people write it


@refused("clamp between nan and")
def clamp_by_what_is_no_number(m, x):
    return m.stem(x).clamp(min=torch.nan, max=1.0)


@refused("division by a computed value")
def division_by_a_norm(m, x):
    y = m.stem(x)
    return y / (y.abs().sum((1, 2, 3), keepdim=True) + 1)


@refused("matrix product")
def attention(m, x):
    y = m.stem(x).flatten(2)
    return (y @ y.transpose(1, 2)).mean(2)[:, :4]


@refused("batch")
def images_mixed(m, x):
    return m.stem(x) + m.stem(x.flip(0))


@refused("dropout with training=True")
def dropout_always(m, x):
    return F.dropout(m.stem(x), 0.5, training=True)


@refused("values of a tensor")
def decision_on_data(m, x):
    return m.stem(x) if x.sum() > 0 else m.a(m.stem(x))


@refused("returns as '1' does not depend on its input")
def two_answers_one_constant(m, x):
    return m.fc(m.stem(x).mean((2, 3))), m.scale


@refused("max_unpool2d.*reads positions of maxima")
def positions_of_maxima(m, x):
    y, where = F.max_pool2d(m.relu(m.stem(x)), 2, return_indices=True)
    return F.max_unpool2d(y, where, 2)


@refused("returns as '1' is positions of maxima")
def positions_returned(m, x):
    y, where = m.stem(x).max(1)
    return y.flatten(1), where


@refused("cond.*a decision on computed values")
def conditional_operator(m, x):
    y = m.stem(x)
    return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t + 1, (y,))


@refused("a jump from 20.* to 0.1")
def threshold_with_a_jump(m, x):
    return F.threshold(m.stem(x), 0.1, 20.0)


@refused("batch norm with batch statistics")
def batch_statistics(m, x):
    return F.batch_norm(m.stem(x), None, None, training=True)


@refused("compile with the answer `class`")
def class_as_the_answer(m, x):
    return m.fc(m.stem(x).mean((2, 3))).argmax(1, keepdim=True)


@refused("a function without a private form")
def sigmoid_by_hand(m, x):
    return 1 / (1 + torch.exp(-m.stem(x)))


@refused("other than of one computed value and one constant")
def gram_matrix(m, x):
    y = m.stem(x).flatten(2)
    return torch.einsum("ncp,ndp->ncd", y, y).mean(2)
