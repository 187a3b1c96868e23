"""The follower that keeps an Iceberg table."""
