"""Item2Vec for Spark ML: vectors of items from baskets, whose order means nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.embeddings.vectors import WordVectors
from photinus.estimators.param_table import RUN_ROWS
from photinus.estimators.params import keyword_params, with_params
from photinus.estimators.sentences import baskets_of
from photinus.estimators.vector_models import ITEM_ROWS, Item2VecModel, id_type
from photinus.estimators.word2vec import COUNTED_ROWS, TRAINING_ROWS, VectorEstimator
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHOLE_BASKET = 1 << 30
"""Each centre draws its window from 1 to this. In a basket of 1,000 items one draw in a million is
too small to reach all of them."""


def _to_window(size: int) -> int:
    return size or _WHOLE_BASKET


_TRAINING_ROWS = tuple(
    replace(
        row,
        meaning="items to each side, at most; 0: the whole basket",
        default=0,
        to_job=_to_window,
    )
    if row.name == "windowSize"
    else row
    for row in TRAINING_ROWS
)
_ROWS = (*ITEM_ROWS, *COUNTED_ROWS, *_TRAINING_ROWS, *RUN_ROWS)


@with_params(_ROWS)
class Item2Vec(VectorEstimator):
    """Learns a vector for each item from baskets: each is a context of every other in its basket.

    A basket is a set. Its order and what is in it twice decide nothing.

    Example:
        >>> item2vec = Item2Vec(inputCol="products", vectorSize=50)
        >>> item2vec.getWindowSize(), item2vec.getSample()
        (0, 0.0)
        >>> model = item2vec.fit(baskets)  # doctest: +SKIP
        >>> model.findSynonyms(1017, 10).show()  # doctest: +SKIP

    Reference: Barkan and Koenigstein, Item2Vec: neural item embedding for collaborative filtering
    (2016).
    """

    _param_rows = _ROWS
    _config_defaults = {"window": _WHOLE_BASKET, "contexts_per_step": 2, "sample": 0.0}  # noqa: RUF012
    _sequence_terms = "basket", "items", "collect the items of a basket into one array"

    @keyword_params
    def __init__(
        self,
        *,
        inputCol: str = "items",
        outputCol: str = "vector",
        minCount: int = 5,
        maxVocabulary: int = 0,
        wordsInMemory: int = 2_000_000,
        vectorSize: int = 100,
        windowSize: int = 0,
        negatives: int = 5,
        cbow: bool = False,
        contextsPerStep: int = 2,
        sample: float = 0.0,
        learningRate: float | None = None,
        epochs: float | None = None,
        table: str = "whole",
        kernel: str = "numba",
        strategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy | None = None,
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        numThreads: int = 1,
        device: str | Sequence[str] = "cpu",
        bandwidth: float | None = None,
        cpuShare: float | None = None,
        memory: int | None = None,
        priority: int = 0,
        weight: float | None = None,
        jobsFolder: str = "",
        deadlineSeconds: float | None = None,
        seed: int = 0,
        security: str = "tls",
        runDir: str = "",
        checkpointSeconds: float = 60.0,
        leaseSeconds: float | None = None,
    ) -> None:
        super().__init__()

    def _sentences(self, dataset: DataFrame) -> DataFrame:
        items = baskets_of(dataset, self.getOrDefault("inputCol"))
        return dataset.select(_shuffled_items(items, self.getOrDefault("seed")).alias("words"))

    def _make_model(self, dataset: DataFrame, vectors: WordVectors) -> Item2VecModel:
        type_name = id_type(dataset.schema[self.getOrDefault("inputCol")].dataType)
        return Item2VecModel(vectors)._set(idType=type_name)


def _shuffled_items(items: Column, seed: int) -> Column:
    """Returns a basket's items, each once, in a random order that follows from content and seed.

    A task that Spark runs again must give the same rows, so nothing is drawn.
    """
    basket = F.sort_array(F.array_distinct(items))
    basket_hash = F.xxhash64(basket, F.lit(seed))
    keyed = F.transform(
        basket,
        lambda item: F.struct(F.xxhash64(item, basket_hash).alias("place"), item.alias("item")),
    )
    return F.transform(F.sort_array(keyed), lambda pair: pair["item"])
