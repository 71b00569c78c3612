"""From files to lines: which lines of a log say what, and which process wrote them."""
