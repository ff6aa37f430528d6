"""Exports a trained model, and reads one to start from: safetensors and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from photinus.checkpoint.files import FolderFormat, Tensors, from_safetensors
from photinus.checkpoint.mapped import MappedFile, digest_of
from photinus.checkpoint.signatures import Trust, check_code, is_signed, signature_of
from photinus.core.errors import CheckpointError, UsageError

_SEAL = FolderFormat(file="model.json", format="photinus-model", is_private=False, fields=("meta",))
WEIGHTS, _SIGNATURE_KIND = "model.safetensors", "model"
"""The file of the arrays, and what is signed."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model's arrays by name, and what was noted beside them."""

    tensors: Tensors
    meta: Mapping[str, Any] = field(default_factory=dict)
    is_own: bool = False
    """True when a run of this user saved it: signed with the user's own key."""

    def check_code(self, what: str, trust_code: Trust = False) -> None:
        """Refuses a model from elsewhere that names code, unless the user trusts it.

        Args:
            what: it is, for people.
            trust_code: as the user gave it.

        Raises:
            UsageError: it names code that the user does not trust.
        """
        if not self.is_own:
            check_code(self.meta, what, trust_code)


def save_model(
    path: Path | str, tensors: Tensors, meta: Mapping[str, Any], *, is_own: bool = False
) -> Path:
    """Saves a model as a folder of `model.safetensors` and `model.json`.

    A model that is there is replaced; any other folder is left alone. No copy of the arrays is
    made: they may be read through a memory map.

    Args:
        path: the folder; its parent must exist.
        tensors: arrays [any shape] by name, as in a `state_dict`.
        meta: plain JSON values.
        is_own: sign it as what a run of this user made: whatever code it names may be called.

    Raises:
        UsageError: something else is at that path, or meta is no JSON.
        CheckpointError: it could not be written; an older model stands.

    Example:
        >>> import numpy as np, tempfile
        >>> folder = save_model(tempfile.mkdtemp() + "/net", {"w": np.ones(2)}, {"classes": 10})
        >>> load_model(folder).meta
        {'classes': 10}
    """
    target = Path(path).expanduser()
    if (target.exists() or target.is_symlink()) and not (target / _SEAL.file).is_file():
        raise UsageError(
            f"{target} is there already and is no saved model", do="name another folder"
        )
    body = dict[str, Any](meta=meta)
    try:
        if is_own:
            digest = digest_of(tensors)
            body["signature"] = signature_of(_SIGNATURE_KIND, _signed_values(meta, digest))
        _SEAL.write(target, body, {WEIGHTS: tensors}, lambda _: None)
    except OSError as error:
        raise CheckpointError(
            f"the model could not be saved in {target}",
            got=error.strerror or str(error),
            do="name a folder that can be written",
        ) from error
    return target


def load_model(path: Path | str, *, is_mapped: bool = False) -> SavedModel:
    """Loads a folder that `save_model` made, or any one safetensors file (a warm start).

    Args:
        path: of the folder, or the file.
        is_mapped: the arrays stay on disk, and are read through a memory map.

    Raises:
        UsageError: there is nothing, or a file of another kind: only safetensors is read.
        CheckpointError: it is damaged; names the file and the hashes.
    """
    source = Path(path).expanduser()
    if source.is_dir():
        try:
            body, files = _SEAL.read(source, WEIGHTS if is_mapped else "")
            if WEIGHTS not in files:
                raise CheckpointError(f"{WEIGHTS} is missing")
        except CheckpointError as error:
            raise CheckpointError(f"model {source}: {error}") from error
        signed = _signed_values(body["meta"], body["files"][WEIGHTS]["sha256"])
        is_own = is_signed(_SIGNATURE_KIND, signed, body.get("signature"))
        return SavedModel(files[WEIGHTS], body["meta"], is_own)
    if not source.is_file():
        do = "name a run's folder, a saved model's, or a safetensors file"
        raise UsageError("no model at that path", got=str(source), do=do)
    if source.suffix != ".safetensors":
        raise UsageError(
            "only safetensors files are read: other formats can hold code",
            got=source.name,
            do="convert it: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')",
        )
    if is_mapped:
        return SavedModel(MappedFile(source))
    try:
        data = source.read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read", got=error.strerror) from error
    return SavedModel(_decode(data, source.name))


def _signed_values(meta: Mapping[str, Any], digest: str) -> dict[str, Any]:
    return {"meta": meta, "tensors": digest}


def _decode(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    try:
        return from_safetensors(data, name)
    except CheckpointError:  # numpy has no bfloat16, in which many published models are kept
        import safetensors.torch

        try:
            return tensors_from_state_dict(safetensors.torch.load(data))
        except (SafetensorError, ValueError, KeyError, TypeError):
            pass
        raise


def tensors_from_state_dict(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns a torch `state_dict` as arrays of their own; bfloat16 becomes float32.

    Raises:
        UsageError: a value is no tensor.
    """
    import torch

    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"{name} of the state_dict must be a tensor", got=type(value).__name__)
    plain = {name: value.detach().cpu() for name, value in state.items()}
    return {
        name: np.array((value.float() if value.dtype == torch.bfloat16 else value).numpy())
        for name, value in plain.items()
    }
