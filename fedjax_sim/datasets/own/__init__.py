"""Anyone's own data: LEAF json, a table with a client column, a directory with a file for each client."""
