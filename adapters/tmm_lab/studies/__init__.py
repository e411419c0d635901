"""The claims of the paper, each as a study that confirms or refutes it (`tmm study`)."""
