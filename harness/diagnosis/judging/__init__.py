"""From findings and facts to a diagnosis."""
