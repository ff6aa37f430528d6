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

_HELD_TO: Any = getattr(config, "CPU_NAME", None)
_IS_LONG = not _HELD_TO and llvm.get_host_cpu_features().get("avx512f", False)
LANES = 16 if _IS_LONG else 8
"""Numbers in a vector, unless NUMBA_CPU_NAME holds the code to another processor: then 8."""
STEPS = 16
"""Room for the steps of two inputs; their labels have as much."""
_LONG, _INT, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_FAST = ("fast",)
_EDGE = 7.90531110763549805
_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928935436e-04,
    4.89352455891786e-03,
)
_BELOW = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


class _Code:
    """Writes instructions on vectors of float32.

    Args:
        builder: where they go.
        lanes: numbers in a vector.
    """

    def __init__(self, builder: Any, lanes: int) -> None:
        self._builder, self._lanes = builder, lanes
        self._kind = ir.VectorType(_FLOAT, lanes)

    def number(self, value: float) -> Any:
        return ir.Constant(self._kind, [ir.Constant(_FLOAT, value)] * self._lanes)

    def copies(self, value: Any) -> Any:
        none = ir.Constant(self._kind, ir.Undefined)
        first = self._builder.insert_element(none, value, ir.Constant(_INT, 0))
        return self._shuffled(first, none, [0] * self._lanes)

    def product(self, a: Any, b: Any) -> Any:
        return self._builder.fmul(a, b, flags=_FAST)

    def plus(self, a: Any, b: Any, to: Any) -> Any:
        """Returns a·b + to."""
        return self._builder.fadd(self.product(a, b), to, flags=_FAST)

    def load(self, pointer: Any, count: int) -> Any:
        """Reads some numbers; the lanes behind them are 0."""
        kind = ir.VectorType(_FLOAT, count)
        read = self._builder.load(self._builder.bitcast(pointer, kind.as_pointer()), align=4)
        if count == self._lanes:
            return read
        zeros = ir.Constant(kind, [ir.Constant(_FLOAT, 0.0)] * count)
        return self._shuffled(read, zeros, [*range(count), *[count] * (self._lanes - count)])

    def store(self, vector: Any, pointer: Any, count: int) -> None:
        """Writes the first numbers."""
        kind = ir.VectorType(_FLOAT, count)
        if count < self._lanes:
            vector = self._shuffled(vector, vector, list(range(count)))
        self._builder.store(vector, self._builder.bitcast(pointer, kind.as_pointer()), align=4)

    def _shuffled(self, a: Any, b: Any, places: Sequence[int]) -> Any:
        mask = ir.Constant(ir.VectorType(_INT, len(places)), list(places))
        return self._builder.shuffle_vector(a, b, mask)

    def totals(self, vectors: list[Any]) -> Any:
        """Returns the sums of as many vectors as there are lanes, or fewer."""
        vectors = vectors + [self.number(0.0)] * (self._lanes - len(vectors))
        size = self._lanes
        while len(vectors) > 1:  # every two become one, of halves that are added
            starts = range(0, 2 * self._lanes, size)
            size //= 2
            low = [start + i for start in starts for i in range(size)]
            high = [place + size for place in low]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [
                self._builder.fadd(
                    self._shuffled(a, b, low), self._shuffled(a, b, high), flags=_FAST
                )
                for a, b in pairs
            ]
        return vectors[0]

    def logistic(self, x: Any) -> Any:
        """Returns σ(x); tanh is a quotient of two polynomials, as in Eigen."""
        x, builder = self.product(x, self.number(0.5)), self._builder
        for order, edge in (("<", self.number(_EDGE)), (">", self.number(-_EDGE))):
            x = builder.select(builder.fcmp_ordered(order, x, edge, flags=_FAST), x, edge)
        square = self.product(x, x)
        above, below = self.number(_ABOVE[0]), self.number(_BELOW[0])
        for factor in _ABOVE[1:]:
            above = self.plus(above, square, self.number(factor))
        for factor in _BELOW[1:]:
            below = self.plus(below, square, self.number(factor))
        tanh = builder.fdiv(self.product(x, above), below, flags=_FAST)
        return self.plus(tanh, self.number(0.5), self.number(0.5))

    def step(self, product: Any, label: Any, rate: Any) -> Any:
        """Returns rate · (label − σ(product)), 0 where a label is below 0."""
        builder, none = self._builder, self.number(0.0)
        miss = builder.fsub(label, self.logistic(product), flags=_FAST)
        is_alive = builder.fcmp_ordered(">=", label, none, flags=_FAST)
        return builder.select(is_alive, self.product(miss, rate), none)

    def along(self, dims: int, body: Callable[[Any, int], None]) -> None:
        """Writes a loop over a row: body(at, count) for each vector, and for the rest."""
        rest = dims % self._lanes
        ends = _LONG(0), _LONG(dims - rest), _LONG(self._lanes)
        with cgutils.for_range_slice(self._builder, *ends) as (at, _):
            body(at, self._lanes)
        if rest:
            body(_LONG(dims - rest), rest)

    def sums(self, count: int) -> list[Any]:
        """Returns room for vectors that a loop adds to: they will be registers."""
        room: Any = cgutils.alloca_once
        return [room(self._builder, self._kind) for _ in range(count)]

    def clear(self, sums: list[Any]) -> None:
        for one in sums:
            self._builder.store(self.number(0.0), one)


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
    both: Any,
    outputs: Any,
    rows: Any,
    labels: Any,
    rate: Any,
    to: Any,
) -> Any:
    """Writes rate · (labels − σ(X Oᵀ)) of two inputs X [2, D] and six outputs O [6, D].

    Args:
        dims: D, known when it is compiled.
        lanes: numbers in a vector, likewise.
        inputs: a table [V, D].
        both: which two of its rows.
        outputs: a table [O, D].
        rows: which six of its rows.
        labels: of the products, those of the first input before those of the second [16].
        rate: the learning rate.
        to: room for the steps [16], in the same order.
    """
    signature = types.void(dims, lanes, inputs, both, outputs, rows, labels, rate, to)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, gep = _Code(builder, lanes.literal_value), builder.gep
        given = _pointers(context, builder, signature, args)
        inputs, both, outputs, rows, labels, rate, to = given[2:]

        def row(table: Any, number: Any) -> Any:
            return gep(table, [builder.mul(number, _LONG(dims.literal_value))])

        xs = [row(inputs, builder.extract_value(both, side)) for side in (0, 1)]
        os = [row(outputs, builder.load(gep(rows, [_LONG(i)]))) for i in range(OUTPUTS)]
        sums = code.sums(2 * OUTPUTS)
        code.clear(sums)

        def multiply(at: Any, count: int) -> None:
            o = [code.load(gep(one, [at]), count) for one in os]
            for side, one in enumerate(xs):
                x = code.load(gep(one, [at]), count)
                for total, other in zip(sums[side * OUTPUTS :], o, strict=False):
                    builder.store(code.plus(x, other, builder.load(total)), total)

        code.along(dims.literal_value, multiply)
        found, rate = [builder.load(one) for one in sums], code.copies(rate)
        width = lanes.literal_value
        for start in range(0, STEPS, width):
            label = code.load(gep(labels, [_LONG(start)]), width)
            made = code.step(code.totals(found[start : start + width]), label, rate)
            code.store(made, gep(to, [_LONG(start)]), width)
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def move(
    _typing: Any,
    dims: Any,
    lanes: Any,
    inputs: Any,
    gains: Any,
    near: Any,
    outputs: Any,
    output_gains: Any,
    rows: Any,
    taken: Any,
) -> Any:
    """Takes steps G [C, 6]: each input x ← x + gᵀ O in turn, then O ← O + Σ g xᵀ, times the gains.

    Args:
        dims: D, known when it is compiled.
        lanes: numbers in a vector, likewise.
        inputs: a table [V, D].
        gains: by what the steps of its rows are multiplied [V].
        near: which of its rows [C].
        outputs: a table [O, D].
        output_gains: as `gains` [O].
        rows: which six of its rows.
        taken: the steps, six for each input.
    """
    signature = types.void(dims, lanes, inputs, gains, near, outputs, output_gains, rows, taken)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code, gep, load = _Code(builder, lanes.literal_value), builder.gep, builder.load
        _, _, inputs, gains, first, outputs, output_gains, rows, taken = _pointers(
            context, builder, signature, args
        )
        near = context.make_array(signature.args[4])(context, builder, args[4])
        held = builder.extract_value(near.shape, 0)
        numbers = [load(gep(rows, [_LONG(i)])) for i in range(OUTPUTS)]
        os = [gep(outputs, [builder.mul(row, _LONG(dims.literal_value))]) for row in numbers]
        moves = code.sums(OUTPUTS)

        def through(at: Any, count: int) -> None:
            o = [code.load(gep(one, [at]), count) for one in os]
            code.clear(moves)
            with cgutils.for_range(builder, held) as loop:
                row, own = load(gep(first, [loop.index])), code.number(0.0)
                place = gep(inputs, [builder.add(builder.mul(row, _LONG(dims.literal_value)), at)])
                x, start = code.load(place, count), builder.mul(loop.index, _LONG(OUTPUTS))
                for i in range(OUTPUTS):
                    g = code.copies(load(gep(taken, [builder.add(start, _LONG(i))])))
                    builder.store(code.plus(g, x, load(moves[i])), moves[i])
                    own = code.plus(g, o[i], own)
                gain = code.copies(load(gep(gains, [row])))
                code.store(code.plus(gain, own, x), place, count)
            for one, row, moved in zip(os, numbers, moves, strict=True):
                gain, place = code.copies(load(gep(output_gains, [row]))), gep(one, [at])
                code.store(code.plus(gain, load(moved), code.load(place, count)), place, count)

        code.along(dims.literal_value, through)
        return context.get_dummy_value()

    return signature, emit
