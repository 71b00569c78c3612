"""What a study needs in Google Cloud: objects of the cluster, the bucket, prices, and what machines were held."""
