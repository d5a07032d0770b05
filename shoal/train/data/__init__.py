"""What a study trains on: arrays, datasets and files, as columns in shards."""
