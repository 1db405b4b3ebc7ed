"""The corpus of styles: elements moved about by views, slices, padding, repetition and shuffles."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.compiler.corpus import case


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
