"""Who holds GPUs without use: seconds and rows of a report in, a list with prices and a digest out. Pure."""
