"""Made-up messages: an appender that writes a log as a broker does, and the demo built on it."""
