"""How wrong is the model? Predictions held against measurements that it was not fitted to."""
