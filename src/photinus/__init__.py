"""photinus, for Apache Spark: trains neural networks where the data lives."""

__version__ = "0.1.0"
