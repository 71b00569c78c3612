"""One run over several nodes: one supervisor a node; node 0 leads and writes the record, the others follow."""
