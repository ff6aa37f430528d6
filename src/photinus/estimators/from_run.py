"""The model in the folder of a run, ready to score rows; without Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from photinus.checkpoint.export import load_model
from photinus.checkpoint.signatures import Trust
from photinus.core.errors import PhotinusError, UsageError, reason_of
from photinus.core.settings import from_dict, to_dict
from photinus.estimators.network import Network
from photinus.models.heads import BINARY, NUMBERS, TOKENS
from photinus.run.evaluate import head_of_outputs, loss_name, model_folder
from photinus.run.job import MODELS, Source

_OLDER_SCALES = {"mnist": 1 / 255}
"""Of sources by name, where an older run did not note how its rows were scaled."""


class SavedRun(NamedTuple):
    """What a run has saved."""

    network: Network
    """Without a shape where the run did not note it; `tried` finds what its outputs are."""
    source: Source
    """The columns that it was trained on."""
    threads: int
    """Of each worker."""


def open_run(run: Path | str, trust_code: Trust = False) -> SavedRun:
    """Reads the model of a run.

    Args:
        run: the folder of a run or of its model; a path or an address.
        trust_code: run the code that the folder names, though no run of this user made it.

    Raises:
        UsageError: there is no model, it scores no rows, or it is from elsewhere and names code.
        CheckpointError: it is damaged.
    """
    with model_folder(run) as folder:
        saved = load_model(folder, is_mapped=True)
        saved.check_code(f"the model in {run}", trust_code)
        meta, kind = saved.meta, str(saved.meta.get("kind", ""))
        if kind == "word2vec":
            do = "photinus.load_trained(FOLDER).module() has the vectors"
            raise UsageError(f"{run} holds word vectors, which score no rows", do=do)
        if kind not in MODELS:
            raise UsageError(f"{run} holds no model of photinus", got=repr(kind))
        rows = meta.get("rows", {})
        source = from_dict(Source, {**meta["data"], **rows.get("columns", {})})
        source = _with_inputs(source, rows.get("inputs", ()))
        network = Network.of_saved(
            saved,
            folder,
            shape=_shape(meta, source),
            classes=0,
            scale=rows.get("scale", _OLDER_SCALES.get(source.name, source.scale)),
            seed=int(meta.get("seed", 0)),
            head=NUMBERS,
            inputs=None if source.named is None else to_dict(source.named),
        )
    return SavedRun(network, source, int(meta.get("threads", 1)))


def _with_inputs(source: Source, names: Sequence[str]) -> Source:
    """Returns a source whose columns are called as the arrays that were handed over by names."""
    is_unnamed = names and not source.inputs
    return replace(source, inputs={name: name for name in names}) if is_unnamed else source


def _shape(meta: Mapping[str, Any], source: Source) -> tuple[int, ...]:
    """Returns the shape of one row's features; () where only the rows show it."""
    shape = meta.get("rows", {}).get("shape")
    width = {"dbn": "inputs", "logistic": "features"}.get(meta["kind"])
    if shape:
        return tuple(int(size) for size in shape)
    if width is not None:
        return (int(meta["settings"][width]),)
    has_several = len(source.features) > 1 and not source.inputs
    return (len(source.features),) if has_several else ()


def with_shape(network: Network, shape: tuple[int, ...]) -> Network:
    """Returns a network that knows the shape of a row; one that its run noted stays.

    Args:
        network: of `open_run`.
        shape: of one row of a table.

    Raises:
        UsageError: a row holds more or fewer numbers than the run noted.
    """
    known = network.shape or shape
    if math.prod(known) != math.prod(shape):
        do = "name rows as those that it was trained on"
        wrong = f"the model reads rows of {math.prod(known)} numbers"
        raise UsageError(wrong, got=math.prod(shape), do=do)
    return replace(network, shape=known)


def tried(network: Network, example: Any, heads: Sequence[str] = ()) -> Network:  # noqa: ANN401
    """Returns a network that knows what its outputs are, by some rows that it reads.

    Args:
        network: of `open_run`, with its shape.
        example: some rows as they are stored [B, ...], or a dict of arrays by input.
        heads: what they shall stand for, where a loss of the user's own does not show it.

    Raises:
        UsageError: the module does not take such rows.
    """
    try:
        outputs = np.asarray(network.outputs()(example))
    except PhotinusError:
        raise
    except Exception as error:  # whatever the user's module raises
        name = network.settings.get("module", network.kind)
        rows = "these inputs" if network.inputs else f"rows of shape {list(network.shape)}"
        do = "compare the columns with those that it was trained on"
        do += "; whole numbers are read by inputs = {parameter = column}" * (not network.inputs)
        wrong = f"the module {name} does not take {rows}"
        raise UsageError(wrong, got=reason_of(error).partition("\n")[0], do=do) from error
    settings: Any = from_dict(MODELS[network.kind], network.settings)
    loss, width = loss_name(settings, network.seed), math.prod(outputs.shape[1:])
    head = head_of_outputs(settings, loss, torch.from_numpy(outputs))
    if ":" in loss and heads and head not in heads:
        head = BINARY if BINARY in heads and width == 1 else heads[0]
    return replace(network, classes=outputs.shape[-1] if head == TOKENS else width, head=head)
