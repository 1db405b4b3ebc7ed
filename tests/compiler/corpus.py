"""Small networks in the styles people write: in place, aliased, functional, reused, keyword calls, hooks, moved about.

Each case is a forward; `Styles` gives it layers. `CASES` must compile and be right, `REFUSED` must be refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

CASES: dict[str, Callable] = {}
REFUSED: dict[str, tuple[str, Callable]] = {}  # what the refusal must say


def case(forward: Callable) -> Callable:
    CASES[forward.__name__] = forward
    return forward


def refused(match: str) -> Callable:
    def register(forward: Callable) -> Callable:
        REFUSED[forward.__name__] = (match, forward)
        return forward

    return register


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


# moving elements -----------------------------------------------------------------------------------------


@case
def split_and_concatenate(m, x):
    left, right = m.relu(m.stem(x)).chunk(2, dim=1)
    return torch.cat([m.thin(right), left], dim=1)


@case
def split_with_sizes(m, x):
    one, two, three = m.relu(m.stem(x)).split([1, 2, 3], 1)
    return torch.cat((three, one, two), -3)


@case
def channel_shuffle(m, x):
    y = m.relu(m.stem(x))
    return m.a(y.view(y.size(0), 2, 3, 10, 10).transpose(1, 2).contiguous().view(y.size(0), -1, 10, 10))


@case
def shuffle_through_the_batch(m, x):
    y = m.relu(m.stem(x))
    y = y.reshape(y.shape[0] * 3, 2, 100).permute(1, 0, 2).reshape(2, -1, 3, 10, 10)
    return torch.cat([m.thin(y[0]), y[1]], 1)


@case
def index_of_channels(m, x):
    return m.relu(m.stem(x))[:, m.order] + m.stem(x)[:, [0, 0, 1, 1, 2, 2]]


@case
def strided_slices(m, x):
    y = m.relu(m.stem(x))
    return torch.cat([y[..., ::2, ::2], y[..., 1::2, 1::2]], 1)[:, ::2]


@case
def focus_stem(m, x):
    y = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
    return m.relu(m.wide(y))


@case
def option_a_shortcut(m, x):
    y = m.relu(m.stem(x))
    return torch.relu(F.pad(m.thin(y[:, :3])[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2)) + F.avg_pool2d(m.a(y), 2))


@case
def pad_as_last_operation(m, x):
    return F.pad(m.relu(m.stem(x)), (1, 2, 0, 1)).flatten(1)


@case
def pad_before_a_pool(m, x):
    return F.max_pool2d(F.pad(m.relu(m.stem(x)), (0, 1, 0, 1)), 3, 2)


@case
def pad_with_a_number(m, x):
    return m.a(F.pad(m.relu(m.stem(x)), (1, 1, 2, 0), value=0.5))


@case
def reflection_padding(m, x):
    return m.a(F.pad(m.relu(m.stem(x)), (1, 2, 1, 0), mode="reflect"))


@case
def same_padding_of_an_even_dilated_kernel(m, x):
    return F.conv2d(m.relu(m.stem(x)), m.a.weight[:, :, :2, :2], padding="same", dilation=3)


@case
def expand_before_a_convolution(m, x):
    y = m.relu(m.stem(x)).mean((2, 3), keepdim=True)
    return m.a(y.expand(-1, -1, 5, 5))


@case
def expand_a_gate(m, x):
    y = m.relu(m.stem(x))
    return y * torch.sigmoid(m.gate(y.mean((2, 3)))).view(y.size(0), 6, 1, 1).expand_as(y)


@case
def spatial_attention(m, x):
    y = m.relu(m.stem(x))
    return y * torch.sigmoid(y.mean(1, keepdim=True) + y.max(1, keepdim=True)[0])


@case
def nearest_upsampling(m, x):
    return m.a(F.interpolate(m.relu(m.stem(x)), scale_factor=2)) + m.up(m.stem(x))


@case
def pixel_shuffle(m, x):
    return m.thin(F.pixel_shuffle(torch.cat([m.relu(m.stem(x))] * 2, 1), 2)).mean((2, 3)).repeat(1, 2)[:, :4]


@case
def channels_last_linear(m, x):
    y = m.relu(m.stem(x)).permute(0, 2, 3, 1)
    return m.gate(y).permute(0, 3, 1, 2)


@case
def squeeze_and_flatten(m, x):
    return m.fc(F.adaptive_avg_pool2d(m.relu(m.stem(x)), 1).squeeze(-1).squeeze(-1))


@case
def one_dimensional_convolution(m, x):
    return F.avg_pool1d(m.line(m.relu(m.stem(x)).flatten(2)), 3, 2).mean(2)[:, :4]


@case
def choice_by_a_constant_mask(m, x):
    y = m.stem(x)
    odd = torch.arange(6).view(1, 6, 1, 1) % 2 == 1
    return torch.where(odd, y, m.relu(y)).masked_fill(torch.eye(10, dtype=torch.bool), 0.3) + torch.where(odd, y, 2.0)


@case
def coordinates_as_channels(m, x):
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 10), torch.linspace(-1, 1, 10), indexing="ij")
    grid = torch.stack([rows, columns]).expand(len(x), -1, -1, -1)
    return m.relu(F.conv2d(torch.cat([m.stem(x), grid], 1), m.wide.weight.repeat(1, 1, 3, 3)[:, :8], padding=1))


@case
def class_token_and_positions(m, x):
    tokens = torch.cat([m.scale.view(1, 1, 6).expand(len(x), -1, -1), m.stem(x).flatten(2).transpose(1, 2)], 1)
    tokens = tokens + torch.linspace(-1, 1, 101)[:, None]
    return m.fc(F.conv1d(tokens, torch.eye(101)[:, :, None] + 0.01)[:, 0])


@case
def rows_cut_in_pieces(m, x):
    y = m.relu(m.stem(x))
    return y.unfold(2, 2, 2).amax(-1) + torch.tril(y)[:, :, :5].fliplr()


@case
def gathered_and_scattered_by_constants(m, x):
    y = m.relu(m.stem(x))
    order = m.order.view(1, 6, 1, 1).expand(len(x), 6, 10, 10)
    halves = y.hsplit(2)
    return torch.zeros_like(y).scatter(1, order, y) + y.gather(1, order) + torch.hstack([halves[1], halves[0]])


@case
def transposed_convolution_along_a_line(m, x):
    y = F.conv_transpose1d(m.relu(m.stem(x)).flatten(2), m.line.weight, stride=2, padding=1, output_padding=1)
    return y.mean(2)[:, :4]


@case
def stack_and_unbind(m, x):
    y = torch.stack([m.stem(x), m.a(m.stem(x))], dim=1)
    return sum(m.relu(part) for part in y.unbind(1))


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


# refused -------------------------------------------------------------------------------------------------


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
