"""Convolutions as products with columns of windows, which are never written out as a whole.

With x [n, c, h, w] and weights [o, c, i, j] the output y [n, o, p, q] and the gradients are

    y = W [o, cij] X [cij, npq]    W̄ = Ȳ [o, npq] X [cij, npq]ᵀ    x̄ = W' [c, oij] Ȳ' [oij, nhw]

where X are the windows of the padded x, W' the weights turned by half a circle, and Ȳ' the windows
of Ȳ with zeros around it and, for a stride, between its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from photinus.devices.opencl.engine import (
    Axis,
    NoKernelError,
    OpenCLEngine,
    Operand,
    ProductShape,
    ints,
)

Pair = tuple[int, int]


class _Shape(NamedTuple):
    """Sizes by the letters above; pairs are of rows and columns."""

    n: int
    c: int
    o: int
    inputs: Pair
    window: Pair
    stride: Pair
    pad: Pair

    @property
    def outputs(self) -> Pair:
        sizes = zip(self.inputs, self.window, self.stride, self.pad, strict=True)
        height, width = ((x + 2 * pad - window) // stride + 1 for x, window, stride, pad in sizes)
        return height, width


def convolve(engine: OpenCLEngine, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:  # noqa: ANN401 - as the operator has them
    """Returns y [n, o, p, q], or [n, o, q] for [n, c, w]."""
    shape = _shape_of(x, w, *rest)
    result = engine.new((shape.n, shape.o, *shape.outputs))
    window = shape.c * _area(shape.window)
    if result.tensor.numel() and window:
        weights = engine.memory(_planar(w).contiguous())
        engine.product(
            Operand(weights, Axis.plain(window), Axis.plain(1)),
            _input_windows(engine, x, shape)[0],
            _images(result.memory, shape.o, shape.outputs),
            ProductShape(shape.o, shape.n * _area(shape.outputs), window),
        )
        engine.fetch(result)
    else:
        result.tensor.zero_()
    if bias is not None:
        result.tensor.add_(bias.detach()[:, None, None])
    return result.tensor if x.dim() == 4 else result.tensor[:, :, 0]


def convolve_back(
    engine: OpenCLEngine,
    gradient: Tensor,
    x: Tensor,
    w: Tensor,
    _: object,
    *rest: Any,  # noqa: ANN401 - as the operator has them
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of x, w and the bias; None for each that is not wanted."""
    *layer_arguments, output_mask = rest
    shape = _shape_of(x, w, *layer_arguments)
    gradient = _planar(gradient).contiguous()
    return (
        _input_gradient(engine, gradient, w, shape).view(x.shape) if output_mask[0] else None,
        _weight_gradient(engine, gradient, x, shape).view(w.shape) if output_mask[1] else None,
        gradient.sum((0, 2, 3)) if output_mask[2] else None,
    )


def _weight_gradient(engine: OpenCLEngine, gradient: Tensor, x: Tensor, shape: _Shape) -> Tensor:
    result = engine.new((shape.o, shape.c, *shape.window))
    if not (result.tensor.numel() and gradient.numel()):
        return result.tensor.zero_()
    window = shape.c * _area(shape.window)
    engine.product(
        _images(engine.memory(gradient), shape.o, shape.outputs),
        _input_windows(engine, x, shape)[1],
        Operand(result.memory, Axis.plain(window), Axis.plain(1)),
        ProductShape(shape.o, window, shape.n * _area(shape.outputs)),
    )
    return engine.fetch(result)


def _input_gradient(engine: OpenCLEngine, gradient: Tensor, w: Tensor, shape: _Shape) -> Tensor:
    result = engine.new((shape.n, shape.c, *shape.inputs))
    if not (result.tensor.numel() and gradient.numel()):
        return result.tensor.zero_()
    height, width = shape.window
    size = shape.inputs[0] + height - 1, shape.inputs[1] + width - 1
    margin = height - 1 - shape.pad[0], width - 1 - shape.pad[1]
    spread = _spread(engine, gradient, margin, shape.stride, size)
    flipped = Axis(height, width, shape.c * height * width, -width, -1)
    weights = engine.memory(_planar(w).contiguous())
    engine.product(
        Operand(weights, Axis.plain(height * width), flipped, start=height * width - 1),
        _windows(spread, (shape.o, *size), (shape.inputs, shape.window, (1, 1)))[0],
        _images(result.memory, shape.c, shape.inputs),
        ProductShape(shape.c, shape.n * _area(shape.inputs), shape.o * height * width),
    )
    return engine.fetch(result)


def _shape_of(
    x: Tensor,
    w: Tensor,
    stride: Sequence[int],
    pad: Sequence[int],
    *rest: Any,  # noqa: ANN401 - dilation, whether transposed, the output's padding, groups
) -> _Shape:
    dilation, is_transposed, _, groups = rest
    if x.dim() not in (3, 4):
        raise NoKernelError("of one or two dimensions only")
    if is_transposed:
        raise NoKernelError("it is transposed")
    if any(factor != 1 for factor in dilation):
        raise NoKernelError(f"its dilation is {list(dilation)}")
    if groups != 1:
        raise NoKernelError(f"it has {groups} groups")
    is_line = x.dim() == 3
    pairs = (
        ((1, stride[0]), (0, pad[0])) if is_line else ((stride[0], stride[-1]), (pad[0], pad[-1]))
    )
    (n, c, *inputs), (o, _, *window) = _planar(x).shape, _planar(w).shape
    return _Shape(n, c, o, (inputs[0], inputs[1]), (window[0], window[1]), *pairs)


def _planar(x: Tensor) -> Tensor:
    """Returns [n, c, w] as [n, c, 1, w]."""
    return (x if x.dim() == 4 else x[:, :, None]).detach()


def _area(sides: Pair) -> int:
    return sides[0] * sides[1]


def _images(memory: Any, channels: int, size: Pair) -> Operand:  # noqa: ANN401 - pyopencl's
    """Returns [n, channels, *size] as a matrix by channels, and by the pixels of all images."""
    pixels = _area(size)
    return Operand(memory, Axis.plain(pixels), Axis(1, pixels, channels * pixels, 0, 1))


def _input_windows(engine: OpenCLEngine, x: Tensor, shape: _Shape) -> tuple[Operand, Operand]:
    size = shape.inputs[0] + 2 * shape.pad[0], shape.inputs[1] + 2 * shape.pad[1]
    padded = _spread(engine, _planar(x).contiguous(), shape.pad, (1, 1), size)
    return _windows(padded, (shape.c, *size), (shape.outputs, shape.window, shape.stride))


def _windows(
    memory: Any,  # noqa: ANN401 - pyopencl's
    images: tuple[int, int, int],
    shape: tuple[Pair, Pair, Pair],
) -> tuple[Operand, Operand]:
    """Returns windows of images [n, *images] by pixel of the output, and by place in the window.

    Args:
        memory: of the images.
        images: channels, rows and columns.
        shape: the outputs' size, the window's, and the stride.
    """
    outputs, window, stride = shape
    channels, rows, columns = images
    plane = rows * columns
    pixel = Axis(outputs[0], outputs[1], channels * plane, stride[0] * columns, stride[1])
    offset = Axis(window[0], window[1], plane, columns, 1)
    return Operand(memory, pixel, offset), Operand(memory, offset, pixel)


def _spread(engine: OpenCLEngine, x: Tensor, margin: Pair, stride: Pair, size: Pair) -> Any:  # noqa: ANN401
    """Returns x [n, c, h, w] on the device as [n, c, *size], with zeros around and between."""
    n, c, *sides = x.shape
    memory = engine.memory(x)
    if margin == (0, 0) and stride == (1, 1):
        return memory
    spread = engine.allocate(n * c * _area(size))
    numbers = ints(*sides, *margin, *stride)
    engine.lines("spread", n * c * size[0], memory, *numbers, spread, *ints(*size))
    return spread
