import numpy as np
import pytest

from photinus.core.errors import DataError
from photinus.models.tensors import as_rows, tensor_of

pytestmark = pytest.mark.numerics


def test_writable_arrays_are_shared():
    array = np.zeros(3)
    tensor_of(array)[0] = 1
    assert array[0] == 1


@pytest.mark.parametrize("array", [np.frombuffer(b"\0" * 8, np.float32), np.arange(3)[::-1]])
def test_what_torch_cannot_share_is_copied(array):
    assert tensor_of(array).tolist() == array.tolist()


def test_images_become_rows():
    assert as_rows(np.zeros((5, 2, 3)), 6).shape == (5, 6)
    assert as_rows(np.zeros((0, 6)), 6).shape == (0, 6)


def test_rows_of_another_width_and_objects_are_refused():
    with pytest.raises(DataError, match=r"rows of 7 numbers; got \[5, 2, 3\]"):
        as_rows(np.zeros((5, 2, 3)), 7)
    with pytest.raises(DataError, match="must hold numbers; got object"):
        tensor_of(np.array([None]))
