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


class Named(nn.Module):
    """Returns its logits beside what they are made of."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.body(x)
        return {"loss": None, "hidden": hidden, "logits": self.head(hidden)}


def test_of_named_outputs_the_logits_are_written_alone(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    module, rows = Named().eval(), torch.randn(4, 2)
    file = export_onnx(module, (2,), tmp_path / "model.onnx", loss="cross_entropy")
    [logits] = runtime.InferenceSession(str(file)).run(None, {"features": rows.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), module(rows)["logits"])


def test_a_file_that_cannot_be_written_is_named_and_not_the_module_blamed(tmp_path):
    path = tmp_path / "none" / "model.onnx"
    message = rf"^the file {path} cannot be written; got No such file or directory; name a file in"
    with pytest.raises(UsageError, match=message):
        export_onnx(nn.Linear(2, 1).eval(), (2,), path)


def test_a_module_that_torch_cannot_export_is_blamed_itself(tmp_path):
    with pytest.raises(UsageError, match=r"^the module cannot be exported to ONNX; got "):
        export_onnx(ByTheData().eval(), (2,), tmp_path / "model.onnx")
