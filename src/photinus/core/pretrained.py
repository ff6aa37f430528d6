"""Finds a pre-trained model that lies on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from photinus.core.errors import NotReadyError


def pretrained_folder(base: str) -> Path:
    """Returns the folder of a pre-trained model, as `save_pretrained` of transformers writes it.

    Args:
        base: a folder with tokenizer.json, or a package that holds one named `model`.

    Raises:
        NotReadyError: there is none.

    Example:
        >>> pretrained_folder("no_such_model")
        Traceback (most recent call last):
        photinus.core.errors.NotReadyError: there is no pre-trained model 'no_such_model' here; \
install its package on every worker, or name a folder with tokenizer.json
    """
    folder = Path(base)
    if not folder.is_dir() and base.isidentifier():
        spec = importlib.util.find_spec(base)
        folder = Path(spec.origin).parent / "model" if spec and spec.origin else folder
    if not (folder / "tokenizer.json").is_file():
        do = "install its package on every worker, or name a folder with tokenizer.json"
        raise NotReadyError(f"there is no pre-trained model {base!r} here", do=do)
    return folder
