"""What is told where no ONNX file can be written."""

import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.run.onnx import export_onnx


class ByTheData(nn.Module):
    """Takes a path that depends on the numbers: torch cannot export it."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x):
        return self.line(x) if x.sum() > 0 else torch.zeros(len(x), 1)


def test_a_file_that_cannot_be_written_is_named_and_not_the_module_blamed(tmp_path):
    path = tmp_path / "none" / "model.onnx"
    message = rf"^the file {path} cannot be written; got No such file or directory; name a file in"
    with pytest.raises(UsageError, match=message):
        export_onnx(nn.Linear(2, 1).eval(), (2,), path)


def test_a_module_that_torch_cannot_export_is_blamed_itself(tmp_path):
    with pytest.raises(UsageError, match=r"^the module cannot be exported to ONNX; got "):
        export_onnx(ByTheData().eval(), (2,), tmp_path / "model.onnx")
