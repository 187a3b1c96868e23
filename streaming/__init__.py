"""The query: ReputMessageService's role played by a Spark Structured Streaming job."""
