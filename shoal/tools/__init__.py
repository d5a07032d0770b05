"""What the commands of `shoal` do, one file each; packs by hand; how arguments are read."""
