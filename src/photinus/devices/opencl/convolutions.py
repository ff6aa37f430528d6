"""Convolutions as products with columns of windows, which are never written out as a whole.

With x [n, c, h, w] and weights [o, c, i, j] the output y [n, o, p, q] and the slopes are

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
    by: Pair
    pad: Pair

    @property
    def outputs(self) -> Pair:
        sizes = zip(self.inputs, self.window, self.by, self.pad, strict=True)
        height, width = ((x + 2 * pad - window) // by + 1 for x, window, by, pad in sizes)
        return height, width


def convolve(engine: OpenCLEngine, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:  # noqa: ANN401 - as the operator has them
    """Returns y [n, o, p, q], or [n, o, q] for [n, c, w]."""
    shape = _shape_of(x, w, *rest)
    made = engine.new((shape.n, shape.o, *shape.outputs))
    window = shape.c * _area(shape.window)
    if made.tensor.numel() and window:
        weights = engine.memory(_planar(w).contiguous())
        engine.product(
            Operand(weights, Axis.plain(window), Axis.plain(1)),
            _windows_of_inputs(engine, x, shape)[0],
            _images(made.memory, shape.o, shape.outputs),
            ProductShape(shape.o, shape.n * _area(shape.outputs), window),
        )
        engine.fetched(made)
    else:
        made.tensor.zero_()
    if bias is not None:
        made.tensor.add_(bias.detach()[:, None, None])
    return made.tensor if x.dim() == 4 else made.tensor[:, :, 0]


def convolve_back(
    engine: OpenCLEngine,
    slope: Tensor,
    x: Tensor,
    w: Tensor,
    _: object,
    *rest: Any,  # noqa: ANN401 - as the operator has them
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the slopes of x, w and the bias, of which each may not be wanted."""
    *of_layer, wanted = rest
    shape = _shape_of(x, w, *of_layer)
    slope = _planar(slope).contiguous()
    return (
        _slope_of_inputs(engine, slope, w, shape).view(x.shape) if wanted[0] else None,
        _slope_of_weights(engine, slope, x, shape).view(w.shape) if wanted[1] else None,
        slope.sum((0, 2, 3)) if wanted[2] else None,
    )


def _slope_of_weights(engine: OpenCLEngine, slope: Tensor, x: Tensor, shape: _Shape) -> Tensor:
    made = engine.new((shape.o, shape.c, *shape.window))
    if not (made.tensor.numel() and slope.numel()):
        return made.tensor.zero_()
    window = shape.c * _area(shape.window)
    engine.product(
        _images(engine.memory(slope), shape.o, shape.outputs),
        _windows_of_inputs(engine, x, shape)[1],
        Operand(made.memory, Axis.plain(window), Axis.plain(1)),
        ProductShape(shape.o, window, shape.n * _area(shape.outputs)),
    )
    return engine.fetched(made)


def _slope_of_inputs(engine: OpenCLEngine, slope: Tensor, w: Tensor, shape: _Shape) -> Tensor:
    made = engine.new((shape.n, shape.c, *shape.inputs))
    if not (made.tensor.numel() and slope.numel()):
        return made.tensor.zero_()
    high, wide = shape.window
    size = shape.inputs[0] + high - 1, shape.inputs[1] + wide - 1
    around = high - 1 - shape.pad[0], wide - 1 - shape.pad[1]
    spread = _spread(engine, slope, around, shape.by, size)
    turned = Axis(high, wide, shape.c * high * wide, -wide, -1)
    weights = engine.memory(_planar(w).contiguous())
    engine.product(
        Operand(weights, Axis.plain(high * wide), turned, start=high * wide - 1),
        _windows(spread, (shape.o, *size), (shape.inputs, shape.window, (1, 1)))[0],
        _images(made.memory, shape.c, shape.inputs),
        ProductShape(shape.c, shape.n * _area(shape.inputs), shape.o * high * wide),
    )
    return engine.fetched(made)


def _shape_of(
    x: Tensor,
    w: Tensor,
    by: Sequence[int],
    pad: Sequence[int],
    *rest: Any,  # noqa: ANN401 - dilation, whether transposed, the output's padding, groups
) -> _Shape:
    dilation, is_transposed, _, groups = rest
    if x.dim() not in (3, 4):
        raise NoKernelError("of one or two dimensions only")
    if is_transposed:
        raise NoKernelError("it is transposed")
    if any(one != 1 for one in dilation):
        raise NoKernelError(f"its dilation is {list(dilation)}")
    if groups != 1:
        raise NoKernelError(f"it has {groups} groups")
    is_line = x.dim() == 3
    pairs = ((1, by[0]), (0, pad[0])) if is_line else ((by[0], by[-1]), (pad[0], pad[-1]))
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


def _windows_of_inputs(engine: OpenCLEngine, x: Tensor, shape: _Shape) -> tuple[Operand, Operand]:
    size = shape.inputs[0] + 2 * shape.pad[0], shape.inputs[1] + 2 * shape.pad[1]
    padded = _spread(engine, _planar(x).contiguous(), shape.pad, (1, 1), size)
    return _windows(padded, (shape.c, *size), (shape.outputs, shape.window, shape.by))


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
    outputs, window, by = shape
    channels, rows, columns = images
    plane = rows * columns
    pixel = Axis(outputs[0], outputs[1], channels * plane, by[0] * columns, by[1])
    inside = Axis(window[0], window[1], plane, columns, 1)
    return Operand(memory, pixel, inside), Operand(memory, inside, pixel)


def _spread(engine: OpenCLEngine, x: Tensor, around: Pair, by: Pair, size: Pair) -> Any:  # noqa: ANN401
    """Returns x [n, c, h, w] on the device as [n, c, *size], with zeros around and between."""
    n, c, *inner = x.shape
    memory = engine.memory(x)
    if around == (0, 0) and by == (1, 1):
        return memory
    spread = engine.room(n * c * _area(size))
    numbers = ints(*inner, *around, *by)
    engine.lines("spread", n * c * size[0], memory, *numbers, spread, *ints(*size))
    return spread
