"""What everything stands on and nothing federated is in: descriptions, checks of values, keys, trees, files."""
