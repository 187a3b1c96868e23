"""The consuming side, without Spark and without a broker: queues, searches and filters."""
