"""The two passes of the word2vec kernel as vector instructions, which numba's loops do not become.

`steps` multiplies two inputs by six outputs and turns the products into steps; `move` takes them.
Both keep their sums in registers. A row may have any length: a shorter vector takes its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from photinus.embeddings.reference import OUTPUTS

_CPU_NAME: Any = getattr(config, "CPU_NAME", None)
_HAS_AVX512 = not _CPU_NAME and llvm.get_host_cpu_features().get("avx512f", False)
LANES = 16 if _HAS_AVX512 else 8
"""Numbers in a vector, unless NUMBA_CPU_NAME holds the code to another processor: then 8."""
STEPS = 16
"""Room for the steps of two inputs; their labels have as much."""
_INT64, _INT32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_FAST_MATH = ("fast",)
_TANH_LIMIT = 7.90531110763549805
_NUMERATOR = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928935436e-04,
    4.89352455891786e-03,
)
_DENOMINATOR = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


class _VectorBuilder:
    """Writes instructions on vectors of float32.

    Args:
        builder: where they go.
        lanes: numbers in a vector.
    """

    def __init__(self, builder: Any, lanes: int) -> None:
        self._builder, self._lanes = builder, lanes
        self._vector_type = ir.VectorType(_FLOAT, lanes)

    def constant(self, value: float) -> Any:
        return ir.Constant(self._vector_type, [ir.Constant(_FLOAT, value)] * self._lanes)

    def broadcast(self, value: Any) -> Any:
        undefined = ir.Constant(self._vector_type, ir.Undefined)
        first = self._builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self._shuffle(first, undefined, [0] * self._lanes)

    def multiply(self, a: Any, b: Any) -> Any:
        return self._builder.fmul(a, b, flags=_FAST_MATH)

    def multiply_add(self, a: Any, b: Any, addend: Any) -> Any:
        """Returns a·b + addend."""
        return self._builder.fadd(self.multiply(a, b), addend, flags=_FAST_MATH)

    def load(self, pointer: Any, count: int) -> Any:
        """Reads some numbers; the lanes behind them are 0."""
        vector_type = ir.VectorType(_FLOAT, count)
        loaded = self._builder.load(
            self._builder.bitcast(pointer, vector_type.as_pointer()), align=4
        )
        if count == self._lanes:
            return loaded
        zeros = ir.Constant(vector_type, [ir.Constant(_FLOAT, 0.0)] * count)
        return self._shuffle(loaded, zeros, [*range(count), *[count] * (self._lanes - count)])

    def store(self, vector: Any, pointer: Any, count: int) -> None:
        """Writes the first numbers."""
        vector_type = ir.VectorType(_FLOAT, count)
        if count < self._lanes:
            vector = self._shuffle(vector, vector, list(range(count)))
        self._builder.store(
            vector, self._builder.bitcast(pointer, vector_type.as_pointer()), align=4
        )

    def _shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        mask = ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))
        return self._builder.shuffle_vector(a, b, mask)

    def lane_sums(self, vectors: list[Any]) -> Any:
        """Returns the sums of as many vectors as there are lanes, or fewer."""
        vectors = vectors + [self.constant(0.0)] * (self._lanes - len(vectors))
        size = self._lanes
        while len(vectors) > 1:  # every two become one, of halves that are added
            starts = range(0, 2 * self._lanes, size)
            size //= 2
            low = [start + i for start in starts for i in range(size)]
            high = [index + size for index in low]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [
                self._builder.fadd(
                    self._shuffle(a, b, low), self._shuffle(a, b, high), flags=_FAST_MATH
                )
                for a, b in pairs
            ]
        return vectors[0]

    def logistic(self, x: Any) -> Any:
        """Returns σ(x); tanh is a quotient of two polynomials, as in Eigen."""
        x, builder = self.multiply(x, self.constant(0.5)), self._builder
        for order, bound in (("<", self.constant(_TANH_LIMIT)), (">", self.constant(-_TANH_LIMIT))):
            x = builder.select(builder.fcmp_ordered(order, x, bound, flags=_FAST_MATH), x, bound)
        square = self.multiply(x, x)
        numerator, denominator = self.constant(_NUMERATOR[0]), self.constant(_DENOMINATOR[0])
        for factor in _NUMERATOR[1:]:
            numerator = self.multiply_add(numerator, square, self.constant(factor))
        for factor in _DENOMINATOR[1:]:
            denominator = self.multiply_add(denominator, square, self.constant(factor))
        tanh = builder.fdiv(self.multiply(x, numerator), denominator, flags=_FAST_MATH)
        return self.multiply_add(tanh, self.constant(0.5), self.constant(0.5))

    def step(self, product: Any, label: Any, rate: Any) -> Any:
        """Returns rate · (label − σ(product)), 0 where a label is below 0."""
        builder, zero = self._builder, self.constant(0.0)
        error = builder.fsub(label, self.logistic(product), flags=_FAST_MATH)
        is_alive = builder.fcmp_ordered(">=", label, zero, flags=_FAST_MATH)
        return builder.select(is_alive, self.multiply(error, rate), zero)

    def loop(self, dims: int, body: Callable[[Any, int], None]) -> None:
        """Writes a loop over a row: body(offset, count) for each vector, and for the rest."""
        rest = dims % self._lanes
        ends = _INT64(0), _INT64(dims - rest), _INT64(self._lanes)
        with cgutils.for_range_slice(self._builder, *ends) as (offset, _):
            body(offset, self._lanes)
        if rest:
            body(_INT64(dims - rest), rest)

    def accumulators(self, count: int) -> list[Any]:
        """Returns room for vectors that a loop adds to: they will be registers."""
        allocate: Any = cgutils.alloca_once
        return [allocate(self._builder, self._vector_type) for _ in range(count)]

    def zero(self, accumulators: list[Any]) -> None:
        for accumulator in accumulators:
            self._builder.store(self.constant(0.0), accumulator)


def _pointers(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Returns where each array's numbers lie; other arguments as they are."""
    assert all(kind.layout == "C" for kind in signature.args if isinstance(kind, types.Array))
    return [
        context.make_array(kind)(context, builder, arg).data
        if isinstance(kind, types.Array)
        else arg
        for kind, arg in zip(signature.args, args, strict=True)
    ]


@intrinsic(prefer_literal=True)
def steps(
    _typing: Any,
    dims: Any,
    lanes: Any,
    inputs: Any,
    pair: Any,
    outputs: Any,
    rows: Any,
    labels: Any,
    rate: Any,
    out: Any,
) -> Any:
    """Writes rate · (labels − σ(X Oᵀ)) of two inputs X [2, D] and six outputs O [6, D].

    Args:
        dims: D, known when it is compiled.
        lanes: numbers in a vector, likewise.
        inputs: a table [V, D].
        pair: which two of its rows.
        outputs: a table [O, D].
        rows: which six of its rows.
        labels: of the products, those of the first input before those of the second [16].
        rate: the learning rate.
        out: room for the steps [16], in the same order.
    """
    signature = types.void(dims, lanes, inputs, pair, outputs, rows, labels, rate, out)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, gep = _VectorBuilder(builder, lanes.literal_value), builder.gep
        pointers = _pointers(context, builder, signature, args)
        inputs, pair, outputs, rows, labels, rate, out = pointers[2:]

        def row(table: Any, number: Any) -> Any:
            return gep(table, [builder.mul(number, _INT64(dims.literal_value))])

        input_rows = [row(inputs, builder.extract_value(pair, side)) for side in (0, 1)]
        output_rows = [row(outputs, builder.load(gep(rows, [_INT64(i)]))) for i in range(OUTPUTS)]
        sums = code.accumulators(2 * OUTPUTS)
        code.zero(sums)

        def multiply(offset: Any, count: int) -> None:
            o = [code.load(gep(pointer, [offset]), count) for pointer in output_rows]
            for side, pointer in enumerate(input_rows):
                x = code.load(gep(pointer, [offset]), count)
                for total, other in zip(sums[side * OUTPUTS :], o, strict=False):
                    builder.store(code.multiply_add(x, other, builder.load(total)), total)

        code.loop(dims.literal_value, multiply)
        products, rate = [builder.load(pointer) for pointer in sums], code.broadcast(rate)
        width = lanes.literal_value
        for start in range(0, STEPS, width):
            label = code.load(gep(labels, [_INT64(start)]), width)
            step = code.step(code.lane_sums(products[start : start + width]), label, rate)
            code.store(step, gep(out, [_INT64(start)]), width)
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def move(
    _typing: Any,
    dims: Any,
    lanes: Any,
    inputs: Any,
    gains: Any,
    input_rows: Any,
    outputs: Any,
    output_gains: Any,
    rows: Any,
    step_sizes: Any,
) -> Any:
    """Takes steps G [C, 6]: each input x ← x + gᵀ O in turn, then O ← O + Σ g xᵀ, times the gains.

    Args:
        dims: D, known when it is compiled.
        lanes: numbers in a vector, likewise.
        inputs: a table [V, D].
        gains: by what the steps of its rows are multiplied [V].
        input_rows: which of its rows [C].
        outputs: a table [O, D].
        output_gains: as `gains` [O].
        rows: which six of its rows.
        step_sizes: the steps, six for each input.
    """
    signature = types.void(
        dims, lanes, inputs, gains, input_rows, outputs, output_gains, rows, step_sizes
    )

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, gep, load = _VectorBuilder(builder, lanes.literal_value), builder.gep, builder.load
        _, _, inputs, gains, row_pointer, outputs, output_gains, rows, step_sizes = _pointers(
            context, builder, signature, args
        )
        input_rows = context.make_array(signature.args[4])(context, builder, args[4])
        context_size = builder.extract_value(input_rows.shape, 0)
        output_rows = [load(gep(rows, [_INT64(i)])) for i in range(OUTPUTS)]
        pointers = [
            gep(outputs, [builder.mul(row, _INT64(dims.literal_value))]) for row in output_rows
        ]
        moves = code.accumulators(OUTPUTS)

        def move_columns(offset: Any, count: int) -> None:
            o = [code.load(gep(pointer, [offset]), count) for pointer in pointers]
            code.zero(moves)
            with cgutils.for_range(builder, context_size) as loop:
                row, change = load(gep(row_pointer, [loop.index])), code.constant(0.0)
                target = gep(
                    inputs, [builder.add(builder.mul(row, _INT64(dims.literal_value)), offset)]
                )
                x, first_step = code.load(target, count), builder.mul(loop.index, _INT64(OUTPUTS))
                for i in range(OUTPUTS):
                    g = code.broadcast(load(gep(step_sizes, [builder.add(first_step, _INT64(i))])))
                    builder.store(code.multiply_add(g, x, load(moves[i])), moves[i])
                    change = code.multiply_add(g, o[i], change)
                gain = code.broadcast(load(gep(gains, [row])))
                code.store(code.multiply_add(gain, change, x), target, count)
            for pointer, row, total_change in zip(pointers, output_rows, moves, strict=True):
                gain, target = (
                    code.broadcast(load(gep(output_gains, [row]))),
                    gep(pointer, [offset]),
                )
                code.store(
                    code.multiply_add(gain, load(total_change), code.load(target, count)),
                    target,
                    count,
                )

        code.loop(dims.literal_value, move_columns)
        return context.get_dummy_value()

    return signature, emit
