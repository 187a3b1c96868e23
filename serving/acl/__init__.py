"""Access control: RocketMQ's access control lists, and the check before every request."""
