"""Small networks in the styles people write: in place, aliased, functional, reused, keyword calls, hooks, moved about.

Each case is a forward; `Styles` gives it layers. `CASES` must compile and be right; those that only move elements about
are in `corpus_moved`, what must be refused by name in `corpus_refused`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

CASES: dict[str, Callable] = {}


def case(forward: Callable) -> Callable:
    CASES[forward.__name__] = forward
    return forward


class Styles(nn.Module):
    """Layers for any case: 3×10×10 images, 6 channels inside, 4 classes."""

    def __init__(self, forward: Callable) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.thin, self.wide = nn.Conv2d(3, 3, 1), nn.Conv2d(12, 6, 1)
        self.norm, self.relu, self.inplace = nn.BatchNorm2d(6), nn.ReLU(), nn.ReLU(inplace=True)
        self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.rand(1, 6, 1, 1) + 0.5)
        self.gate, self.up = nn.Linear(6, 6), nn.ConvTranspose2d(6, 6, 2, 2)
        self.line, self.fc = nn.Conv1d(6, 6, 3, padding=1), nn.Linear(6, 4)
        self.act = nn.Sequential(nn.PReLU(6, 0.3))
        self.register_buffer("order", torch.tensor([5, 0, 3, 1, 4, 2]))
        self._case = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._case(self, x)
        return y if isinstance(y, tuple) or y.dim() == 2 else self.fc(y.mean((2, 3)))


# in place ------------------------------------------------------------------------------------------------


@case
def inplace_relu_before_a_skip(m, x):
    y = m.stem(x)
    return m.a(m.inplace(y)) + y


@case
def xception_style_relu_first_in_block(m, x):
    y = m.stem(x)
    skip = m.b(y)
    return m.a(m.inplace(y)) + skip + y


@case
def relu_method_in_place(m, x):
    y = m.stem(x)
    y.relu_()
    return y + m.a(y)


@case
def iadd_on_an_alias(m, x):
    y = m.stem(x)
    z = y
    z += m.a(y)
    return m.b(y) + z


@case
def imul_by_a_number(m, x):
    y = m.stem(x)
    z = y
    y *= 0.5
    return y + m.relu(z)


@case
def imul_by_a_parameter(m, x):
    y = m.stem(x)
    y *= m.scale
    return m.relu(y)


@case
def clamp_in_place(m, x):
    y = m.stem(x)
    y.clamp_(-0.1, 0.4)
    return m.a(y)


@case
def clamp_without_and_with_crossed_bounds(m, x):
    y = m.stem(x)
    return y.clamp(-torch.inf, 0.3) + y.clamp(0.1, torch.inf) + y.clamp(-torch.inf, torch.inf) + y.clamp(0.5, -0.5)


@case
def channels_that_vanish_beside_others(m, x):
    y = m.stem(x)
    for number, channel in enumerate(y.unbind(1)):
        channel.mul_(0.5 * number)
    return torch.cat([y, 1e-9 * m.a(y)], 1)[:, 1:7]


@case
def branches_that_start_at_nothing(m, x):
    y = m.stem(x)
    return y + 0.0 * m.relu(m.a(y)) + m.relu(0.0 * m.relu(y))


@case
def add_in_place_with_alpha(m, x):
    y = m.stem(x)
    z = m.a(y)
    z.add_(y, alpha=0.3)
    return F.relu(z, inplace=True) + z


@case
def in_place_through_a_view(m, x):
    y = m.stem(x)
    flat = y.view(y.size(0), 6, -1)
    flat.mul_(2).relu_()
    return y


@case
def in_place_on_a_slice(m, x):
    y = m.stem(x)
    y[:, :3].relu_()
    y[:, 3:] += 1
    return m.a(y)


@case
def assignment_to_channels(m, x):
    y = m.stem(x).clone()
    y[:, 0] = 0
    y[:, 1:3] = m.stem(x)[:, 3:5]
    return y


@case
def constants_set_into_a_slice(m, x):
    y = m.stem(x)
    y[:, 1:3].fill_(0.25)
    y[:, :, 2:4].zero_()
    return torch.cat([m.relu(y), m.scale.expand(len(x), -1, 10, 10)], 1)[:, 2:8]


@case
def in_place_on_the_input(m, x):
    x = x.clone()
    x.sub_(0.5).div_(0.25)
    return m.relu(m.stem(x))


@case
def in_place_sigmoid_gate(m, x):
    y = m.relu(m.stem(x))
    return y.mul_(torch.sigmoid_(m.gate(y.mean((2, 3))))[:, :, None, None])


@case
def copy_into(m, x):
    y, z = m.stem(x), m.a(m.stem(x))
    y.copy_(z)
    return m.relu(y)


@case
def input_changed_in_place(m, x):
    x.mul_(0.5).add_(0.1)
    return m.relu(m.stem(x)) + x.mean((1, 2, 3), keepdim=True)


@case
def set_by_a_list_of_channels(m, x):
    y = m.relu(m.stem(x))
    y[:, [0, 3]] = y[:, [1, 2]] * 2
    y[:, :, 0, 0] = 0.5
    return m.a(y)


@case
def in_place_on_a_moved_view(m, x):
    y = m.stem(x)
    y[:, :, ::3].neg_()
    y.transpose(0, 1)[2].zero_()
    y.permute(0, 2, 3, 1)[..., -1] += 2
    first, second = y.chunk(2, 1)
    first.add_(second.relu())
    second.add_(first.relu())
    return y


@case
def out_argument(m, x):
    y = m.stem(x)
    z = torch.empty_like(y)
    torch.add(y, m.a(y), out=z)
    return z


@case
def in_place_through_a_flat_view_of_the_whole_batch(m, x):
    y = m.stem(x)
    y.view(-1).sub_(0.1).relu_()
    return y


# functional and reused -----------------------------------------------------------------------------------


@case
def everything_functional(m, x):
    y = F.conv2d(x, m.stem.weight, m.stem.bias, padding=1)
    y = F.batch_norm(y, m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias, False)
    return F.linear(F.relu(y).mean((2, 3)), m.fc.weight, m.fc.bias)


@case
def reused_convolution(m, x):
    y = m.relu(m.a(m.stem(x)))
    return m.relu(m.a(y)) + m.relu(m.a(m.a(y)))


@case
def reused_batch_norm(m, x):
    return m.relu(m.norm(m.a(m.relu(m.norm(m.stem(x))))))


@case
def keyword_calls(m, x):
    y = m.relu(input=m.stem(input=x))
    return F.max_pool2d(input=y, kernel_size=3, stride=2, ceil_mode=True)


@case
def dropout_by_flag(m, x):
    y = F.dropout(m.relu(m.stem(x)), 0.3, training=m.training)
    return m.fc(m.drop(y.mean((2, 3)).view(x.size(0), -1)))


@case
def scale_and_shift_read_twice(m, x):
    y = m.norm(m.stem(x))
    return m.relu(y) + m.a(y)


@case
def shape_dependent_decision(m, x):
    y = m.stem(x)
    assert y.shape[2:] == (10, 10), "square images"
    if y.shape[-1] > 4 and y.size(1) == 6:
        y = F.avg_pool2d(y, 2)
    return m.relu(y)


@case
def stochastic_depth_in_evaluation(m, x):
    y = m.relu(m.stem(x))
    if m.training and torch.rand(1) < 0.5:
        return y
    return y + m.a(y)


@case
def optional_argument(m, x, mask=None):
    y = m.relu(m.stem(x))
    return y if mask is None else y * mask


@case
def lambda_and_loop(m, x):
    y = m.stem(x)
    for block in (m.a, m.b, lambda t: t * 0.5):
        y = m.relu(block(y))
    return y


@case
def hook_style_function(m, x):
    y = m.relu(m.stem(x))
    return (lambda output: output * 2 + 1)(y)


@case
def norm_by_hand(m, x):
    y = m.stem(x)
    return m.relu((y - m.norm.running_mean[None, :, None, None]) / m.norm.running_var.sqrt()[None, :, None, None])


@case
def matrix_product_with_a_parameter(m, x):
    return m.relu(m.stem(x)).mean((2, 3)) @ m.fc.weight.t() + m.fc.bias


@case
def weights_made_in_forward(m, x):
    w = m.a.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
    return F.conv2d(m.relu(m.stem(x)), 0.2 * w, padding=1)


@case
def einsum_with_a_parameter(m, x):
    y = torch.einsum("nchw,dc->ndhw", m.relu(m.stem(x)), m.gate.weight)
    return torch.einsum("kc,nc->nk", m.fc.weight, torch.einsum("nchw,wh->nc", y, torch.ones(10, 10) / 100))


@case
def weights_in_another_memory_order(m, x):
    y = F.conv2d(m.relu(m.stem(x)), m.a.weight.contiguous(memory_format=torch.channels_last), padding=1)
    return F.linear(y.mean((2, 3)), m.fc.weight.t().contiguous().t())


@case
def constants_like_a_computed_value(m, x):
    y = m.stem(x)
    y = y * torch.full_like(y, 0.5) + torch.ones_like(y) + y.new_ones(6, 1, 1) + y.new_full((1,), 0.25)
    return m.relu(y).type_as(m.scale)


class MemoryEfficientSwish(torch.autograd.Function):
    """As public EfficientNets have it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)


@case
def autograd_function(m, x):
    return MemoryEfficientSwish.apply(m.stem(x))


@case
def constant_matrix_on_the_left(m, x):
    y = m.relu(m.stem(x)).mean(3)
    return torch.matmul(m.fc.weight, y).mean(2)


@case
def detach_and_contiguous(m, x):
    return m.relu(m.stem(x).detach().contiguous().to(torch.float32)).clone()


# arithmetic and pooling ----------------------------------------------------------------------------------


@case
def constants_on_the_left(m, x):
    return 1 - m.relu(0.5 - m.stem(x)) * 2


@case
def negation_and_difference(m, x):
    y = m.stem(x)
    return -m.relu(y) - m.a(y)


@case
def positions_added(m, x):
    return m.relu(m.stem(x) + torch.linspace(-1, 1, 100).view(10, 10))


@case
def highway_gate(m, x):
    y = m.stem(x)
    gate = torch.sigmoid(m.a(y))
    return gate * m.relu(m.b(y)) + (1 - gate) * y


@case
def maxout_and_absolute_value(m, x):
    return torch.maximum(m.stem(x), m.a(m.stem(x))) + m.stem(x).abs()


@case
def larger_and_smaller_of_two(m, x):
    y, z = m.stem(x).chunk(2, 1)
    return torch.cat([torch.max(y, z), torch.min(z, y)], 1) + torch.max(m.a(m.stem(x)), torch.zeros(6, 1, 1))


@case
def square_and_power(m, x):
    y = m.stem(x)
    return y * y + y**2 + y.square()


@case
def every_average_pool(m, x):
    y = m.relu(m.stem(x))
    one = F.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    return one + F.avg_pool2d(y, 3, 2, 1, ceil_mode=True) + F.adaptive_avg_pool2d(y, one.shape[-2:])


@case
def every_maximum_pool(m, x):
    y = m.relu(m.stem(x))
    return F.max_pool2d(y, 3, 2, ceil_mode=True)[:, :, :4, :4] + F.adaptive_max_pool2d(y, 4) + y.amax((2, 3), True)


@case
def dilated_maximum_pool(m, x):
    return F.max_pool2d(m.stem(x), 2, 1, dilation=3)


@case
def interpolations_of_two_values(m, x):
    y, z = m.stem(x), m.a(m.stem(x))
    return torch.lerp(y, z, 0.3) + torch.addcmul(y, y, z, value=0.5) + y.amin((2, 3), True) + y.min(1, True)[0]


@case
def maxima_whose_positions_nobody_reads(m, x):
    y, _ = F.max_pool2d(m.stem(x), 2, return_indices=True)
    return y + y.max(1, keepdim=True).values


@case
def sums_over_space(m, x):
    return m.relu(m.stem(x)).sum((2, 3))[:, :4] / 100 + m.stem(x).mean(-1).mean(-1)[:, 2:]


@case
def sum_of_rows(m, x):
    y = m.relu(m.stem(x))
    return m.fc(y.sum(2).mean(2))


# activations ---------------------------------------------------------------------------------------------


@case
def smooth_activations(m, x):
    y = m.stem(x)
    return F.silu(y) + F.gelu(y) + F.mish(y) + F.softplus(y)


@case
def bounded_activations(m, x):
    y = m.stem(x) * 3
    return torch.tanh(y) + F.hardsigmoid(y) + F.relu6(y) + F.hardtanh(y, -0.5, 0.7) + y.clamp(max=0.2)


@case
def one_sided_activations(m, x):
    y = m.stem(x)
    return F.leaky_relu(y, 0.2) + F.elu(y, 0.5) + F.celu(y) + F.selu(y) + m.act(y)


@case
def rarer_activations(m, x):
    y = m.stem(x)
    return F.logsigmoid(y) + F.rrelu(y) + F.threshold(y, 0.2, 0.2) + F.glu(torch.cat([y, m.a(y)], 1), 1)


@case
def instance_norm_with_running_statistics(m, x):
    return F.instance_norm(m.stem(x), m.norm.running_mean, m.norm.running_var, use_input_stats=False)


@case
def hardswish_in_place(m, x):
    y = m.stem(x)
    return F.hardswish(y, inplace=True) + y
