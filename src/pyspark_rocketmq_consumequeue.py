"""Found by Spark: ``format("rocketmq-consumequeue")`` without registration.

Spark imports every top-level module that is named ``pyspark_*``, and takes ``DefaultSource`` from
it; a module that raises would break every other source too.
"""

try:
    from reput.sources.consumequeue import ConsumeQueueDataSource as DefaultSource
except ImportError as error:
    import warnings

    warnings.warn(f"rocketmq-consumequeue is not there: {error}", stacklevel=1)

__all__ = ["DefaultSource"]
