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

_rebuilding = threading.local()


def split_object(model: object) -> tuple[bytes, dict[str, Any]]:
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
        >>> outline, tree = split_object(line)
        >>> tree["attributes"], tree["within"]
        ({'slope': array([1., 1.]), 'steps': 0}, [])
        >>> rebuild_object(outline, tree).words
        ['a']
    """
    own_values, tree, name_by_id = _own_values(model), dict[str, Any](), dict[int, str]()
    for name, value in own_values.items():
        if is_plain(value) or (is_array(value) and name_by_id.setdefault(id(value), name) == name):
            tree[name] = value
    remaining = (
        {k: v for k, v in own_values.items() if k not in tree} if type(model) is dict else model
    )
    buffer = io.BytesIO()
    pickler = _OutlinePickler(buffer, model, tree, name_by_id)
    pickler.dump(remaining)  # type: ignore[no-untyped-call]
    return buffer.getvalue(), {"attributes": tree, "within": pickler.arrays}


def rebuild_object(outline: bytes, tree: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any object
    """The inverse of `split_object`: a fresh object that holds the tree's arrays.

    Raises:
        NotReadyError: a module that the object needs is missing here.
    """
    _rebuilding.tree = tree
    try:
        model = loaded(outline, "the model")
    finally:
        del _rebuilding.tree
    values = model if type(model) is dict else getattr(model, "__dict__", {})
    values.update(tree["attributes"])
    return model


def changed_attribute(before: object, model: object) -> str:
    """Returns which attribute of an object has another outline than before.

    Args:
        before: what `rebuild_object` gives of the outline that it had.
        model: the object.
    """
    old, new = _own_values(before), _own_values(model)
    for name in sorted({*old, *new}, key=str):
        if name not in old or name not in new or _outline_of(old[name]) != _outline_of(new[name]):
            return f"model.{name}"
    return "the model"


def _outline_of(value: object) -> bytes:
    return b"" if is_plain(value) or is_array(value) else split_object([value])[0]


def _own_values(model: object) -> dict[Any, Any]:
    """Returns what an object holds by name, if it is built of nothing else."""
    if type(model) is dict:
        return model
    cls = type(model)
    is_plainly_pickled = (
        cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    )
    is_plainly_pickled = is_plainly_pickled and cls.__getstate__ is object.__getstate__
    state = getattr(model, "__dict__", {})
    return state if is_plainly_pickled and not hasattr(cls, "__setstate__") else {}


def _array_of_tree(group: str, key: int | str) -> Vector:
    """Returns one of the arrays that came with the tree, where an outline has a place for it."""
    array: Vector = _rebuilding.tree[group][key]
    return array


class _OutlinePickler(cloudpickle.Pickler):
    """Leaves out of an object what its tree holds, and notes the other arrays."""

    def __init__(
        self,
        buffer: io.BytesIO,
        model: object,
        tree: Mapping[str, Any],
        name_by_id: Mapping[int, str],
    ) -> None:
        super().__init__(buffer, 5)  # type: ignore[no-untyped-call]
        self.arrays: list[Vector] = []
        self._model, self._tree, self._name_by_id = model, tree, name_by_id

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - as pickle asks for it
        if is_array(value):
            if id(value) in self._name_by_id:
                return _array_of_tree, ("attributes", self._name_by_id[id(value)])
            self.arrays.append(value)
            return _array_of_tree, ("within", len(self.arrays) - 1)
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]
        if value is self._model and self._tree and reduced is NotImplemented:
            function, args, state, *others = tuple(value.__reduce_ex__(5))
            if isinstance(state, dict):
                remaining = {name: v for name, v in state.items() if name not in self._tree}
                return function, args, remaining, *others
        return reduced
