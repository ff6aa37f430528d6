"""Exports a trained module to ONNX."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from photinus.core.errors import NotReadyError, UsageError, reason_of
from photinus.models.losses import Outputs
from photinus.models.reading import main_output


class _Scaled(nn.Module):
    """A module that reads rows as they are stored, [B, ...]."""

    def __init__(self, module: nn.Module, scale: float | None, loss: str) -> None:
        super().__init__()
        self.module, self.scale, self.loss = module, 1.0 if scale is None else scale, loss

    def forward(self, features: Tensor) -> Outputs:
        return main_output(self.module(features * self.scale), self.loss)


def export_onnx(
    module: nn.Module,
    shape: tuple[int, ...],
    path: Path | str,
    scale: float | None = None,
    loss: str = "",
) -> Path:
    """Writes a module as an ONNX file, for any number of rows.

    Args:
        module: in evaluation mode, of float32 features [B, ...].
        shape: of one row.
        path: of the file.
        scale: features are multiplied by it.
        loss: of the module; one of the user's own reads all of several outputs.

    Raises:
        NotReadyError: `photinus[onnx]` is not installed.
        UsageError: torch cannot export the module, or the file cannot be written.
    """
    try:
        import onnx  # noqa: F401 - asked for before torch fails in the middle
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise NotReadyError("onnx is not installed", do='pip install "photinus[onnx]"') from error
    rows = torch.zeros(2, *shape, dtype=next(module.parameters()).dtype)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Scaled(module, scale, loss).eval(),
                (rows,),
                input_names=["features"],
                output_names=["outputs"],
                dynamic_shapes={"features": {0: torch.export.Dim("rows")}},
                dynamo=True,
                verbose=False,
            )
            _write(program, path)
    except UsageError:
        raise
    except Exception as error:  # whatever torch raises of a module that it cannot trace
        reason = str(error).strip().partition("\n")[0]
        raise UsageError("the module cannot be exported to ONNX", got=reason) from error
    finally:
        logger.setLevel(level)
    return Path(path)


def _write(program: Any, path: Path | str) -> None:  # noqa: ANN401 - torch's, or None
    try:
        program.save(str(path), external_data=False)
    except OSError as error:
        wrong, do = f"the file {path} cannot be written", "name a file in a folder that is yours"
        raise UsageError(wrong, got=reason_of(error), do=do) from error
