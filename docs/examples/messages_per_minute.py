"""From a broker's directory to a chart of messages per minute by topic: STORE PICTURE."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

log = SparkSession.builder.getOrCreate().read.format("rocketmq-commitlog")
messages = log.option("includeBody", False).load(sys.argv[1]).where("topic is not null")
minutes = messages.groupBy(
    f.date_trunc("minute", "storeTimestamp").alias("minute"), "topic"
).count()
table = minutes.toPandas().pivot(index="minute", columns="topic", values="count").fillna(0)
table.plot.area(ylabel="messages per minute", figsize=(8, 3)).figure.savefig(sys.argv[2])
