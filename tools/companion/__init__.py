"""What `tools/train-companion` is made of; it needs torch."""
