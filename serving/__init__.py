"""The wire: RocketMQ's clients read a store through a name server and broker of ours."""
