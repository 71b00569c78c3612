"""A Kubernetes cluster, a bucket and clients for the tests: real processes, each stoppable at any moment."""
