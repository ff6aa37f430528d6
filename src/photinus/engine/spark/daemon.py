"""Spark's Python daemon with torch loaded, so that forked workers start quickly.

Loading takes some seconds of a processor in each worker, at the first task and after every death;
Spark asks for this module by `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc

import torch._dynamo  # noqa: F401 - which the first optimizer of a process loads

import photinus.data.spool
import photinus.engine.worker_bootstrap  # noqa: F401 - so that every fork has both
from photinus.engine.spark.archives import keep_archives

__all__: list[str] = []

if __name__ == "__main__":
    from pyspark.daemon import manager

    # pyspark collects garbage after every task, and would go through all of the library each time
    keep_archives()
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
