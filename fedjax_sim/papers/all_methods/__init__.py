"""All methods on the same problems: no paper, but what the papers leave out."""
