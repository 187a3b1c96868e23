"""The query: a Spark Structured Streaming job in the role of ReputMessageService."""
