"""Records that consuming adds beside a store, whose own files stay as they are."""
