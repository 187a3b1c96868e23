"""The hash index of keys: format, reader, writer, kernel."""
