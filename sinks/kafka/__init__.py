"""The follower that mirrors topics to Kafka."""
