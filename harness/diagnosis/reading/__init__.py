"""Lines out of files: which lines of a log say what, and who wrote them."""
