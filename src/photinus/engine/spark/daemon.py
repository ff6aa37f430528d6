"""Spark's Python daemon with torch loaded, so that forked workers start quickly.

Loading takes some seconds of a processor in each worker, at the first task and after every death;
Spark asks for this module by `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc
from contextlib import suppress

__all__: list[str] = []


def main() -> None:
    """Loads what a worker needs, and forks workers until Spark closes the input."""
    gc.disable()  # what an import makes stays: each collection on the way would find nothing
    from pyspark.daemon import manager

    import photinus.engine.spark.engine  # noqa: F401 - so that every fork has it

    with suppress(ImportError):  # Spark's error names it then, when a task needs it
        import pyarrow as pa  # noqa: F401
    from photinus.engine.spark.archives import keep_archives

    # pyspark collects garbage after every task, and would go through all of the library each time
    keep_archives()
    gc.collect()
    gc.freeze()
    gc.enable()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
