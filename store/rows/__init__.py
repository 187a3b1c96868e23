"""Messages as Arrow rows: the public schema, and the kernels that fill its columns."""
