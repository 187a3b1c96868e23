"""Tables of messages, read by both sources; each run adds what has come since the last one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
store, output = spark.conf.get("spark.reput.store"), spark.conf.get("spark.reput.output")


@dp.table
def logged() -> DataFrame:
    """Every message of the log, as soon as it is sealed."""
    log = spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")
    return log.load(store).select("topic", "queueId", "queueOffset", "storeTimestamp", "body")


@dp.table
def dispatched() -> DataFrame:
    """Every message that consumers can have, as its queue gives it."""
    queues = spark.readStream.format("rocketmq-consumequeue").option("output", output)
    found = queues.option("startingOffsets", "earliest").load(store)
    return found.select("topic", "queueId", "queueOffset", "body")


@dp.materialized_view
def per_topic() -> DataFrame:
    """How many messages of each topic are logged, and how many of them dispatched."""
    topics = spark.read.table("dispatched").groupBy("topic").agg(f.count("*").alias("dispatched"))
    logged = spark.read.table("logged").groupBy("topic").agg(f.count("*").alias("logged"))
    return logged.join(topics, "topic", "left").orderBy("topic")
