"""Splits any object into an outline, sent once, and arrays and values, sent often."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any

from pyspark import cloudpickle

from photinus.core.parameters import Vector
from photinus.engine.spark.task_runner import loaded
from photinus.protocol.serialization import is_array, is_plain

_arriving = threading.local()


def sketched(model: object) -> tuple[bytes, dict[str, Any]]:
    """Returns an object's outline, and the tree that fills it.

    The tree holds the object's own attributes that are arrays or plain values, by name, and all
    other arrays within it in the order in which they are found. The same outline means that
    nothing else has changed. The arrays are the object's own.

    Example:
        >>> import numpy as np
        >>> class Line:
        ...     pass
        >>> line = Line()
        >>> line.slope, line.steps, line.words = np.ones(2), 0, ["a"]
        >>> outline, tree = sketched(line)
        >>> tree["attributes"], tree["within"]
        ({'slope': array([1., 1.]), 'steps': 0}, [])
        >>> filled(outline, tree).words
        ['a']
    """
    own, tree, names = _own_values(model), dict[str, Any](), dict[int, str]()
    for name, value in own.items():
        if is_plain(value) or (is_array(value) and names.setdefault(id(value), name) == name):
            tree[name] = value
    rest = {k: v for k, v in own.items() if k not in tree} if type(model) is dict else model
    file = io.BytesIO()
    pickler = _Sketcher(file, model, tree, names)
    pickler.dump(rest)  # type: ignore[no-untyped-call]
    return file.getvalue(), {"attributes": tree, "within": pickler.arrays}


def filled(outline: bytes, tree: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any object
    """The inverse of `sketched`: a fresh object that holds the tree's arrays.

    Raises:
        NotReadyError: a module that the object needs is missing here.
    """
    _arriving.tree = tree
    try:
        model = loaded(outline, "the model")
    finally:
        del _arriving.tree
    values = model if type(model) is dict else getattr(model, "__dict__", {})
    values.update(tree["attributes"])
    return model


def changed(before: object, model: object) -> str:
    """Returns which attribute of an object has another outline than before.

    Args:
        before: what `filled` gives of the outline that it had.
        model: the object.
    """
    old, new = _own_values(before), _own_values(model)
    for name in sorted({*old, *new}, key=str):
        if name not in old or name not in new or _shape(old[name]) != _shape(new[name]):
            return f"model.{name}"
    return "the model"


def _shape(value: object) -> bytes:
    return b"" if is_plain(value) or is_array(value) else sketched([value])[0]


def _own_values(model: object) -> dict[Any, Any]:
    """Returns what an object holds by name, if it is built of nothing else."""
    if type(model) is dict:
        return model
    kind = type(model)
    is_usual = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    is_usual = is_usual and kind.__getstate__ is object.__getstate__
    state = getattr(model, "__dict__", {})
    return state if is_usual and not hasattr(kind, "__setstate__") else {}


def _array(group: str, key: int | str) -> Vector:
    """Returns one of the arrays that came with the tree, where an outline has a place for it."""
    array: Vector = _arriving.tree[group][key]
    return array


class _Sketcher(cloudpickle.Pickler):
    """Leaves out of an object what its tree holds, and notes the other arrays."""

    def __init__(
        self, file: io.BytesIO, model: object, tree: Mapping[str, Any], names: Mapping[int, str]
    ) -> None:
        super().__init__(file, 5)  # type: ignore[no-untyped-call]
        self.arrays: list[Vector] = []
        self._model, self._tree, self._names = model, tree, names

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - as pickle asks for it
        if is_array(value):
            if id(value) in self._names:
                return _array, ("attributes", self._names[id(value)])
            self.arrays.append(value)
            return _array, ("within", len(self.arrays) - 1)
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]
        if value is self._model and self._tree and reduced is NotImplemented:
            function, args, state, *rest = tuple(value.__reduce_ex__(5))
            if isinstance(state, dict):
                kept = {name: v for name, v in state.items() if name not in self._tree}
                return function, args, kept, *rest
        return reduced
